"""Runs in flight that former versions left in savepoints and journals go on, or end with a named error."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import golden_runs
import pytest
from golden_runs import EFFECTS, GENERATIONS, STRAIGHT, UNORDERED, Crash

from flink_agents.api.errors import ActionFailedError, BranchesRecordedEarlierError
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

CRASHES = [crash for generation in GENERATIONS for crash in generation.crashes()]

STRAIGHT_LINE = [crash for crash in CRASHES if crash.program in STRAIGHT]

BRANCHING = [crash for crash in CRASHES if crash.program not in STRAIGHT]

WITHOUT_BRANCHES = "533b2bf"
"""The numbers of its calls do not say which branch they belong to."""

ALL_CALLS = 4
"""How many calls a branching run makes; the append behind them is that of its action."""

BRANCHED = [[str(number), str([number, str(number)])] for number in (0, 1)]


Stores = dict[str, Path]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """The store of all crashes of each version; every crash has a job identifier of its own."""
    directory = tmp_path_factory.mktemp("golden")
    for generation in GENERATIONS:
        (directory / generation.commit).write_bytes(gzip.decompress(generation.store.read_bytes()))
    return {generation.commit: directory / generation.commit for generation in GENERATIONS}


def title(crash: Crash) -> str:
    return f"{crash.commit}-{crash.name}"


def in_order(program: str, effects: list[Any]) -> list[Any]:
    return sorted(effects, key=repr) if program in UNORDERED else effects


@each_case("crash", STRAIGHT_LINE, ids=title)
def test_straight_line_run_goes_on(crash: Crash, stores: Stores) -> None:
    """The same calls with the same keys, none whose record is there, and the same results."""
    outputs, memory = golden_runs.restore(crash, stores[crash.commit])
    assert (outputs, memory) == (crash.outputs, crash.memory)
    effects = golden_runs.plain_json(EFFECTS)
    assert in_order(crash.program, effects) == in_order(crash.program, crash.after)


def test_each_way_to_be_in_flight_is_there() -> None:
    """Each program died with nothing recorded, with some calls, and with all of them."""
    for program, generation in itertools.product(STRAIGHT, GENERATIONS):
        mine = [
            crash for crash in STRAIGHT_LINE if (crash.program, crash.commit) == (program, generation.commit)
        ]
        assert {bool(crash.again) for crash in mine} == {True, False}
        counts = {crash.calls for crash in mine}
        assert {0, max(counts)} < counts or program == "caught"
        repeated = {len(crash.after) - len(crash.before) for crash in mine}
        assert 0 in repeated and len(repeated) > 1


def is_whole(crash: Crash) -> bool:
    """Whether nothing of the run is to be executed, or all of it anew."""
    return crash.calls == 0 or (crash.at == ALL_CALLS and crash.stored)


def branching(known: bool, whole: bool) -> list[Crash]:
    """The crashes whose calls say which branch they belong to, or not, and which are whole, or not."""
    return [
        crash
        for crash in BRANCHING
        if (crash.commit != WITHOUT_BRANCHES) == known and is_whole(crash) == whole
    ]


@pytest.mark.parametrize("crash", [*branching(True, True), *branching(True, False)], ids=title)
def test_branching_run_goes_on(crash: Crash, stores: Stores) -> None:
    """No call is made again whose record is there."""
    outputs, _ = golden_runs.restore(crash, stores[crash.commit])
    assert outputs == [[2, BRANCHED]]
    assert len(EFFECTS) == len(crash.before) + ALL_CALLS - crash.calls


@pytest.mark.parametrize("crash", branching(False, True), ids=title)
def test_branching_run_without_a_gap_goes_on(crash: Crash, stores: Stores) -> None:
    outputs, _ = golden_runs.restore(crash, stores[crash.commit])
    assert outputs == [[2, BRANCHED]]
    new_call_count = 0 if crash.calls else ALL_CALLS
    assert len(EFFECTS) == len(crash.before) + new_call_count


@pytest.mark.parametrize("crash", branching(False, False), ids=title)
def test_branching_run_in_flight_is_a_named_error(crash: Crash, stores: Stores) -> None:
    """The old numbers do not say which branch a call belongs to."""
    with pytest.raises(ActionFailedError) as caught:
        golden_runs.restore(crash, stores[crash.commit])
    assert isinstance(caught.value.__cause__, BranchesRecordedEarlierError)
    assert golden_runs.plain_json(EFFECTS) == crash.before
