"""Event time that is held: timestamps of outputs, the low watermark behind, stragglers, restores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, EventTime, InputEvent, OnError, OutputEvent, action
from flink_agents.api.errors import NoWatermarksError, OptionError, TimestampRangeError
from flink_agents.api.event_time import LATE_TAG, LateOutputs
from flink_agents.runtime.operator.low_watermark import (
    BEHIND,
    FIRST_MS,
    HELD_MS,
    LAST_MS,
    NO_TIMESTAMP,
    PROGRESS_MS,
    STRAGGLERS,
)
from flink_agents.runtime.operator.processor import DRAIN
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once

HOLD = EventTime.hold(hold_timeout=timedelta(days=100), idle_timeout="9 s")
ALIVE_MS = 3000
IMPATIENT = timedelta(milliseconds=1)

MakeHarness = Callable[..., OperatorHarness]

CLOSED: set[Any] = set()
"""Records whose call does not return."""


@pytest.fixture(autouse=True)
def all_open() -> Iterator[None]:
    CLOSED.clear()
    yield
    CLOSED.clear()


class Caller(Agent):
    """Echoes a pair of key and record after a call; ``"now"`` without one."""

    side_outputs = {"seen": None}

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    def read(self, event: InputEvent, ctx: Any) -> Any:
        ctx.emit_to("seen", event.input)
        ctx.short_term_memory.set("count", ctx.short_term_memory.get("count", 0) + 1)
        if event.input[1] == "bad":
            raise ValueError("bad luck")
        output = OutputEvent(output=event.input[1])
        return output if event.input[1] == "now" else self.call(event.input[1], output)

    async def call(self, record: Any, output: OutputEvent) -> OutputEvent:
        await asyncio.sleep(0.002)
        while record in CLOSED:
            await asyncio.sleep(0.001)
        return output


@pytest.fixture(params=[True, False], ids=["heartbeat", "timers"])
def make(agent_harness: MakeHarness, request: pytest.FixtureRequest) -> MakeHarness:
    def with_hold(**options: Any) -> OperatorHarness:
        options = {"event_time": HOLD, "settle": False, "heartbeat": request.param, **options}
        return agent_harness(Caller, lambda record: record[0], **options)

    return with_hold


def left(harness: OperatorHarness) -> list[tuple[Any, int | None]]:
    return list(zip(harness.outputs, harness.timestamps, strict=True))


def on_time(harness: OperatorHarness) -> bool:
    """Whether all outputs left before the watermark behind reached them."""
    return all(
        at is None or at > low for at, low in zip(harness.timestamps, harness.lows, strict=True)
    ) and all(at is None or at > low for tag in ("seen",) for at, low in harness.side_times(tag))


def look(harness: OperatorHarness) -> int | None:
    """The watermark behind, as soon as the operator has had the time to tell."""
    harness.advance(HELD_MS)
    return harness.low_watermark


def test_the_watermark_behind_stays_behind_what_is_not_committed(make: MakeHarness) -> None:
    harness = make()
    for number in range(10):
        harness.push((number % 3, number), timestamp=100 * number)
    CLOSED.update(range(3, 10))
    assert harness.low_watermark is None
    harness.watermark(450)
    assert look(harness) in (-1, 99, 199, 299)
    while len(harness.outputs) < 3:
        harness.advance(1000)
    assert look(harness) == 299
    CLOSED.clear()
    harness.settle()
    assert look(harness) == 450
    harness.watermark(2000)
    assert look(harness) == 2000
    assert sorted(left(harness)) == [(n, 100 * n) for n in range(10)]
    assert on_time(harness)


def test_outputs_that_are_younger_pass_the_run_that_is_waited_for(make: MakeHarness) -> None:
    CLOSED.add("slow")
    harness = make()
    harness.push(("a", "slow"), timestamp=1000)
    harness.push(("b", "quick"), timestamp=5000)
    harness.watermark(6000)
    while not harness.outputs:
        harness.advance(10)
    assert (left(harness), look(harness)) == ([("quick", 5000)], 999)
    CLOSED.clear()
    harness.settle()
    assert (left(harness)[1:], look(harness), on_time(harness)) == ([("slow", 1000)], 6000, True)


def test_a_watermark_below_waits_for_nobody(make: MakeHarness) -> None:
    CLOSED.add("later")
    harness = make()
    harness.push(("a", "later"), timestamp=1000)
    harness.watermark(999)
    assert look(harness) == 999
    harness.watermark(2000)
    assert look(harness) == 999


@pytest.mark.executes_once
def test_each_output_has_the_timestamp_of_its_own_input(make: MakeHarness) -> None:
    """Out of order, equal, late, and without any timestamp; order of the key is kept."""
    harness = make()
    inputs = [("x", 3000), ("y", 1000), ("z", 1000), ("u", None), ("v", 2000)]
    for record, at in inputs:
        harness.push(("a", record), timestamp=at)
    harness.watermark(3000)
    harness.settle()
    assert left(harness) == inputs
    assert on_time(harness)
    assert look(harness) == 3000
    harness.push(("a", "late"), timestamp=500)
    harness.push(("a", "none"))
    harness.settle()
    assert left(harness)[5:] == [("late", 500), ("none", None)]
    assert harness.run_metrics[STRAGGLERS] == 0


def test_an_input_that_is_late_holds_nothing(make: MakeHarness) -> None:
    CLOSED.update(("late", "in time"))
    harness = make()
    harness.push(("a", "now"), timestamp=1)
    harness.watermark(1000)
    assert look(harness) == 1000
    harness.push(("a", "late"), timestamp=1000)
    harness.push(("b", "in time"), timestamp=2000)
    harness.watermark(3000)
    assert look(harness) == 1999


def test_inline_runs_side_outputs_and_dead_letters(make: MakeHarness) -> None:
    harness = make()
    assert harness.push(("a", "now"), timestamp=7) == ["now"]
    assert harness.push(("a", "now")) == ["now"]
    harness.push(("a", "bad"), timestamp=8)
    assert harness.timestamps == [7, None]
    assert [letter.timestamp for letter in harness.dead_letters] == [8]
    assert [at for at, _ in harness.side_times("seen")] == [7, None]
    harness.watermark(9)
    assert look(harness) == 9


def test_without_hold_there_are_no_timers_of_it(make: MakeHarness) -> None:
    harness = make(event_time=EventTime.none())
    CLOSED.add(1)
    harness.push(("a", 1), timestamp=5)
    assert not [at for at in harness.state("a").event_timers if at < 2**62]
    assert harness.watermark(10) == []
    CLOSED.clear()
    assert harness.end_input() == [1]
    assert harness.timestamps == harness.lows == []


@pytest.mark.parametrize(
    "event_time", [EventTime.none(), EventTime.hold(hold_timeout=IMPATIENT, late="drop")]
)
def test_the_end_of_the_input_waits_for_all(make: MakeHarness, event_time: EventTime) -> None:
    """However long it takes: nothing is late before the last watermark has gone on."""
    harness = make(event_time=event_time)
    for number in range(300):
        harness.push((number % 100, number), timestamp=number)
    harness.end_input()
    assert sorted(harness.outputs) == list(range(300))
    assert not [key for key in range(100) if harness.pending(key)]
    assert not event_time.holds or on_time(harness)


@pytest.mark.executes_once
def test_at_the_end_of_the_input_a_subtask_that_waits_gives_signs(make: MakeHarness) -> None:
    """Else the streams behind would go on without it."""
    harness = make(event_time=EventTime.hold(idle_timeout="0.1 s"))
    CLOSED.add("slow")
    harness.push(("a", "slow"), timestamp=1)
    [task] = harness._subtasks
    assert task.backend.behind is not None
    rounds: list[int] = []

    def wait_for_progress(seen: int, seconds: float) -> bool:
        rounds.append(seen)
        harness.advance(0)
        if len(rounds) == 20:
            CLOSED.clear()
        return wait(seen, seconds)

    loop: Any = task.processor._agent_loop
    wait, loop.wait_for_progress = loop.wait_for_progress, wait_for_progress
    fired: list[int] = []
    on_timer = task.processor.on_timer

    def counted(key_text: str, timestamp: int, timers: Any) -> Any:
        fired.append(timestamp)
        return on_timer(key_text, timestamp, timers)

    task.processor.on_timer = counted  # type: ignore[method-assign]
    assert harness.end_input() == ["slow"]
    assert fired.count(DRAIN) > 1


# -- when a stream behind hears of progress -------------------------------------------


def test_progress_needs_no_output(make: MakeHarness) -> None:
    harness = make()
    harness.push(("a", 1), timestamp=10)
    harness.settle()
    for at in (100, 200, 300):
        harness.watermark(at)
        assert look(harness) == at
    assert harness.outputs == [1]


def test_watermarks_of_each_record_are_told_together(make: MakeHarness) -> None:
    harness = make()
    harness.push(("a", "now"), timestamp=1)
    look(harness)
    [task] = harness._subtasks
    looks: list[int] = []
    read = task.backend.current_watermark
    task.backend.current_watermark = lambda: looks.append(1) or read()  # type: ignore[method-assign,func-returns-value]
    for at in range(100):
        harness.watermark(at)
    assert len(looks) <= 2
    harness.advance(PROGRESS_MS)
    assert harness.low_watermark == 99


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_subtask_that_had_a_key_is_never_silent(make: MakeHarness, parallelism: int) -> None:
    harness = make(parallelism=parallelism, max_parallelism=16)
    for key in range(16):
        harness.push((key, "now"), timestamp=1)
    heard: dict[int, list[int]] = {}
    for number, task in enumerate(harness._subtasks):
        behind: Any = task.backend.behind
        heard[number] = []

        def row(tag: str = "", number: int = number, row: Any = behind.row) -> int:
            if not tag:
                heard[number].append(harness.current_time)
            return row(tag)

        behind.row = row
    begin = harness.current_time
    harness.advance(60_000)
    for times in heard.values():
        gaps = [after - before for before, after in zip([begin, *times], times, strict=False)]
        assert gaps
        assert max(gaps) <= ALIVE_MS + HELD_MS
        assert times[-1] > begin + 60_000 - 2 * ALIVE_MS


def test_a_first_input_gives_a_sign_at_once(make: MakeHarness) -> None:
    CLOSED.add("slow")
    harness = make()
    harness.watermark(50)
    harness.push(("a", "slow"), timestamp=100)
    [task] = harness._subtasks
    assert task.backend.behind is not None
    assert not task.backend.behind.is_idle


def test_times_that_tables_do_not_know(make: MakeHarness) -> None:
    harness = make()
    for at in (FIRST_MS, LAST_MS):
        harness.push(("a", "now"), timestamp=at)
    for at in (FIRST_MS - 1, LAST_MS + 1):
        with pytest.raises(TimestampRangeError, match=str(at)):
            harness.push(("a", "now"), timestamp=at)
    assert harness.timestamps == [FIRST_MS, LAST_MS]


@pytest.mark.parametrize("watermark", [NO_TIMESTAMP + 1, FIRST_MS - 1, LAST_MS + 1, 2**63 - 2])
def test_watermarks_that_tables_do_not_know(make: MakeHarness, watermark: int) -> None:
    harness = make()
    harness.push(("a", "now"), timestamp=5)
    harness.watermark(watermark)
    assert look(harness) == (None if watermark < 0 else LAST_MS)


def test_event_times_of_the_future_delay_no_commit(make: MakeHarness) -> None:
    """A timer in event time may fire at a time that the wall clock reaches in a hundred years."""
    harness = make()
    future = harness.current_time + 100 * 365 * 86_400_000
    harness.push(("a", 1), timestamp=future)
    harness.advance(HELD_MS)
    harness.watermark(future + 10)
    harness.watermark(future + 20)
    harness.settle()
    look(harness)
    harness.push(("b", 2), timestamp=future + 30)
    soon = harness.current_time + ALIVE_MS // 3
    assert [at for key in "ab" for at in harness.state(key).processing_timers if at < soon]
    harness.settle()
    assert left(harness) == [(1, future), (2, future + 30)]
    assert on_time(harness)


# -- stragglers ----------------------------------------------------------------------


@pytest.mark.executes_once
@pytest.mark.parametrize("late", LateOutputs)
def test_stragglers_follow_the_policy(make: MakeHarness, late: LateOutputs) -> None:
    CLOSED.add("slow")
    harness = make(event_time=EventTime.hold(hold_timeout="1 s", late=late))
    harness.push(("a", "slow"), timestamp=10)
    harness.push(("a", "behind"), timestamp=20)
    harness.push(("a", "after"), timestamp=90)
    harness.watermark(20)
    harness.advance(900)
    assert harness.low_watermark == 9
    harness.advance(200)
    assert harness.low_watermark == 20
    CLOSED.clear()
    harness.settle()
    everything = [("slow", 10), ("behind", 20), ("after", 90)]
    assert left(harness) == (everything if late is LateOutputs.EMIT else everything[2:])
    assert harness.late_outputs == (["slow", "behind"] if late is LateOutputs.SIDE else [])
    assert [at for at, _ in harness.side_times(LATE_TAG)] == ([10, 20] if late is LateOutputs.SIDE else [])
    # Only the main output is concerned.
    assert [record for _, record in harness.side_output("seen")] == ["slow", "behind", "after"]
    assert harness.memory("a") == {"count": 3}
    assert harness.run_metrics[STRAGGLERS] == 2


@pytest.mark.executes_once
def test_one_endless_run_costs_one_timeout(make: MakeHarness) -> None:
    CLOSED.add("endless")
    harness = make(event_time=EventTime.hold(hold_timeout="50 ms"))
    harness.push(("a", "endless"), timestamp=0)
    harness.watermark(0)
    harness.advance(50 + 2 * HELD_MS)
    assert harness.low_watermark == 0
    for at in range(1, 20):
        harness.push(("a", at), timestamp=at)
        harness.watermark(at)
        harness.advance(PROGRESS_MS)
        assert harness.low_watermark == at
    assert harness.outputs == []
    CLOSED.clear()
    harness.settle()
    assert left(harness) == [("endless", 0), *((at, at) for at in range(1, 20))]


@pytest.mark.executes_once
def test_after_a_straggler_a_key_holds_again(make: MakeHarness) -> None:
    harness = make(event_time=EventTime.hold(hold_timeout="1 s", late="drop"))
    CLOSED.add("slow")
    harness.push(("a", "slow"), timestamp=1)
    harness.watermark(1)
    harness.advance(2000)
    CLOSED.clear()
    harness.settle()
    CLOSED.add("slower")
    harness.push(("a", "slower"), timestamp=5)
    harness.watermark(10)
    assert look(harness) == 4
    CLOSED.clear()
    harness.settle()
    assert left(harness) == [("slower", 5)]
    assert harness.run_metrics[STRAGGLERS] == 1


def test_what_another_run_keeps_in_time_is_no_straggler(make: MakeHarness) -> None:
    CLOSED.update(("endless", "other"))
    harness = make(event_time=EventTime.hold(hold_timeout="60 s", late="drop"))
    harness.push(("a", "endless"), timestamp=5)
    harness.watermark(5)
    harness.advance(61_000)
    harness.push(("a", "behind"), timestamp=20)
    for record in (1, 2, "other"):
        harness.push(("b", record), timestamp=20)
    harness.watermark(30)
    while len(harness.outputs) < 2:
        harness.advance(1)
    assert look(harness) == 19
    CLOSED.discard("endless")
    while len(harness.outputs) < 3:
        harness.advance(1)
    assert left(harness) == [(1, 20), (2, 20), ("behind", 20)]
    assert harness.run_metrics[STRAGGLERS] == 1


class Durable(Agent):
    """Makes a durable call for each input, so that an attempt knows which came before."""

    side_outputs = {"seen": None}

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(echo, event.input[1])
        while event.input[1] in CLOSED:
            await asyncio.sleep(0.001)
        return OutputEvent(output=event.input[1])


def echo(value: Any) -> Any:
    return value


@pytest.mark.executes_once
@pytest.mark.parametrize("heartbeat", [True, False], ids=["heartbeat", "timers"])
def test_a_run_that_is_held_back_for_another_input_holds_nothing(
    heartbeat: bool, agent_harness: MakeHarness
) -> None:
    """The input that it waits for may be behind the watermark: both would wait for each other."""
    harness = agent_harness(
        Durable,
        lambda record: record[0],
        event_time=HOLD,
        settle=False,
        heartbeat=heartbeat,
        config={"action-state.reorder-timeout": timedelta(days=100)},
    )
    before = harness.snapshot()
    for at, record in enumerate(("first", "second"), start=1):
        harness.push(("a", record), timestamp=at)
    harness.settle()
    harness.current_watermark = NO_TIMESTAMP
    harness.restore(before)
    CLOSED.add("first")
    harness.push(("a", "second"), timestamp=2)
    harness.watermark(50)
    while look(harness) != 50:
        assert harness.outputs == []
    harness.push(("a", "first"), timestamp=1)
    CLOSED.clear()
    harness.settle()
    assert left(harness) == [("first", 1), ("second", 2)]


# -- restores ------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_waits_holds_after_a_restore(make: MakeHarness, parallelism: int) -> None:
    harness = make(max_parallelism=16)
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
        harness.advance(10 * ALIVE_MS)
        assert harness.low_watermark is not None
        assert harness.low_watermark == 99
        CLOSED.clear()
        harness.settle()
        assert look(harness) == 500
        assert sorted(filter(None, harness.timestamps)) == everything
        assert on_time(harness)
        assert {at: record for record, at in left(harness)}[101 + 10 * 7] == 7


@pytest.mark.executes_once
def test_restored_keys_without_work_hold_nothing(make: MakeHarness) -> None:
    harness = make()
    for key in range(5):
        harness.push((key, "now"), timestamp=key)
    harness.restore(harness.snapshot())
    harness.watermark(100)
    assert look(harness) == 100


@pytest.mark.executes_once
def test_restored_inputs_can_be_committed_before_their_time(make: MakeHarness) -> None:
    harness = make()
    CLOSED.add("last")
    for at, record in enumerate(["one", "two", "three", "last"]):
        harness.push(("a", record), timestamp=at)
    harness.restore(harness.snapshot())
    harness.push(("a", "new"), timestamp=4)
    [task] = harness._subtasks
    while len(harness.outputs) < 3:
        ended = task.processor.ended
        harness.advance(1000)
        task.processor.wait_for_progress(ended - 1, 60)
    harness.watermark(4)
    assert look(harness) == 2
    CLOSED.clear()
    harness.settle()
    assert left(harness) == [("one", 0), ("two", 1), ("three", 2), ("last", 3), ("new", 4)]
    assert harness.run_metrics[STRAGGLERS] == 0


@pytest.mark.parametrize("inline", [True, False])
def test_replay_gives_the_same_outputs_and_timestamps(make: MakeHarness, inline: bool) -> None:
    def drive(**options: Any) -> list[tuple[Any, int | None]]:
        harness = make(settle=True, config={"run.inline": inline}, **options)
        for number in range(12):
            at = None if number == 7 else 10 * (number ^ 1)
            harness.push((number % 2, "now" if number == 4 else number), timestamp=at)
            harness.advance(5)
            harness.watermark(10 * number - 40)
        harness.end_input()
        return left(harness)

    once = drive()
    assert len(once) == 12
    assert drive(forced_replay=True) == once


def test_inputs_beyond_the_queue_hold_too(make: MakeHarness) -> None:
    harness = make(config={"queue.max-per-key": 2})
    for number in range(30):
        harness.push(("a", number), timestamp=number)
    harness.restore(harness.snapshot())
    CLOSED.add(20)
    harness.push(("a", 30), timestamp=30)
    harness.watermark(30)
    while len(harness.outputs) < 20:
        harness.advance(100)
    assert look(harness) == 19
    CLOSED.clear()
    harness.settle()
    assert look(harness) == 30
    assert left(harness) == [(number, number) for number in range(31)]
    assert on_time(harness)


# -- what is said --------------------------------------------------------------------


def test_timestamps_without_watermarks_are_refused(make: MakeHarness) -> None:
    harness = make(watermarks=False)
    harness.push(("a", "now"))
    with pytest.raises(NoWatermarksError, match="timestamp 5"):
        harness.push(("a", "now"), timestamp=5)
    assert harness.outputs == ["now"]


def test_how_far_the_watermark_is_behind_is_measured(make: MakeHarness) -> None:
    CLOSED.add("slow")
    harness = make()
    harness.push(("a", "slow"), timestamp=10)
    harness.watermark(100)
    look(harness)
    assert harness.run_metrics[BEHIND] == 91
    CLOSED.clear()
    harness.settle()
    look(harness)
    assert harness.run_metrics[BEHIND] == 0


def test_options_are_checked() -> None:
    assert EventTime.hold() == EventTime.hold(
        hold_timeout=timedelta(seconds=30), late="emit", idle_timeout="10 s"
    )
    assert not EventTime.none().holds
    for wrong in ({"hold_timeout": "0 s"}, {"late": "lose"}, {"idle_timeout": "1 ms"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            EventTime.hold(**wrong)


def test_the_expected_latency_is_not_needed_any_more() -> None:
    with pytest.warns(DeprecationWarning, match="Leave it out"):
        assert EventTime.hold("2 s") == EventTime.hold()
