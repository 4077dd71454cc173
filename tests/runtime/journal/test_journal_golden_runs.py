"""Runs in flight in stored savepoints and journals go on."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import golden_runs
import pytest
from golden_runs import EFFECTS, STORE, STRAIGHT, UNORDERED, Crash, read_crashes

from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

CRASHES = read_crashes()

STRAIGHT_LINE = [crash for crash in CRASHES if crash.program in STRAIGHT]

BRANCHING = [crash for crash in CRASHES if crash.program not in STRAIGHT]

ALL_CALLS = 4
"""How many calls a branching run makes; the append behind them is that of its action."""

BRANCHED = [[str(number), str([number, str(number)])] for number in (0, 1)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of all crashes; every crash has a job identifier of its own."""
    file = tmp_path_factory.mktemp("golden") / "store"
    file.write_bytes(gzip.decompress(STORE.read_bytes()))
    return file


def title(crash: Crash) -> str:
    return crash.name


def in_order(program: str, effects: list[Any]) -> list[Any]:
    return sorted(effects, key=repr) if program in UNORDERED else effects


@each_case("crash", STRAIGHT_LINE, ids=title)
def test_straight_line_run_goes_on(crash: Crash, store: Path) -> None:
    """The same calls with the same keys, none whose record is there, and the same results."""
    outputs, memory = golden_runs.restore(crash, store)
    assert (outputs, memory) == (crash.outputs, crash.memory)
    effects = golden_runs.plain_json(EFFECTS)
    assert in_order(crash.program, effects) == in_order(crash.program, crash.after)


def test_each_way_to_be_in_flight_is_there() -> None:
    """Each program died with nothing recorded, with some calls, and with all of them."""
    for program in STRAIGHT:
        mine = [crash for crash in STRAIGHT_LINE if crash.program == program]
        assert {bool(crash.again) for crash in mine} == {True, False}
        counts = {crash.calls for crash in mine}
        assert {0, max(counts)} < counts or program == "caught"
        repeated = {len(crash.after) - len(crash.before) for crash in mine}
        assert 0 in repeated and len(repeated) > 1


@pytest.mark.parametrize("crash", BRANCHING, ids=title)
def test_branching_run_goes_on(crash: Crash, store: Path) -> None:
    """No call is made again whose record is there."""
    outputs, _ = golden_runs.restore(crash, store)
    assert outputs == [[2, BRANCHED]]
    assert len(EFFECTS) == len(crash.before) + ALL_CALLS - crash.calls
