"""Runs that sleep and wait for signals in a job that fails meanwhile, and is stopped and submitted again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ApprovalOutcome,
    ApprovalRequest,
    InputEvent,
    OutputEvent,
    Signal,
    action,
)
from flink_agents.api.errors import ApprovalsNotAnsweredError

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

KEYS = 40
NAP = 1.5


class Naps(Agent):
    """Sleeps, asks for an answer, and puts out when the pause ended."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        begun = ctx.now().timestamp()
        await ctx.sleep(NAP)
        slept = time.time() - begun
        answer = await ctx.wait_for("answer", int)
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
    asked, outputs = env.collect(stream.approvals()), stream.to_list()
    env.execute()
    requests = [one for one in asked if isinstance(one, ApprovalRequest)]
    outcomes = [one for one in asked if isinstance(one, ApprovalOutcome)]
    assert sorted(one.key for one in requests) == [1, 2]
    assert sorted(one.request.id for one in outcomes) == sorted(one.id for one in requests)
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
    with pytest.raises(ApprovalsNotAnsweredError, match="agent 'Marked' needs approvals"):
        env.execute()


@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "public path"])
def test_suspended_runs_survive_a_failure(
    agents_environment: MakeEnvironment, fast: bool, tmp_path: Path
) -> None:
    env = agents_environment(
        parallelism=2,
        config={"run.fast-path": fast},
        flink={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": (tmp_path / "checkpoints").as_uri(),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "100 ms",
        },
    )
    flink: Any = env.stream_env
    inputs = flink.from_collection(list(range(KEYS)))
    signals = flink.from_collection(list(range(KEYS))).map(signal)
    stream = env.from_datastream(inputs, lambda number: number).with_signals(signals).apply(Naps)
    outputs = env.collect(stream.to_datastream().map(FailsOnce(tmp_path)))
    strays = env.collect(stream.strays())
    env.execute()

    assert (tmp_path / "failed").exists()
    assert strays == []
    assert sorted((number, answer) for number, _, answer in outputs) == [(n, 10 * n) for n in range(KEYS)]
    assert min(slept for _, slept, _ in outputs) >= NAP - 0.001


def slowly(number: int) -> int:
    """A number that comes long after the inputs have ended."""
    time.sleep(1.0)
    return number


class AsksEach(Agent):
    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.input, await ctx.wait_for("answer", int)))


def answer(number: int) -> Signal:
    return Signal("answer", 10 * number, key=number)


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
        signals = signals.key_by(lambda one: one.key)
    stream = env.from_datastream(inputs, lambda number: number).with_signals(signals).apply(AsksEach)
    outputs = stream.to_list()
    env.execute()
    assert sorted(outputs) == [(0, 0), (1, 10)]
