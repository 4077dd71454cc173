"""A job that starts from a savepoint with another timeout: runs that wait end without an input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, action
from flink_agents.api.errors import SignalTimeoutError
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.cluster.local_job import LAST, start_agent

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

KEYS = 20


class WaitingAgent(Agent):
    """Waits for a signal that never comes.

    Args:
        path: Gets a line when a run starts, and when its wait times out.
        seconds: The timeout of the wait; None for no limit.
    """

    def __init__(self, path: str, seconds: float | None) -> None:
        self.beats = Heartbeats(path)
        self.seconds = seconds

    @action(InputEvent, when=lambda event: event.input != LAST)
    async def wait(self, event: InputEvent, ctx: Any) -> None:
        self.beats.write("starts", ctx.key)
        try:
            await ctx.wait_for_signal("never", timeout=self.seconds)
        except SignalTimeoutError:
            self.beats.write("timeouts", ctx.key)

    @action(InputEvent, when=lambda event: event.input == LAST)
    def ignore(self, event: InputEvent, ctx: Any) -> None:
        self.beats.write("last", ctx.key)


def keys_of(beats: Path, kind: str) -> set[str]:
    return {beat.key for beat in read_beats(beats) if beat.kind == kind}


@pytest.mark.nightly
def test_an_added_timeout_ends_runs_that_wait(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    later = tmp_path / "later"
    config = {"job-identifier": "waiting"}
    agent = WaitingAgent(str(beats), None)
    with start_agent(agents_environment(config=config), agent, beats, KEYS) as job:
        job.wait_for("the waits", lambda: keys_of(beats, "last"))
        savepoint = job.stop_with_savepoint(tmp_path / "savepoints")
    assert len(keys_of(beats, "starts")) == KEYS
    flink = {"execution.state-recovery.path": savepoint}
    env = agents_environment(config=config, flink=flink)
    with start_agent(env, WaitingAgent(str(later), 0.001), later, KEYS) as job:
        job.wait_for("the timeouts", lambda: len(keys_of(later, "timeouts")) == KEYS or None)
    assert keys_of(later, "timeouts") == keys_of(beats, "starts")
