"""Event time that is held: timestamps of outputs, watermarks that wait, stragglers, restores."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, EventTime, InputEvent, OnError, OutputEvent, action
from flink_agents.api.errors import NoWatermarksError, OptionError
from flink_agents.api.event_time import LateOutputs
from flink_agents.runtime.metrics.metrics import LocalMetricGroup
from flink_agents.runtime.operator.event_time import ADVICE_SECONDS, HELD, STRAGGLERS, Hold
from flink_agents.testing import OperatorHarness

HOLD = EventTime.hold(hold_timeout="60 s")
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


@pytest.fixture
def make(agent_harness: MakeHarness) -> MakeHarness:
    def with_hold(**options: Any) -> OperatorHarness:
        options = {"event_time": HOLD, "settle": False, **options}
        return agent_harness(Caller, lambda record: record[0], **options)

    return with_hold


def left(harness: OperatorHarness) -> list[tuple[Any, int | None]]:
    return list(zip(harness.outputs, harness.timestamps, strict=True))


def test_a_watermark_waits_for_the_runs_that_are_older(make: MakeHarness) -> None:
    harness = make()
    for number in range(10):
        harness.push((number % 3, number), timestamp=100 * number)
    assert harness.outputs == []
    harness.watermark(450)
    assert set(left(harness)) >= {(n, 100 * n) for n in range(5)}
    harness.watermark(900)
    assert sorted(left(harness)) == [(n, 100 * n) for n in range(10)]


def test_a_watermark_below_does_not_wait(make: MakeHarness) -> None:
    CLOSED.add("later")
    harness = make()
    harness.push(("a", "later"), timestamp=1000)
    assert harness.watermark(999) == []
    CLOSED.clear()
    assert harness.watermark(1000) == ["later"]


@pytest.mark.executes_once
def test_each_output_has_the_timestamp_of_its_own_input(make: MakeHarness) -> None:
    """Out of order, equal, late, and without any timestamp; order of the key is kept."""
    harness = make()
    inputs = [("x", 3000), ("y", 1000), ("z", 1000), ("u", None), ("v", 2000)]
    for record, at in inputs:
        harness.push(("a", record), timestamp=at)
    harness.watermark(3000)
    assert left(harness) == inputs
    harness.push(("a", "late"), timestamp=500)
    harness.push(("a", "none"))
    harness.watermark(3001)
    harness.settle()
    assert left(harness)[5:] == [("late", 500), ("none", None)]
    assert harness.run_metrics[STRAGGLERS] == 0


def test_a_watermark_waits_for_what_is_before_in_the_queue(make: MakeHarness) -> None:
    harness = make()
    harness.push(("a", 1), timestamp=9000)
    harness.push(("a", 2), timestamp=1000)
    assert harness.watermark(1000) == [1, 2]
    assert harness.timestamps == [9000, 1000]


def test_inline_runs_side_outputs_and_dead_letters(make: MakeHarness) -> None:
    harness = make()
    assert harness.push(("a", "now"), timestamp=7) == ["now"]
    assert harness.push(("a", "now")) == ["now"]
    harness.push(("a", "bad"), timestamp=8)
    assert harness.timestamps == [7, None]
    assert [letter.timestamp for letter in harness.dead_letters] == [8]
    assert harness.state("a").event_timers == set()


@pytest.mark.executes_once
def test_no_timer_is_left_behind(make: MakeHarness) -> None:
    harness = make()
    for at in (5, 5, 3, 9):
        harness.push(("a", at), timestamp=at)
    harness.settle()
    assert left(harness) == [(5, 5), (5, 5), (3, 3), (9, 9)]
    assert harness.state("a").event_timers == set()


def test_without_hold_there_are_no_timers_at_timestamps(make: MakeHarness) -> None:
    harness = make(event_time=EventTime.none())
    CLOSED.add(1)
    harness.push(("a", 1), timestamp=5)
    assert not [at for at in harness.state("a").event_timers if at < 2**62]
    assert harness.watermark(10) == []
    CLOSED.clear()
    assert harness.end_input() == [1]
    assert harness.timestamps == []


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


# -- stragglers ----------------------------------------------------------------------


@pytest.mark.executes_once
@pytest.mark.parametrize("late", LateOutputs)
def test_stragglers_follow_the_policy(make: MakeHarness, late: LateOutputs) -> None:
    CLOSED.add("slow")
    harness = make(event_time=EventTime.hold(hold_timeout=IMPATIENT, late=late))
    harness.push(("a", "slow"), timestamp=10)
    harness.push(("a", "behind"), timestamp=20)
    harness.push(("a", "after"), timestamp=90)
    assert harness.watermark(20) == []
    CLOSED.clear()
    harness.settle()
    everything = [("slow", 10), ("behind", 20), ("after", 90)]
    assert left(harness) == (everything if late is LateOutputs.EMIT else everything[2:])
    assert harness.late_outputs == (["slow", "behind"] if late is LateOutputs.SIDE else [])
    # Only the main output is concerned.
    assert [record for _, record in harness.side_output("seen")] == ["slow", "behind", "after"]
    assert harness.memory("a") == {"count": 3}
    assert harness.run_metrics[STRAGGLERS] == 2


@pytest.mark.executes_once
def test_one_endless_run_costs_one_timeout(make: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Hold, "waited", lambda self, since: waits.append(since))
    CLOSED.add("endless")
    harness = make(event_time=EventTime.hold(hold_timeout="50 ms"))
    harness.push(("a", "endless"), timestamp=0)
    harness.watermark(0)
    assert waits
    waits.clear()
    for at in range(1, 20):
        harness.push(("a", at), timestamp=at)
        harness.watermark(at)
    assert (waits, harness.outputs) == ([], [])
    CLOSED.clear()
    harness.settle()
    assert left(harness) == [("endless", 0), *((at, at) for at in range(1, 20))]


@pytest.mark.executes_once
def test_after_a_straggler_a_key_is_held_again(make: MakeHarness) -> None:
    harness = make(event_time=EventTime.hold(hold_timeout=IMPATIENT, late="drop"))
    CLOSED.add("slow")
    harness.push(("a", "slow"), timestamp=1)
    harness.watermark(1)
    CLOSED.clear()
    harness.settle()
    CLOSED.add("slower")
    harness.push(("a", "slower"), timestamp=5)
    assert harness.watermark(4) == []
    CLOSED.clear()
    harness.settle()
    assert left(harness) == [("slower", 5)]
    assert harness.run_metrics[STRAGGLERS] == 1


def test_all_keys_share_the_time_of_one_watermark() -> None:
    clock = [0.0]
    hold = Hold(EventTime.hold(hold_timeout="10 s"), LocalMetricGroup(), monotonic=lambda: clock[0])
    for key in "ab":
        hold.noted(key, 0)
        hold.note(key, 0, 5)
    assert hold.may_wait("a", 0, watermark=7)
    clock[0] = 9.9
    assert hold.may_wait("b", 0, watermark=7)
    clock[0] = 10.0
    assert not hold.may_wait("b", 0, watermark=7)
    assert hold.may_wait("b", 0, watermark=8)


# -- restores ------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
def test_held_timers_come_back_from_a_checkpoint(make: MakeHarness, parallelism: int) -> None:
    harness = make(max_parallelism=16)
    CLOSED.add("blocked")
    for number in range(20):
        for place, record in enumerate(("blocked", number)):
            harness.push((number, record), timestamp=100 + 10 * number + place)
    snapshot = harness.snapshot()
    everything = [100 + 10 * number + place for number in range(20) for place in (0, 1)]
    CLOSED.clear()
    for _ in range(2):
        harness.restore(snapshot, parallelism)
        assert harness.outputs == harness.timestamps == []
        harness.watermark(100 + 10 * 9 + 5)
        assert {at for _, at in left(harness)} >= set(everything[:20])
        harness.watermark(1000)
        assert sorted(filter(None, harness.timestamps)) == everything
        assert {at: record for record, at in left(harness)}[101 + 10 * 7] == 7
        harness.current_watermark = -(2**63)


@pytest.mark.executes_once
def test_restored_keys_start_before_the_first_is_waited_for(
    make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make()
    for key in range(50):
        harness.push((key, key), timestamp=key)
    harness.restore(harness.snapshot())
    [task] = harness._subtasks
    busy: list[int] = []
    wait = task.processor._wait_in_time

    def spy(*args: Any) -> None:
        busy.append(len(task.processor.busy_keys))
        wait(*args)

    monkeypatch.setattr(task.processor, "_wait_in_time", spy)
    harness.watermark(100)
    assert busy[0] == 50
    assert sorted(harness.outputs) == list(range(50))


@pytest.mark.executes_once
@pytest.mark.parametrize("seed", range(10))
def test_all_restored_keys_start_before_any_is_waited_for(
    seed: int, make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many inputs a key has: else the first one takes the time of the others."""
    chance = random.Random(seed)
    harness = make()
    keys = range(chance.randrange(2, 6))
    for number in range(20):
        key = chance.choice(keys) if number >= len(keys) else number
        harness.push((key, number), timestamp=chance.randrange(99))
    harness.restore(harness.snapshot())
    [task] = harness._subtasks
    busy: list[int] = []
    wait = task.processor._wait_in_time

    def spy(*args: Any) -> None:
        busy.append(len(task.processor.busy_keys))
        wait(*args)

    monkeypatch.setattr(task.processor, "_wait_in_time", spy)
    harness.watermark(100)
    assert busy[0] == len(keys)
    assert sorted(harness.outputs) == list(range(20))
    assert harness.run_metrics[STRAGGLERS] == 0


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
    CLOSED.clear()
    harness.watermark(4)
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


def test_inputs_beyond_the_queue_are_held_too(make: MakeHarness) -> None:
    harness = make(config={"queue.max-per-key": 2})
    for number in range(30):
        harness.push(("a", number), timestamp=number)
    harness.restore(harness.snapshot())
    harness.push(("a", 30), timestamp=30)
    harness.watermark(25)
    assert harness.outputs[:26] == list(range(26))
    harness.watermark(30)
    assert left(harness) == [(number, number) for number in range(31)]


# -- what is said --------------------------------------------------------------------


def test_timestamps_without_watermarks_are_refused(make: MakeHarness) -> None:
    harness = make(watermarks=False)
    harness.push(("a", "now"))
    with pytest.raises(NoWatermarksError, match="timestamp 5"):
        harness.push(("a", "now"), timestamp=5)
    assert harness.outputs == ["now"]


def test_holds_are_counted_and_advice_is_given(caplog: pytest.LogCaptureFixture) -> None:
    clock, metrics = [0.0], LocalMetricGroup()
    hold = Hold(EventTime.hold("250 ms"), metrics, monotonic=lambda: clock[0])
    with caplog.at_level(logging.WARNING):
        clock[0] = ADVICE_SECONDS
        hold.waited(since=clock[0] - 0.5)
        assert caplog.messages == []
        for _ in range(16):
            hold.waited(since=clock[0])
            clock[0] += ADVICE_SECONDS / 16
            hold.waited(since=clock[0] - 0.125)
    [message] = caplog.messages
    assert "expected_latency (now 0.25 s)" in message
    assert dict(metrics.values())[HELD] == 500 + 16 * 125


def test_options_are_checked() -> None:
    assert EventTime.hold("2 s") == EventTime.hold(timedelta(seconds=2), timedelta(seconds=30), "emit")
    assert not EventTime.none().holds
    for wrong in ({"expected_latency": "soon"}, {"hold_timeout": "0 s"}, {"late": "lose"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            EventTime.hold(**wrong)
