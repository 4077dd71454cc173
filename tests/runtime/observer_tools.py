"""An observer of runs for tests, next to the metrics of the runtime, and its registration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents.api.agents.observers import FOLLOWS, ObservedRun, Phase, RunObserver
from flink_agents.runtime.operator import assembly


class Listener(RunObserver):
    """Writes down what it is told, by key, and checks that each phase may follow the one before."""

    def __init__(self) -> None:
        self.phases: dict[Any, list[Phase]] = {}
        self.waits: dict[Any, list[str]] = {}
        self.told: list[tuple[Any, ...]] = []
        self.wrong: list[tuple[Any, ...]] = []

    def phase_changed(self, run: ObservedRun, before: Phase | None) -> None:
        if run.phase not in FOLLOWS[before]:
            self.wrong.append((run.key, before, run.phase))
        self.phases.setdefault(run.key, []).append(run.phase)
        self.waits.setdefault(run.key, []).append(run.waits_for)

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        assert seconds >= 0
        self.told.append(("ended", run.key, action, "inline" if inline else "on the loop"))

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        self.told.append(("failed", run.key, action, type(error).__name__))

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        self.told.append(("retried", run.key, action, attempt))

    def action_replayed(self, run: ObservedRun, action: str, calls: Any, letter: Any) -> None:
        self.told.append(("action replayed", run.key, action))

    def event_given_up(self, run: ObservedRun, event_type: str, dead_letter: bool) -> None:
        self.told.append(("given up", run.key, event_type, dead_letter))

    def call_begun(self, run: ObservedRun, action: str, function: str, number: Any, again: bool) -> None:
        self.told.append(("begun", run.key, action, function.rpartition(":")[2], again))

    def call_recorded(self, run: ObservedRun, action: str, function: str, number: Any) -> None:
        self.told.append(("recorded", run.key, action, function.rpartition(":")[2]))

    def call_replayed(self, run: ObservedRun, action: str, function: str, number: Any, outcome: Any) -> None:
        self.told.append(("replayed", run.key, action, function.rpartition(":")[2]))

    def recorded(self, run: ObservedRun, action: str, records: int) -> None:
        self.told.append(("records", run.key, action, records))

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        assert seconds is None or seconds >= 0
        self.told.append(("committed", run.key, "inline" if seconds is None else "on the loop"))


@contextlib.contextmanager
def observed_by(*observers: RunObserver) -> Iterator[None]:
    """Let ``observers`` be told what the runs of subtasks do that begin meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        # Given to a harness, they would be copied as they are for a worker.
        patch.setattr(assembly, "made_observers", lambda sources, metrics: list(observers))
        yield
