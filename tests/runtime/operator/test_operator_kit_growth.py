"""The test kit's work for waits and delayed events grows with their number, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes import state
from flink_agents.testing.subtasks import due_timers

pytestmark = pytest.mark.own_conditions

ROOM = "flink_agents.testing."
"""Calls of these modules, and of those that read state for them, count."""

STATE = ("flink_agents.runtime.state.delayed", "flink_agents.runtime.state.suspended")


class Reminder(Event):
    number: int


class Reminding(Agent):
    """Sends as many reminders as its input says, the last one first."""

    @action(InputEvent)
    def remind(self, event: InputEvent, ctx: Any) -> None:
        for number in reversed(range(event.input)):
            ctx.send_event(Reminder(number=number), delay=number + 1)

    @action(Reminder)
    def come(self, event: Reminder, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.number)


class Sleepy(Agent):
    @action(InputEvent)
    async def sleep(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(1)
        return OutputEvent(output=event.input)


def send_reminders(harness: OperatorHarness, count: int) -> None:
    harness.push(count)


def fill_a_key(harness: OperatorHarness, count: int) -> None:
    harness.push_all(range(count))


Filled = Callable[[OperatorHarness, int], None]


def calls_of(agent: type[Agent], fill: Filled, finish: Filled, count: int) -> int:
    """Return the number of calls that the kit makes for ``count`` waits."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        module = frame.f_globals.get("__name__", "")
        calls += event == "call" and (module.startswith(ROOM) or module in STATE)

    with OperatorHarness(agent, crash=None, forced_replay=False, forced_restart=False) as harness:
        previous_profiler = sys.getprofile()
        sys.setprofile(note)
        try:
            fill(harness, count)
            finish(harness, count)
        finally:
            sys.setprofile(previous_profiler)
        assert sorted(harness.outputs) == list(range(count))
    return calls


def let_time_pass(harness: OperatorHarness, count: int) -> None:
    harness.advance_time((count + 1) * 1000)


def end_the_input(harness: OperatorHarness, count: int) -> None:
    harness.end_input()


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("finish", [let_time_pass, end_the_input])
@pytest.mark.parametrize(
    ("agent", "fill"), [(Reminding, send_reminders), (Sleepy, fill_a_key)], ids=["delayed", "hot key"]
)
def test_work_is_linear(agent: type[Agent], fill: Filled, finish: Filled) -> None:
    few = 30
    many = 240
    few_calls = calls_of(agent, fill, finish, few)
    after = calls_of(agent, fill, finish, many)
    assert after < 2 * few_calls * many / few


class Echo(Agent):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


def test_inputs_leave_no_timers_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEAST_TIMERS", 10)
    monkeypatch.setattr(due_timers, "LEAST_TIMERS", 10)
    with OperatorHarness(Echo, crash=None, forced_replay=False, forced_restart=False) as harness:
        (subtask,) = harness._subtasks
        subtask.backend.timers["processing_timers"]._most = 10
        harness.push_all(range(100))
        sizes = [
            len(subtask.backend.timers["processing_timers"]._queue),
            len(subtask.due._later._queue),
            len(subtask.due._delays._queue),
        ]
    assert max(sizes) < 40
    assert not harness.noted
