"""Runs in flight that commit 533b2bf left in savepoints and journals go on, or end with a named error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import golden_runs
import pytest
from golden_runs import EFFECTS, STRAIGHT, UNORDERED, Crash

from flink_agents.api.errors import ActionFailedError, BranchesRecordedEarlierError

pytestmark = pytest.mark.executes_once

CRASHES = [golden_runs.crash_of(kept) for kept in json.loads(golden_runs.STATE.read_text())]

STRAIGHT_LINE = [crash for crash in CRASHES if crash.program in STRAIGHT]
BRANCHING = [crash for crash in CRASHES if crash.program not in STRAIGHT]

ALL_CALLS = 4
"""How many calls a branching run makes; the append behind them is that of its action."""

BRANCHED = [[str(number), str([number, str(number)])] for number in (0, 1)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of all crashes, each of which has a job identifier of its own."""
    file = tmp_path_factory.mktemp("golden") / "store"
    file.write_bytes(gzip.decompress(golden_runs.STORE.read_bytes()))
    return file


def in_order(program: str, effects: list[Any]) -> list[Any]:
    return sorted(effects, key=repr) if program in UNORDERED else effects


@pytest.mark.parametrize("crash", STRAIGHT_LINE, ids=lambda crash: crash.name)
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


def is_whole(crash: Crash) -> bool:
    """Whether nothing of the run is to be executed, or all of it anew."""
    return crash.calls == 0 or (crash.at == ALL_CALLS and crash.stored)


@pytest.mark.parametrize("crash", [one for one in BRANCHING if is_whole(one)], ids=lambda crash: crash.name)
def test_branching_run_without_a_gap_goes_on(crash: Crash, store: Path) -> None:
    outputs, _ = golden_runs.restore(crash, store)
    assert outputs == [[2, BRANCHED]]
    made = 0 if crash.calls else ALL_CALLS
    assert len(EFFECTS) == len(crash.before) + made


@pytest.mark.parametrize(
    "crash", [one for one in BRANCHING if not is_whole(one)], ids=lambda crash: crash.name
)
def test_branching_run_in_flight_is_a_named_error(crash: Crash, store: Path) -> None:
    """The old numbers do not say which branch a call belongs to."""
    with pytest.raises(ActionFailedError) as caught:
        golden_runs.restore(crash, store)
    assert isinstance(caught.value.__cause__, BranchesRecordedEarlierError)
    assert golden_runs.plain_json(EFFECTS) == crash.before
