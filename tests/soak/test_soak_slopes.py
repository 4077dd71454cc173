"""What the soak finds in made-up samples: growth per input, growth per new key, noise, and none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak import measures
from tests.soak.command import SETTLE_SECONDS, Cycles
from tests.soak.plan import BUSY, CYCLE, due, is_new, key_of, new_keys
from tests.soak.slopes import Limit, Row, growing, slopes_of
from tests.suite.tables import each_case

LIMIT = Limit(10, 0.1)


def rows_of(value: Callable[[int], float], cycles: int = 10) -> list[Row]:
    ends = [CYCLE * cycle - 200 for cycle in range(4, 4 + cycles)]
    return [(end, new_keys(end), value(end)) for end in ends]


def grown(per_input: float, per_key: float, noise: float, cycles: int = 10) -> list[Row]:
    chance = random.Random(1)
    return rows_of(
        lambda count: 1000 + per_input * count + per_key * new_keys(count) + chance.uniform(-noise, noise),
        cycles,
    )


@each_case(
    "per_input, per_key, noise, kinds",
    [
        (0, 0, 0, []),
        (0, 0, 100, []),
        (0.009, 0.001, 0, []),
        (-1, -1, 10, []),
        (0.1, 0, 0, ["per 1,000 inputs"]),
        (0.1, 0, 50, ["per 1,000 inputs"]),
        (0, 1, 0, ["per 1,000 inputs", "per new key"]),
        (0, 1, 50, ["per 1,000 inputs", "per new key"]),
        (0.1, 1, 10, ["per 1,000 inputs", "per new key"]),
    ],
)
def test_growth_is_found_and_noise_is_none(
    per_input: float, per_key: float, noise: float, kinds: list[str]
) -> None:
    rows = grown(per_input, per_key, noise)
    assert growing(rows, LIMIT) == kinds
    slopes = slopes_of(rows, LIMIT)
    if not noise:
        assert slopes["per new key"].value == pytest.approx(per_key)
        keys = 1000 * BUSY / (2 * CYCLE)
        assert slopes["per 1,000 inputs"].value == pytest.approx(1000 * per_input + keys * per_key, rel=0.1)


@each_case(
    "value",
    [
        lambda count: min(count, 7 * CYCLE),
        lambda count: 10_000 * (1 - 0.5 ** (count / 2500)),
        lambda count: 500 * (count // CYCLE % 2),
        lambda count: 5000 * (count > 9 * CYCLE),
    ],
    ids=["fills up", "approaches", "swings", "steps"],
)
def test_what_fills_up_or_swings_or_steps_does_not_grow(value: Callable[[int], float]) -> None:
    assert growing(rows_of(value), Limit(500, 2)) == []


@each_case("cycles", [8, 9, 15])
def test_growth_is_found_in_few_cycles(cycles: int) -> None:
    assert growing(grown(0.1, 0, 50, cycles), LIMIT) == ["per 1,000 inputs"]


@each_case("rows", [[(0.0, 0.0, 1.0)] * 9, [(float(count), 0.0, 1.0) for count in range(9)], []], ids=str)
def test_samples_that_do_not_tell_the_slopes_apart_are_refused(rows: list[Row]) -> None:
    with pytest.raises(ValueError):
        slopes_of(rows, LIMIT)


def test_new_keys_are_those_of_the_inputs() -> None:
    for count in (0, 1, BUSY, BUSY + 1, CYCLE + 2, 2 * CYCLE, 2 * CYCLE + 7, 5 * CYCLE + 7):
        keys = {key_of(number) for number in range(count) if is_new(number)}
        assert new_keys(count) == len(keys), count


def test_the_first_inputs_of_a_cycle_come_at_once() -> None:
    numbers = [CYCLE - 1, CYCLE, CYCLE + BUSY - 1, CYCLE + BUSY, 2 * CYCLE - 1]
    assert [due(number) - CYCLE for number in numbers] == [-1, BUSY - 1, BUSY - 1, BUSY, CYCLE - 1]


def test_samples_count_when_keys_are_forgotten_and_the_job_is_not_behind() -> None:
    cycles = Cycles(rate=40)
    quiet = CYCLE + BUSY
    assert cycles.settled(quiet - 1, quiet, 0) is None
    assert cycles.settled(quiet, quiet, 10) is None
    assert cycles.settled(quiet, quiet, 10 + SETTLE_SECONDS) == 1
    assert cycles.settled(quiet, quiet + 801, 50) is None
    assert cycles.settled(2 * CYCLE - 1, 2 * CYCLE - 1, 60) == 1
    assert cycles.settled(2 * CYCLE - 1, 2 * CYCLE, 60) is None
    assert cycles.settled(2 * CYCLE + BUSY, 2 * CYCLE + BUSY, 70) is None


def test_the_log_of_files_of_rocksdb_is_no_state(tmp_path: Path) -> None:
    checkpoint = tmp_path / "job" / "chk-7"
    checkpoint.mkdir(parents=True)
    (tmp_path / "job" / "shared").mkdir()
    (tmp_path / "job" / "shared" / "table").write_bytes(bytes(1024))
    (checkpoint / "_metadata").write_bytes(bytes(2048))
    assert measures.of_checkpoint(tmp_path) == {"state bytes": 3}
    # As RocksDB begins it, with the header of a record.
    header = bytes.fromhex("56f9b8f81c0001011a")
    (checkpoint / "log-of-files").write_bytes(header + b"leveldb.BytewiseComparator" + bytes(9999))
    assert measures.of_checkpoint(tmp_path) == {"state bytes": 3}
    assert measures.of_checkpoint(tmp_path / "none") == {}
