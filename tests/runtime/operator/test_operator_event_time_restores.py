"""Event time that is held, behind a restore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hold_tools import ALIVE_MS, CLOSED, HOLD, Caller, on_time, timed_outputs, watermark_behind

from flink_agents.runtime.operator.low_watermark import LATE_OUTPUTS, NO_TIMESTAMP
from flink_agents.testing import OperatorHarness

MakeHarness = Callable[..., OperatorHarness]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_waits_holds_after_a_restore(hold_harness: MakeHarness, parallelism: int) -> None:
    harness = hold_harness(max_parallelism=16)
    CLOSED.add("blocked")
    for number in range(20):
        for place, record in enumerate(("blocked", number)):
            harness.push((number, record), timestamp=100 + 10 * number + place)
    # Their time has come before the checkpoint, so that no timer at their times is left.
    harness.watermark(1000)
    snapshot = harness.snapshot()
    everything = [100 + 10 * number + place for number in range(20) for place in (0, 1)]
    for _ in range(2):
        CLOSED.add("blocked")
        harness.current_watermark = NO_TIMESTAMP
        harness.restore(snapshot, parallelism)
        assert harness.outputs == harness.timestamps == []
        harness.watermark(500)
        harness.advance_time(10 * ALIVE_MS)
        assert harness.output_watermark is not None
        assert harness.output_watermark == 99
        CLOSED.clear()
        harness.run_until_idle()
        assert watermark_behind(harness) == 500
        assert sorted(filter(None, harness.timestamps)) == everything
        assert on_time(harness)
        assert {at: record for record, at in timed_outputs(harness)}[101 + 10 * 7] == 7


@pytest.mark.executes_once
def test_restored_keys_without_work_hold_nothing(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    for key in range(5):
        harness.push((key, "now"), timestamp=key)
    harness.restore(harness.snapshot())
    harness.watermark(100)
    assert watermark_behind(harness) == 100


@pytest.mark.executes_once
@pytest.mark.parametrize("record", ["now", "call"])
def test_a_restored_signal_holds_nothing_if_an_input_comes_first(
    hold_harness: MakeHarness, record: str
) -> None:
    harness = hold_harness()
    harness.watermark(1)
    harness.signal("a", "paid", 40)
    harness.restore(harness.snapshot())
    harness.push(("a", record), timestamp=10)
    harness.run_until_idle()
    harness.watermark(100)
    assert watermark_behind(harness) == 100
    assert harness.outputs == [record]


@pytest.mark.executes_once
def test_restored_inputs_can_be_committed_before_their_time(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    CLOSED.add("last")
    for at, record in enumerate(["one", "two", "three", "last"]):
        harness.push(("a", record), timestamp=at)
    harness.restore(harness.snapshot())
    harness.push(("a", "new"), timestamp=4)
    [task] = harness._subtasks
    while len(harness.outputs) < 3:
        ended = task.processor.loop_access.loop.progress
        harness.advance_time(1000)
        task.processor.loop_access.loop.wait_for_progress(ended - 1, 60)
    harness.watermark(4)
    assert watermark_behind(harness) == 2
    CLOSED.clear()
    harness.run_until_idle()
    assert timed_outputs(harness) == [("one", 0), ("two", 1), ("three", 2), ("last", 3), ("new", 4)]
    assert harness.run_metrics[LATE_OUTPUTS] == 0


@pytest.mark.parametrize("inline", [True, False])
def test_replay_gives_the_same_outputs_and_timestamps(hold_harness: MakeHarness, inline: bool) -> None:
    def drive(**options: Any) -> list[tuple[Any, int | None]]:
        harness = hold_harness(auto_run=True, config={"run.inline": inline}, **options)
        for number in range(12):
            at = None if number == 7 else 10 * (number ^ 1)
            harness.push((number % 2, "now" if number == 4 else number), timestamp=at)
            harness.advance_time(5)
            harness.watermark(10 * number - 40)
        harness.end_input()
        return timed_outputs(harness)

    once = drive()
    assert len(once) == 12
    assert drive(forced_replay=True) == once


@pytest.mark.executes_once
def test_inputs_beyond_the_queue_hold_too(hold_harness: MakeHarness) -> None:
    harness = hold_harness(config={"queue.max-per-key": 2})
    for number in range(30):
        harness.push(("a", number), timestamp=number)
    harness.restore(harness.snapshot())
    CLOSED.add(20)
    harness.push(("a", 30), timestamp=30)
    harness.watermark(30)
    while len(harness.outputs) < 20:
        harness.advance_time(100)
    assert watermark_behind(harness) == 19
    CLOSED.clear()
    harness.run_until_idle()
    assert watermark_behind(harness) == 30
    assert timed_outputs(harness) == [(number, number) for number in range(31)]
    assert on_time(harness)


@pytest.mark.own_conditions
@pytest.mark.parametrize("forced", [{"forced_restart": True}, {"forced_replay": True}])
def test_forced_starts_of_several_subtasks_come_to_an_end(
    agent_harness: MakeHarness, forced: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each start registers a timer of the present time in each subtask, so firing one brings back the others.
    conditions = {"forced_restart": False, "forced_replay": False, "crash": None, **forced}
    harness = agent_harness(
        Caller,
        event_time=HOLD,
        parallelism=3,
        **conditions,
    )
    fired: list[Any] = []
    fire = harness._fire_timer

    def counted(*timer: Any) -> None:
        fired.append(timer)
        assert len(fired) < 500
        fire(*timer)

    monkeypatch.setattr(harness, "_fire_timer", counted)
    for key in range(6):
        harness.signal(key, "paid", 40)
    harness.advance_time(1)
