"""Runs leave nothing to Python's collector of cycles, which would take a part of every call."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once


async def ask(number: int) -> int:
    return number + 1


class Asking(Agent):
    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> Event:
        ctx.short_term_memory.set("last", event.input)
        return OutputEvent(output=await ctx.durable_execute_async(ask, event.input))


class Silent(Agent):
    """Makes its call only where it is asked to, so that its runs have journals without records."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=await ctx.durable_execute_async(ask, 1) if event.input < 0 else 0)


@pytest.mark.parametrize("agent", [Asking, Silent])
def test_runs_that_were_committed_need_no_collector(agent: type[Agent]) -> None:
    """Whoever looks at what runs, a watcher or a debugger, may hold some of them; not in each round."""
    left = [_left_behind(agent) for _ in range(3)]
    assert min(left) <= 1, f"{left} of 20 runs are left; the harness may still hold the last one"


def _left_behind(agent: type[Agent]) -> int:
    with OperatorHarness(agent, auto_run=False) as harness:
        harness.push_all(range(10))
        harness.run_until_idle()
        gc.collect()
        before = set(map(id, _runs()))
        gc.disable()
        try:
            harness.push_all(range(10, 30))
            harness.run_until_idle()
            return sum(id(run) not in before for run in _runs())
        finally:
            gc.enable()


def _runs() -> list[Run]:
    return [found for found in gc.get_objects() if isinstance(found, Run)]


class Replaying(Agent):
    """Makes a durable call for each input."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=await ctx.durable_execute_async(ask, event.input[1]))


class Resting(Agent):
    """Suspends its runs, and lets later inputs go first."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> Event:
        number = await ctx.durable_execute_async(ask, event.input[1])
        if event.input[1] == 0:
            await ctx.sleep(10)
        return OutputEvent(output=number)


KEYS = 20


def _actors() -> list[KeyActor]:
    return [found for found in gc.get_objects() if isinstance(found, KeyActor)]


@pytest.mark.parametrize(("agent", "again"), [(Replaying, 1), (Resting, 3)])
def test_actors_that_leave_recorded_runs_need_no_collector(agent: type[Agent], again: int) -> None:
    """Inputs of these runs come later, or after the end of a suspended run: another actor replays them."""
    with OperatorHarness(agent, lambda record: record[0], auto_run=False) as harness:
        snapshot = harness.snapshot()
        harness.push_all((key, number) for number in range(3) for key in range(KEYS))
        harness.run_until_idle()
        harness.advance_time(10_000)
        harness.restore(snapshot)
        gc.collect()
        # Other tests of the process may have left some.
        before = set(map(id, _actors()))
        gc.disable()
        try:
            harness.push_all((key, number) for number in range(again) for key in range(KEYS))
            harness.run_until_idle()
            left = sum(id(actor) not in before for actor in _actors())
            assert left <= 1, f"{left} of {KEYS} actors are left"
        finally:
            gc.enable()
