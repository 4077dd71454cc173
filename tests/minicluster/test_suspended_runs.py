"""Runs that sleep and wait for signals in a job that fails meanwhile, and is stopped and submitted again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyflink.common import Time, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream.window import TumblingEventTimeWindows

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ApprovalOutcome,
    ApprovalRequest,
    EventTime,
    InputEvent,
    OutputEvent,
    Signal,
    action,
)
from flink_agents.api.errors import ApprovalsNotAnsweredError
from tests.minicluster.sources import numbers, restarting

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

KEYS = 40
NAP = 1.5
ANSWERS = 90


class Naps(Agent):
    """Sleeps, asks for an answer, and puts out when the pause ended."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        start_seconds = ctx.now().timestamp()
        await ctx.sleep(NAP)
        slept = time.time() - start_seconds
        answer = await ctx.wait_for_signal("answer", int)
        return OutputEvent(output=(event.input, slept, answer))


def signal(number: int) -> Signal:
    """Signals come slowly, so that the job fails while runs are suspended."""
    time.sleep(0.06)
    return Signal("answer", 10 * number, key=number, id=str(number))


class FailsOnce:
    """Passes outputs on, and fails at the first one.

    Args:
        directory: Where it notes that it did.
    """

    def __init__(self, directory: Path) -> None:
        self._marker = str(directory / "failed")

    def __call__(self, output: Any) -> Any:
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return output
        raise RuntimeError("a failure while runs are suspended")


class Asks(Agent):
    """Asks for an approval, and says what came of it."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        outcome = await ctx.request_approval("work", {"number": event.input}, timeout=1)
        return OutputEvent(output=(event.input, str(outcome.decision)))


def test_requests_leave_the_job_and_expire(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    signals = env.stream_env.from_collection([0]).map(unasked)
    inputs = env.stream_env.from_collection([1, 2])
    stream = env.from_datastream(inputs, lambda number: number).with_signals(signals).apply(Asks)
    approvals = env.collect(stream.approvals())
    outputs = stream.to_list()
    env.execute()
    requests = [approval for approval in approvals if isinstance(approval, ApprovalRequest)]
    outcomes = [approval for approval in approvals if isinstance(approval, ApprovalOutcome)]
    assert sorted(request.key for request in requests) == [1, 2]
    assert sorted(outcome.request.id for outcome in outcomes) == sorted(request.id for request in requests)
    assert len(outputs) == 2 and {decision for _, decision in outputs} <= {"expired", "ended"}


def unasked(number: int) -> Signal:
    return Signal("unasked", number, key=number)


class Marked(Agent):
    @action(InputEvent, needs_approval=True)
    async def work(self, event: InputEvent, ctx: Any) -> None: ...


@pytest.mark.parametrize("missing", ["signals", "readers"])
def test_a_job_whose_requests_nobody_answers_is_refused(
    agents_environment: MakeEnvironment, missing: str
) -> None:
    env = agents_environment()
    stream = env.from_list([1], lambda number: number)
    if missing == "readers":
        stream = stream.with_signals(env.stream_env.from_collection([0]).map(unasked))
    applied = stream.apply(Marked)
    if missing == "signals":
        applied.approvals().print()
    with pytest.raises(
        ApprovalsNotAnsweredError, match=r"^tests/\S+:\d+ in .*agent 'Marked' needs approvals"
    ):
        env.execute()


def test_suspended_runs_survive_a_failure(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    env = agents_environment(
        parallelism=2,
        flink=restarting(tmp_path),
    )
    signals = numbers(env, KEYS).map(signal).set_parallelism(1)
    inputs = env.from_datastream(numbers(env, KEYS), lambda number: number)
    stream = inputs.with_signals(signals).apply(Naps)
    outputs = env.collect(stream.to_datastream().map(FailsOnce(tmp_path)))
    unmatched = env.collect(stream.unmatched_signals())
    env.execute()

    assert (tmp_path / "failed").exists()
    assert unmatched == []
    assert sorted((number, answer) for number, _, answer in outputs) == [(n, 10 * n) for n in range(KEYS)]
    assert min(slept for _, slept, _ in outputs) >= NAP - 0.001


class Overtaken(Agent):
    """Counts in memory, and some of its runs wait in between."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def count(self, event: InputEvent, ctx: Any) -> OutputEvent:
        memory = ctx.short_term_memory
        number, waits = event.input
        previous_count = memory.get("n", 0)
        memory.set("n", previous_count + 1)
        if waits:
            previous_count = memory.get("n")
            answer = await ctx.wait_for_signal("answer", int)
            assert answer == 10 * number
            memory.set("n", memory.get("n") + 10)
        return OutputEvent(output=(number, waits, previous_count, memory.get("n")))


class Collects(Agent):
    """Puts out all that a key is told."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=[await ctx.wait_for_signal("answer", int) for _ in range(ANSWERS)])


def signal_of(number: int) -> Signal:
    # Signals of a key would go to both subtasks in turn.
    return Signal("answer", number, key=number // 2 % 2)


def test_signals_of_a_key_keep_their_order_at_any_parallelism(agents_environment: MakeEnvironment) -> None:
    env = agents_environment(parallelism=2)
    signals = numbers(env, 2 * ANSWERS).map(signal_of).set_parallelism(1)
    inputs = numbers(env, 2).map(lambda number: number).set_parallelism(2)
    outputs = env.from_datastream(inputs, lambda key: key).with_signals(signals).apply(Collects).to_list()
    env.execute()
    assert sorted(outputs) == [[n for n in range(2 * ANSWERS) if n // 2 % 2 == key] for key in range(2)]


@pytest.mark.nightly
def test_inputs_overtake_suspended_runs_in_a_job_that_fails(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    env = agents_environment(
        parallelism=2,
        flink=restarting(tmp_path),
    )
    # First an input for each key that waits, then one that does not.
    inputs = numbers(env, 2 * KEYS).map(lambda n: (n % KEYS, n < KEYS)).set_parallelism(1)
    signals = numbers(env, KEYS).map(signal).set_parallelism(1)
    stream = env.from_datastream(inputs, lambda record: record[0]).with_signals(signals).apply(Overtaken)
    outputs = env.collect(stream.to_datastream().map(FailsOnce(tmp_path)))
    unmatched = env.collect(stream.unmatched_signals())
    env.execute()

    assert (tmp_path / "failed").exists()
    assert unmatched == []
    # A signal may be there before the input that waits for it, and then nobody overtakes its run.
    overtaken = {(n, False, 1, 2) for n in range(KEYS)} & set(outputs)
    assert len(outputs) == 2 * KEYS
    assert {(n, True, 1, 12) for n, *_ in overtaken} <= set(outputs)
    assert len(overtaken) > KEYS // 2
    assert {output[2:] for output in outputs if not output[1]} <= {(1, 2), (11, 12)}


def slowly(number: int) -> int:
    """A number that comes long after the inputs have ended."""
    time.sleep(1.0)
    return number


class AsksEach(Agent):
    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.input, await ctx.wait_for_signal("answer", int)))


def answer(number: int) -> Signal:
    return Signal("answer", 10 * number, key=number)


@pytest.mark.nightly
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_signals_that_stay_away_are_no_end_of_the_input(
    agents_environment: MakeEnvironment, keyed: bool
) -> None:
    env = agents_environment(parallelism=2)
    flink: Any = env.stream_env
    inputs = flink.from_collection([0, 1])
    # The task that sleeps is another one than that of the signals, which has nothing to do meanwhile.
    signals = flink.from_collection([0, 1]).map(slowly).disable_chaining().map(answer)
    if keyed:
        signals = signals.key_by(lambda sent_signal: sent_signal.key)
    stream = env.from_datastream(inputs, lambda number: number).with_signals(signals).apply(AsksEach)
    outputs = stream.to_list()
    env.execute()
    assert sorted(outputs) == [(0, 0), (1, 10)]


class Passes(Agent):
    """Gives back what it gets, and waits for an answer where that is nothing."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = event.input[1]
        return OutputEvent(output=number if number else await ctx.wait_for_signal("answer", int))


@pytest.mark.nightly
def test_signals_that_stay_away_hold_no_window_open(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    env = agents_environment(parallelism=1)
    flink: Any = env.stream_env
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
    # The last input comes when the window of those before it has ended, and the answer behind that.
    # Both are held back in tasks of their own, so that what is before them goes on.
    inputs = flink.from_collection([(1000, 1), (4000, 2), (20_000, 4), (30_000, 0)]).map(Behind(tmp_path))
    timed = inputs.disable_chaining().assign_timestamps_and_watermarks(strategy)
    signals = flink.from_collection([0]).map(Behind(tmp_path)).disable_chaining().map(answer)
    keyed = env.from_datastream(timed, lambda record: record[1]).with_signals(signals)
    outputs = keyed.apply(Passes, event_time=EventTime.hold_watermarks()).to_datastream(int)
    ten_seconds = TumblingEventTimeWindows.of(Time.seconds(10))
    sums = (
        outputs.key_by(lambda number: 0)
        .window(ten_seconds)
        .reduce(lambda first_sum, second_sum: first_sum + second_sum)
    )
    window_sums = env.collect(sums.map(Ended(tmp_path)))
    env.execute()
    # What the suspended run puts out may be late: it holds no window open.
    assert [number for number in window_sums if number] == [3, 4]


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[0]


class Ended:
    """Tells that a window has ended."""

    def __init__(self, directory: Path) -> None:
        self._marker = directory / "ended"

    def __call__(self, result: int) -> int:
        self._marker.touch()
        return result


class Behind:
    """Holds signals, and the last input, back until a window has ended."""

    def __init__(self, directory: Path) -> None:
        self._marker = directory / "ended"

    def __call__(self, record: Any) -> Any:
        last = record == 0 or record[1] == 0
        deadline = time.monotonic() + 60
        while last and not self._marker.exists():
            if time.monotonic() > deadline:
                raise AssertionError("no window has ended, while the signals stayed away")
            time.sleep(0.05)
        return record
