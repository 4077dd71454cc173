"""Windows behind an agent: outputs keep their timestamps, and none is late."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    EventTime,
    InputEvent,
    OnError,
    OutputEvent,
    action,
)
from flink_agents.api.errors import (
    JobDefinitionError,
    JobFailedError,
    OptionError,
    UnknownSideOutputError,
)
from flink_agents.runtime.serde.keys import encode_key
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.minicluster.sources import restarting

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

HOLD = EventTime.hold_watermarks(max_hold="60 s")
BASE = 1_000_000
STEP = 20
"""Event time between two records, which is also their distance in time."""


class CallingAgent(Agent):
    """Calls something that takes 50 to 900 ms; sends every tenth record to a side output too."""

    side_outputs = {"tenth": int}

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = event.input
        await asyncio.sleep((50 + number * 7919 % 850) / 1000)
        if number % 10 == 0:
            ctx.emit_to("tenth", number)
        if number == 13:
            raise ValueError("bad luck")
        return OutputEvent(output=number)


def paced(number: int) -> int:
    time.sleep(STEP / 1000)
    return number


def timed(
    env: AgentsExecutionEnvironment,
    count: int,
    idle_partition: bool = False,
    pace: Callable[[int], int] = paced,
    at: Callable[[int], int] | None = None,
) -> Any:
    """Numbers with timestamps: those of ``at``, or each third is 50 ms older than the one before."""
    from pyflink.common import Duration, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return (at or stamp)(value)

    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(200))
    if idle_partition:
        strategy = strategy.with_idleness(Duration.of_millis(300))
    flink: Any = env.stream_env
    source = flink.from_source(
        NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "numbers"
    ).set_parallelism(1)
    numbers = source.map(pace).set_parallelism(1)
    if idle_partition:
        # Everything goes to the first of two partitions.
        numbers = numbers.partition_custom(lambda key, count: 0, lambda number: 0)
    return numbers.map(int).assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(Stamps()))


def stamp(number: int) -> int:
    return BASE + STEP * number - (50 if number % 3 == 2 else 0)


def windows(stream: Any) -> Any:
    """Start of each window of a second, and the sorted pairs of record and timestamp in it."""
    from pyflink.common import Time
    from pyflink.datastream import KeyedProcessFunction, ProcessWindowFunction
    from pyflink.datastream.window import TumblingEventTimeWindows

    class WithTimestamp(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value, ctx.timestamp()

    class Collect(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield context.window().start, sorted(elements)

    stamped = stream.key_by(lambda value: 0).process(WithTimestamp())
    return (
        stamped.key_by(lambda pair: 0)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(1000)))
        .process(Collect())
    )


def expected(numbers: Any, stamped: Callable[[int], int] = stamp) -> dict[int, list[tuple[int, int]]]:
    numbers_by_window: dict[int, list[tuple[int, int]]] = {}
    for number in numbers:
        at = stamped(number)
        numbers_by_window.setdefault(at // 1000 * 1000, []).append((number, at))
    return numbers_by_window


@pytest.mark.nightly
@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_windows_behind_an_agent_get_every_result(
    agents_environment: MakeEnvironment, parallelism: int
) -> None:
    env = agents_environment(parallelism=parallelism)
    numbers = env.from_datastream(timed(env, 150), lambda number: number % 17)
    applied = numbers.apply(CallingAgent, event_time=HOLD)
    collected_windows = env.collect(windows(applied.to_datastream()))
    tenth = env.collect(windows(applied.side_output("tenth")))
    dead = applied.dead_letters()
    letters = env.collect(dead)
    env.execute()
    assert dict(collected_windows) == expected(number for number in range(150) if number != 13)
    assert dict(tenth) == expected(range(0, 150, 10))
    assert [(letter.event.input, letter.timestamp) for letter in letters] == [(13, stamp(13))]


class StragglingAgent(Agent):
    """One record takes far longer than all others."""

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(3.5 if event.input == STRAGGLER else 0.02)
        return OutputEvent(output=event.input)


STRAGGLER = 5


@pytest.mark.nightly
@pytest.mark.parametrize(
    "late",
    [
        pytest.param("emit", marks=pytest.mark.nightly),
        pytest.param("drop", marks=pytest.mark.nightly),
        "side",
    ],
)
def test_stragglers_follow_the_policy(agents_environment: MakeEnvironment, late: str) -> None:
    env = agents_environment()
    hold = EventTime.hold_watermarks(max_hold="1 s", late=late)
    applied = env.from_datastream(timed(env, 150), lambda number: number).apply(
        StragglingAgent, event_time=hold
    )
    outputs = applied.to_list()
    collected_windows = env.collect(windows(applied.to_datastream()))
    side = env.collect(applied.late_outputs()) if late == "side" else None
    env.execute()
    other_numbers = [number for number in range(150) if number != STRAGGLER]
    assert dict(collected_windows) == expected(other_numbers)
    assert sorted(outputs) == (sorted([*other_numbers, STRAGGLER]) if late == "emit" else other_numbers)
    assert side in (None, [STRAGGLER])


@pytest.mark.nightly
def test_an_idle_partition_holds_nobody_up(agents_environment: MakeEnvironment) -> None:
    env = agents_environment(parallelism=2)
    numbers = env.from_datastream(timed(env, 150, idle_partition=True), lambda number: number % 17)
    applied = numbers.apply(CallingAgent, event_time=HOLD)
    collected_windows = env.collect(windows(applied.to_datastream()))
    env.collect(applied.dead_letters())
    env.execute()
    assert dict(collected_windows) == expected(number for number in range(150) if number != 13)


class SlowFirstAgent(Agent):
    """The first record takes far longer than all others."""

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(2.5 if event.input == 0 else 0.01)
        return OutputEvent(output=event.input)


@pytest.mark.nightly
def test_a_subtask_with_one_long_run_is_not_taken_for_idle(agents_environment: MakeEnvironment) -> None:
    """Nothing else happens in it for longer than the idle time-out, while watermarks go on."""
    env = agents_environment(parallelism=2)
    apart = key_of_another_subtask(0)
    records = env.from_datastream(timed(env, 150), lambda number: apart if number else 0)
    hold = EventTime.hold_watermarks(idle_timeout="1 s")
    applied = records.apply(SlowFirstAgent, event_time=hold, max_parallelism=128)
    collected_windows = env.collect(windows(applied.to_datastream()))
    env.execute()
    assert dict(collected_windows) == expected(range(150))


QUIET = 10
QUIET_SECONDS = 3.0


def quiet_in_the_middle(number: int) -> int:
    time.sleep(QUIET_SECONDS if number == QUIET else 0)
    return number


def far_apart(number: int) -> int:
    return BASE + 700 * number


class LongFirstAgent(Agent):
    """The first record takes longer than a subtask may be idle, from when those before the pause are done.

    Args:
        path: Gets a line for each of these.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.beats = Heartbeats(path)

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == 0:
            while len(read_beats(Path(self.path))) < QUIET - 1:
                await asyncio.sleep(0.01)
            await asyncio.sleep(QUIET_SECONDS)
        else:
            self.beats.write("done", event.input)
        return OutputEvent(output=event.input)


@pytest.mark.nightly
def test_a_subtask_with_one_long_run_is_not_taken_for_idle_while_the_source_is_quiet(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """No record and no watermark comes; the other subtask has reached the end of all windows but the last."""
    env = agents_environment(parallelism=2)
    apart = key_of_another_subtask(0)
    count = QUIET + 1
    numbers = timed(env, count, pace=quiet_in_the_middle, at=far_apart)
    records = env.from_datastream(numbers, lambda number: apart if number else 0)
    hold = EventTime.hold_watermarks(idle_timeout="1 s")
    agent = LongFirstAgent(str(tmp_path / "done"))
    applied = records.apply(agent, event_time=hold, max_parallelism=128)
    collected_windows = env.collect(windows(applied.to_datastream()))
    env.execute()
    assert dict(collected_windows) == expected(range(count), far_apart)


def key_of_another_subtask(key: int) -> int:
    """A key that comes to the other one of two subtasks."""
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    subtask = jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment.assignKeyToParallelOperator
    first = subtask(encode_key(key), 128, 2)
    return next(candidate for candidate in range(1, 100) if subtask(encode_key(candidate), 128, 2) != first)


class EchoAgent(Agent):
    @action(InputEvent)
    async def echo(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(0.01)
        return OutputEvent(output=(event.input, ctx.timestamp))


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("inline", [True, False])
def test_records_without_timestamps(agents_environment: MakeEnvironment, inline: bool) -> None:
    env = agents_environment(parallelism=2, config={"run.inline": inline})
    outputs = env.from_list(range(20), str).apply(EchoAgent, event_time=HOLD).to_list()
    env.execute()
    assert sorted(outputs) == [(number, None) for number in range(20)]


def test_two_agents_that_hold_drain_one_behind_the_other(agents_environment: MakeEnvironment) -> None:
    env = agents_environment(parallelism=2)
    first = env.from_datastream(timed(env, 40), str).apply(EchoAgent, event_time=HOLD, name="first")
    second = env.from_datastream(first.to_datastream(), str).apply(EchoAgent, event_time=HOLD, name="second")
    third = env.from_datastream(second.to_datastream(), str).apply(EchoAgent, name="third")
    outputs = third.to_list()
    env.execute()
    assert sorted(outputs) == [(((n, stamp(n)), stamp(n)), stamp(n)) for n in range(40)]


def test_timestamps_without_watermarks_are_refused(agents_environment: MakeEnvironment) -> None:
    from pyflink.common import WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return stamp(value)

    env = agents_environment()
    flink: Any = env.stream_env
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(Stamps())
    numbers = flink.from_collection([1, 2]).assign_timestamps_and_watermarks(strategy)
    env.from_datastream(numbers, str).apply(EchoAgent, event_time=HOLD).to_list()
    with pytest.raises(JobFailedError, match="FA3005"):
        env.execute()


def test_what_is_wrong_is_said_before_the_job_starts(agents_environment: MakeEnvironment) -> None:
    with pytest.raises(OptionError, match="'emit', 'drop', 'side'"):
        EventTime.hold_watermarks(late="lose")
    with pytest.raises(OptionError, match="max_hold"):
        EventTime.hold_watermarks(max_hold="0 s")
    env = agents_environment()
    applied = env.from_list([1], str).apply(EchoAgent, event_time=EventTime.hold_watermarks(late="side"))
    with pytest.raises(JobDefinitionError, match="late_outputs"):
        env.execute()
    applied = env.from_list([1], str).apply(EchoAgent, name="other")
    with pytest.raises(UnknownSideOutputError, match="late='side'"):
        applied.late_outputs()


class FailingOnceAgent(Agent):
    def __init__(self, marker: str) -> None:
        self.marker = marker

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = event.input
        await asyncio.sleep((50 + number * 7919 % 850) / 1000)
        if number == 80:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise RuntimeError("once")
        return OutputEvent(output=number)


@pytest.mark.parametrize("backend", ["hashmap", pytest.param("rocksdb", marks=pytest.mark.nightly)])
def test_windows_are_whole_after_a_failure(
    agents_environment: MakeEnvironment, backend: str, tmp_path: Path
) -> None:
    env = agents_environment(
        parallelism=2,
        flink={"state.backend.type": backend, **restarting(tmp_path)},
    )
    marker = tmp_path / "failed"
    numbers = env.from_datastream(timed(env, 200), lambda number: number % 17)
    applied = numbers.apply(FailingOnceAgent(str(marker)), event_time=HOLD)
    collected_windows = env.collect(windows(applied.to_datastream()))
    env.execute()
    assert marker.exists()
    assert len(collected_windows) == len(dict(collected_windows))
    assert dict(collected_windows) == expected(range(200))
