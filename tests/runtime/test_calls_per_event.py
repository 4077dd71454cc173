"""How long the path of an input is: calls of functions of the package, and the files that these are in.

A new call on the path of each input fails here. If a feature needs one, only agents that use the feature may
make it: see ``docs/design/core.md``.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.runtime.execution import run
from flink_agents.runtime.execution.environment import events
from flink_agents.testing import OperatorHarness
from tests.suite import conditions

INPUTS = 20
BATCHES = 16

UNFORCED: Any = {**conditions.UNFORCED, "forced_serialization": False}

pytestmark = pytest.mark.own_conditions


@pytest.fixture(autouse=True)
def without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget that another test of the process has loaded the model library: each input is searched then."""
    for module in (run, events):
        monkeypatch.setattr(module, "LIBRARY", "not loaded")


def charge(order: int) -> dict[str, int]:
    return {"ok": order}


class Counting(Agent):
    @action(InputEvent)
    def count(self, event: InputEvent, ctx: Any) -> OutputEvent:
        number = ctx.short_term_memory.get("n", 0) + 1
        ctx.short_term_memory.set("n", number)
        return OutputEvent(output=number)


class Paying(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))


FROM_FLINK = {"__call__", "process", "fire"}
"""What the harness calls in place of Flink. What else it calls, it asks for its own sake."""


BY_TIME = "/runtime/loop/watchdog.py"
"""The watchdog looks by time, not by input."""


def is_of_product(name: str) -> bool:
    return "flink_agents/" in name and "/testing/" not in name and not name.endswith(BY_TIME)


def is_asked_by_harness(frame: Any) -> bool:
    """Return True if the harness wants to know something, which Flink would not ask."""
    entry = frame
    while frame is not None and "/testing/" not in frame.f_code.co_filename:
        if is_of_product(frame.f_code.co_filename):
            entry = frame
        frame = frame.f_back
    return frame is not None and entry.f_code.co_name not in FROM_FLINK


def measured(agent: Agent, config: dict[str, Any]) -> tuple[float, int]:
    """Return the calls of an input, and the number of files that at least half of the inputs pass through.

    On a loaded machine, threads look at each other more often, so the batch with the fewest calls counts.
    """
    batches = [Counter[str]() for _ in range(BATCHES)]
    files: Counter[str] | None = None

    def note(frame: Any, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and files is not None and is_of_product(name) and not is_asked_by_harness(frame):
            files[name] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with OperatorHarness(agent, lambda record: record, config=config, **UNFORCED) as harness:
            harness.push_all(range(30))
            for number, batch in enumerate(batches, 50):
                files = batch
                harness.push_all(range(INPUTS * number, INPUTS * (number + 1)))
            files = None
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    fewest = min(batches, key=Counter.total)
    return fewest.total() / INPUTS, sum(1 for count in fewest.values() if count >= INPUTS / 2)


def test_an_input_of_a_plain_action_passes_through_nothing_that_it_does_not_use() -> None:
    calls, files = measured(Counting(), {})
    assert calls <= 48
    assert files <= 14


def test_an_input_with_a_durable_call_passes_through_no_more_than_before(tmp_path: Path) -> None:
    """How often Flink's thread looks depends on how long a run takes, so that this bound leaves some room."""
    config = {
        "job-identifier": "path",
        "action-state.store": "sqlite",
        "action-state.sqlite.path": str(tmp_path / "path.db"),
    }
    calls, files = measured(Paying(), config)
    assert calls <= 312
    assert files <= 42
