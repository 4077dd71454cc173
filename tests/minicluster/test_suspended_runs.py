"""Runs that sleep and wait for signals in a job that fails meanwhile, and is stopped and submitted again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, Signal, action

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
