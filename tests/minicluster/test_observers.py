"""Observers of a job, in its workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunObserver, action
from flink_agents.api.agents.observers import ObservedRun
from flink_agents.api.errors import ObserverError

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


class EchoAgent(Agent):
    @action(InputEvent)
    def echo(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class Writing(RunObserver):
    """Adds a line to a file for each commit.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{run.key} {run.phase.name}\n".encode())
        os.close(file)
        raise ValueError("harms no run")


class Locked(RunObserver):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_observers_are_told_in_workers(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    path = str(tmp_path / "told")
    env = agents_environment(parallelism=2)
    stream = env.from_list(range(20), lambda number: number)
    outputs = stream.apply(EchoAgent, observers=[Writing(path), Locked, lambda: Writing(path)]).to_list()
    env.execute()
    assert sorted(outputs) == list(range(20))
    lines = Path(path).read_text("utf-8").splitlines()
    assert sorted(lines) == sorted(2 * [f"{number} COMMITTED" for number in range(20)])


def test_what_cannot_be_pickled_is_refused(agents_environment: MakeEnvironment) -> None:
    stream = agents_environment().from_list([1], lambda number: number)
    with pytest.raises(ObserverError, match="pass its class"):
        stream.apply(EchoAgent, observers=[Locked()])
