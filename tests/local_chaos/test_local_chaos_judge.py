"""What the chaos of local jobs calls clean, and what not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local_chaos.judge import STEPS, Verdict, World, judge
from tests.suite.tables import each_case

ORDERS = 4
Lines = list[str]
Rows = list[dict[str, Any]]


def lines() -> Lines:
    """Return what an undisturbed run leaves in the world."""
    world_lines: Lines = []
    for number in range(ORDERS):
        world_lines += [f"effect {number} {step} key-{number}-{step} {step}{number}" for step in STEPS]
        world_lines.append(f"seen {number} " + " ".join(f"{step}{number}" for step in STEPS))
    return world_lines


def outputs() -> Rows:
    """Return the outputs of an undisturbed run."""
    return [
        {"number": number, "customer": f"c{number % 2}", "place": number // 2 + 1} for number in range(ORDERS)
    ]


def verdict(tmp_path: Path, world: Lines, rows: Rows, totals: Rows | None = None) -> Verdict:
    file = tmp_path / "world"
    file.write_text("\n".join(world) + "\n")
    return judge(World.read(file), ORDERS, rows, totals, keys=2, kills={}, starts=1, resumed=0)


def test_an_undisturbed_run_is_clean(tmp_path: Path) -> None:
    windows = [{"orders": [0, 2]}, {"orders": [1, 3]}]
    assert verdict(tmp_path, lines(), outputs(), windows).clean


@each_case(
    ("windows", "late", "clean"),
    [
        ([{"orders": [1, 2, 3]}], 0, True),
        ([{"orders": [0, 1, 3]}], 2, True),  # behind order 0, which waits
        ([{"orders": [0, 1, 2, 3]}], 2, False),
        ([{"orders": [0, 2, 3]}], 1, False),  # nothing that waits is before it
        ([{"orders": [0, 1, 2]}], 3, False),
    ],
)
def test_an_order_may_miss_its_window_behind_one_that_waits(
    windows: Rows, late: int, clean: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("late") / "world"
    file.write_text("\n".join(lines()) + "\n")
    world = World.read(file)
    judgement = judge(
        world, ORDERS, outputs(), windows, [{"number": late}], keys=2, kills={}, starts=1, resumed=0
    )
    assert judgement.clean == clean and judgement.as_json()["late"] == [late]


@each_case(
    ("keys", "step", "number", "clean"),
    [(48, "total", 1, False), (12, "total", 8, True), (12, "total", 1, True), (12, "end", 8, False)],
)
def test_a_window_may_come_out_otherwise_behind_an_order_that_waits(
    keys: int, step: str, number: int, clean: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("totals") / "world"
    again = [f"effect {number} {step} {key} {key}" for key in ("one", "two")]
    file.write_text("\n".join([*lines(), *again]) + "\n")
    judgement = judge(World.read(file), ORDERS, outputs(), None, keys=keys, kills={}, starts=1, resumed=0)
    assert judgement.clean == clean
    assert judgement.other_totals == int(clean) and len(judgement.keys_differ) == int(not clean)


def test_a_call_that_was_in_flight_may_come_again(tmp_path: Path) -> None:
    judgement = verdict(tmp_path, ["effect 0 left key-0-left lost", *lines()], outputs())
    assert judgement.clean and judgement.called_again == 1


WRONG: dict[str, Callable[[Lines, Rows, Rows], object]] = {
    "lost": lambda world, rows, windows: rows.pop(),
    "twice": lambda world, rows, windows: rows.append(rows[-1]),
    "out_of_order": lambda world, rows, windows: rows.reverse(),
    "lost_effects": lambda world, rows, windows: world.pop(0),
    "repeated_after_record": lambda world, rows, windows: world.append("effect 0 end key-0-end again"),
    "keys_differ": lambda world, rows, windows: world.insert(0, "effect 0 end another-key lost"),
    "wrong_totals": lambda world, rows, windows: windows.append({"orders": [1]}),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found(what: str, tmp_path: Path) -> None:
    world = lines()
    rows = outputs()
    windows = [{"orders": [0, 1, 2, 3]}]
    WRONG[what](world, rows, windows)
    judgement = verdict(tmp_path, world, rows, windows)
    assert not judgement.clean
    assert judgement.as_json()[what]
