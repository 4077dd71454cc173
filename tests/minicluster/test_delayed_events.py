"""Delayed events in a job that fails before some of them come, by both ways of the operator's timers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action
from tests.minicluster.sources import numbers, restarting
from tests.minicluster.test_suspended_runs import FailsOnce

pytestmark = pytest.mark.minicluster

KEYS = 30
DELAY = 1.0


class Later(Event):
    """What comes later.

    Attributes:
        number: The input.
        due: When it may come, in seconds since the epoch.
    """

    number: int
    due: float


class Sends(Agent):
    """Sends an event later, and puts out how much later it came."""

    @action(InputEvent)
    def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
        # The inputs come slowly, so that the job fails while events are pending.
        time.sleep(0.05)
        delay = DELAY * (1 + event.input % 3)
        ctx.send_event(Later(number=event.input, due=time.time() + delay), delay=delay)
        return OutputEvent(output=("taken", event.input))

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        times = ctx.short_term_memory.get(f"came.{event.number}", 0) + 1
        ctx.short_term_memory.set(f"came.{event.number}", times)
        return OutputEvent(output=("came", event.number, time.time() - event.due, times))


class FailsAtTheFirst(FailsOnce):
    """Passes outputs on, and fails at the first event that comes."""

    def __call__(self, output: Any) -> Any:
        return super().__call__(output) if output[0] == "came" else output


def test_delayed_events_come_once_and_not_early(
    agents_environment: Callable[..., AgentsExecutionEnvironment], tmp_path: Path
) -> None:
    env = agents_environment(
        parallelism=2,
        flink=restarting(tmp_path),
    )
    stream = env.from_datastream(numbers(env, KEYS), lambda number: number % 10).apply(Sends)
    outputs = env.collect(stream.to_datastream().map(FailsAtTheFirst(tmp_path)))
    env.execute()

    assert (tmp_path / "failed").exists()
    # Outputs from before the failure may be listed twice, and state tells how often each event came.
    came = [output for output in outputs if output[0] == "came"]
    assert {number for _, number, _, _ in came} == set(range(KEYS))
    assert {times for _, _, _, times in came} == {1}
    assert min(late for _, _, late, _ in came) >= -0.001
