"""Event time that is held: timestamps of outputs, and the low watermark behind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hold_tools import ALIVE_MS, CLOSED, IMPATIENT, on_time, timed_outputs, watermark_behind

from flink_agents import EventTime
from flink_agents.api.errors import NoWatermarksError, OptionError, TimestampRangeError
from flink_agents.runtime.operator.low_watermark import (
    BEHIND,
    FIRST_MS,
    HELD_MS,
    LAST_MS,
    LATE_OUTPUTS,
    NO_TIMESTAMP,
    PROGRESS_MS,
)
from flink_agents.runtime.operator.services.service import DRAIN
from flink_agents.testing import OperatorHarness

MakeHarness = Callable[..., OperatorHarness]


@pytest.mark.executes_once
def test_the_watermark_behind_stays_behind_what_is_not_committed(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    for number in range(10):
        harness.push((number % 3, number), timestamp=100 * number)
    CLOSED.update(range(3, 10))
    assert harness.output_watermark is None
    harness.watermark(450)
    assert watermark_behind(harness) in (-1, 99, 199, 299)
    while len(harness.outputs) < 3:
        harness.advance_time(1000)
    assert watermark_behind(harness) == 299
    CLOSED.clear()
    harness.run_until_idle()
    assert watermark_behind(harness) == 450
    harness.watermark(2000)
    assert watermark_behind(harness) == 2000
    assert sorted(timed_outputs(harness)) == [(n, 100 * n) for n in range(10)]
    assert on_time(harness)


@pytest.mark.executes_once
def test_outputs_that_are_younger_pass_the_run_that_is_waited_for(hold_harness: MakeHarness) -> None:
    CLOSED.add("slow")
    harness = hold_harness()
    harness.push(("a", "slow"), timestamp=1000)
    harness.push(("b", "quick"), timestamp=5000)
    harness.watermark(6000)
    while not harness.outputs:
        harness.advance_time(10)
    assert (timed_outputs(harness), watermark_behind(harness)) == ([("quick", 5000)], 999)
    CLOSED.clear()
    harness.run_until_idle()
    assert (timed_outputs(harness)[1:], watermark_behind(harness), on_time(harness)) == (
        [("slow", 1000)],
        6000,
        True,
    )


def test_a_watermark_below_waits_for_nobody(hold_harness: MakeHarness) -> None:
    CLOSED.add("later")
    harness = hold_harness()
    harness.push(("a", "later"), timestamp=1000)
    harness.watermark(999)
    assert watermark_behind(harness) == 999
    harness.watermark(2000)
    assert watermark_behind(harness) == 999


@pytest.mark.executes_once
def test_each_output_has_the_timestamp_of_its_own_input(hold_harness: MakeHarness) -> None:
    """Out of order, equal, late, and without any timestamp; order of the key is kept."""
    harness = hold_harness()
    inputs = [("x", 3000), ("y", 1000), ("z", 1000), ("u", None), ("v", 2000)]
    for record, at in inputs:
        harness.push(("a", record), timestamp=at)
    harness.watermark(3000)
    harness.run_until_idle()
    assert timed_outputs(harness) == inputs
    assert on_time(harness)
    assert watermark_behind(harness) == 3000
    harness.push(("a", "late"), timestamp=500)
    harness.push(("a", "none"))
    harness.run_until_idle()
    assert timed_outputs(harness)[5:] == [("late", 500), ("none", None)]
    assert harness.run_metrics[LATE_OUTPUTS] == 0


@pytest.mark.executes_once
def test_an_input_that_is_late_holds_nothing(hold_harness: MakeHarness) -> None:
    CLOSED.update(("late", "in time"))
    harness = hold_harness()
    harness.push(("a", "now"), timestamp=1)
    harness.watermark(1000)
    assert watermark_behind(harness) == 1000
    harness.push(("a", "late"), timestamp=1000)
    harness.push(("b", "in time"), timestamp=2000)
    harness.watermark(3000)
    assert watermark_behind(harness) == 1999


def test_inline_runs_side_outputs_and_dead_letters(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    assert harness.push(("a", "now"), timestamp=7) == ["now"]
    assert harness.push(("a", "now")) == ["now"]
    harness.push(("a", "bad"), timestamp=8)
    assert harness.timestamps == [7, None]
    assert [letter.timestamp for letter in harness.dead_letters] == [8]
    assert [at for at, _ in harness.side_times("seen")] == [7, None]
    harness.watermark(9)
    assert watermark_behind(harness) == 9


def test_without_hold_there_are_no_timers_of_it(hold_harness: MakeHarness) -> None:
    harness = hold_harness(event_time=EventTime.ignore())
    CLOSED.add(1)
    harness.push(("a", 1), timestamp=5)
    assert not [at for at in harness.state("a").event_timers if at < 2**62]
    assert harness.watermark(10) == []
    CLOSED.clear()
    assert harness.end_input() == [1]
    assert harness.timestamps == harness.lows == []


@pytest.mark.parametrize(
    "event_time", [EventTime.ignore(), EventTime.hold_watermarks(max_hold=IMPATIENT, late="drop")]
)
def test_the_end_of_the_input_waits_for_all(hold_harness: MakeHarness, event_time: EventTime) -> None:
    """However long it takes: nothing is late before the last watermark has gone on."""
    harness = hold_harness(event_time=event_time)
    for number in range(90):
        harness.push((number % 30, number), timestamp=number)
    harness.end_input()
    assert sorted(harness.outputs) == list(range(90))
    assert not [key for key in range(30) if harness.pending(key)]
    assert not event_time.holds or on_time(harness)


@pytest.mark.executes_once
def test_at_the_end_of_the_input_a_subtask_that_waits_gives_signs(hold_harness: MakeHarness) -> None:
    """Else the streams behind would go on without it."""
    harness = hold_harness(event_time=EventTime.hold_watermarks(idle_timeout="0.1 s"))
    CLOSED.add("slow")
    harness.push(("a", "slow"), timestamp=1)
    [task] = harness._subtasks
    assert task.backend.downstream is not None
    rounds: list[int] = []

    def wait_for_progress(seen: int, seconds: float) -> bool:
        rounds.append(seen)
        harness.advance_time(0)
        if len(rounds) == 20:
            CLOSED.clear()
        return wait(seen, seconds)

    loop: Any = task.processor.loop_access.loop
    wait = loop.wait_for_progress
    loop.wait_for_progress = wait_for_progress
    fired: list[int] = []
    fire = task.heartbeat.fire

    def counted(timestamp: int, timers: Any) -> None:
        fired.append(timestamp)
        fire(timestamp, timers)

    task.heartbeat.fire = counted  # type: ignore[method-assign]
    assert harness.end_input() == ["slow"]
    assert fired.count(DRAIN) > 1


# -- when a stream behind hears of progress -------------------------------------------


@pytest.mark.executes_once
def test_progress_needs_no_output(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    harness.push(("a", 1), timestamp=10)
    harness.run_until_idle()
    for at in (100, 200, 300):
        harness.watermark(at)
        assert watermark_behind(harness) == at
    assert harness.outputs == [1]


@pytest.mark.executes_once
def test_watermarks_of_each_record_are_told_together(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    harness.push(("a", "now"), timestamp=1)
    watermark_behind(harness)
    [task] = harness._subtasks
    looks: list[int] = []
    read = task.backend.current_watermark
    task.backend.current_watermark = lambda: looks.append(1) or read()  # type: ignore[method-assign,func-returns-value]
    for at in range(100):
        harness.watermark(at)
    assert len(looks) <= 2
    harness.advance_time(PROGRESS_MS)
    assert harness.output_watermark == 99


@pytest.mark.executes_once
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_subtask_that_had_a_key_is_never_silent(hold_harness: MakeHarness, parallelism: int) -> None:
    harness = hold_harness(parallelism=parallelism, max_parallelism=16)
    for key in range(16):
        harness.push((key, "now"), timestamp=1)
    heard: dict[int, list[int]] = {}
    for number, task in enumerate(harness._subtasks):
        behind: Any = task.backend.downstream
        heard[number] = []

        def row(tag: str = "", number: int = number, row: Any = behind.accept_row) -> int:
            if not tag:
                heard[number].append(harness.current_time)
            return row(tag)

        behind.accept_row = row
    begin = harness.current_time
    harness.advance_time(60_000)
    for times in heard.values():
        gaps = [after - previous_time for previous_time, after in zip([begin, *times], times, strict=False)]
        assert gaps
        assert max(gaps) <= ALIVE_MS + HELD_MS
        assert times[-1] > begin + 60_000 - 2 * ALIVE_MS


def test_a_first_input_gives_a_sign_at_once(hold_harness: MakeHarness) -> None:
    CLOSED.add("slow")
    harness = hold_harness()
    harness.watermark(50)
    harness.push(("a", "slow"), timestamp=100)
    [task] = harness._subtasks
    assert task.backend.downstream is not None
    assert not task.backend.downstream.is_idle


def test_times_that_tables_do_not_know(hold_harness: MakeHarness) -> None:
    harness = hold_harness()
    for at in (FIRST_MS, LAST_MS):
        harness.push(("a", "now"), timestamp=at)
    for at in (FIRST_MS - 1, LAST_MS + 1):
        with pytest.raises(TimestampRangeError, match=str(at)):
            harness.push(("a", "now"), timestamp=at)
    assert harness.timestamps == [FIRST_MS, LAST_MS]


@pytest.mark.parametrize("watermark", [NO_TIMESTAMP + 1, FIRST_MS - 1, LAST_MS + 1, 2**63 - 2])
def test_watermarks_that_tables_do_not_know(hold_harness: MakeHarness, watermark: int) -> None:
    harness = hold_harness()
    harness.push(("a", "now"), timestamp=5)
    harness.watermark(watermark)
    assert watermark_behind(harness) == (None if watermark < 0 else LAST_MS)


def test_event_times_of_the_future_delay_no_commit(hold_harness: MakeHarness) -> None:
    """A timer in event time may fire at a time that the wall clock reaches in a hundred years."""
    harness = hold_harness()
    future = harness.current_time + 100 * 365 * 86_400_000
    harness.push(("a", 1), timestamp=future)
    harness.advance_time(HELD_MS)
    harness.watermark(future + 10)
    harness.watermark(future + 20)
    harness.run_until_idle()
    watermark_behind(harness)
    harness.push(("b", 2), timestamp=future + 30)
    soon = harness.current_time + ALIVE_MS // 3
    assert [at for key in "ab" for at in harness.state(key).processing_timers if at < soon]
    harness.run_until_idle()
    assert timed_outputs(harness) == [(1, future), (2, future + 30)]
    assert on_time(harness)


# -- what is said --------------------------------------------------------------------


def test_timestamps_without_watermarks_are_refused(hold_harness: MakeHarness) -> None:
    harness = hold_harness(watermarks=False)
    harness.push(("a", "now"))
    with pytest.raises(NoWatermarksError, match="timestamp 5"):
        harness.push(("a", "now"), timestamp=5)
    assert harness.outputs == ["now"]


def test_how_far_the_watermark_is_behind_is_measured(hold_harness: MakeHarness) -> None:
    CLOSED.add("slow")
    harness = hold_harness()
    harness.push(("a", "slow"), timestamp=10)
    harness.watermark(100)
    watermark_behind(harness)
    assert harness.run_metrics[BEHIND] == 91
    CLOSED.clear()
    harness.run_until_idle()
    watermark_behind(harness)
    assert harness.run_metrics[BEHIND] == 0


def test_options_are_checked() -> None:
    assert EventTime.hold_watermarks() == EventTime.hold_watermarks(
        max_hold=timedelta(seconds=30), late="emit", idle_timeout="10 s"
    )
    assert not EventTime.ignore().holds
    for wrong in ({"max_hold": "0 s"}, {"late": "lose"}, {"idle_timeout": "1 ms"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            EventTime.hold_watermarks(**wrong)
