"""Runs leave nothing to Python's collector of cycles, which would take a part of every call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import StoreError
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once

UNFORCED: dict[str, Any] = {"crash": None, "forced_restart": False, "forced_replay": False}


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


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("agent", [Asking, Silent])
def test_runs_that_were_committed_need_no_collector(agent: type[Agent]) -> None:
    """Whoever looks at what runs, a watcher or a debugger, may hold some of them; not in each round."""
    leftover_counts = [_left_behind(agent) for _ in range(3)]
    assert min(leftover_counts) <= 1, (
        f"{leftover_counts} of 20 runs are left; the harness may still hold the last one"
    )


def _left_behind(agent: type[Agent]) -> int:
    with OperatorHarness(agent, auto_run=False) as harness:
        harness.push_all(range(10))
        harness.run_until_idle()
        gc.collect()
        previous_ids = set(map(id, _runs()))
        gc.disable()
        try:
            harness.push_all(range(10, 30))
            harness.run_until_idle()
            return sum(id(run) not in previous_ids for run in _runs())
        finally:
            gc.enable()


def _runs() -> list[Run]:
    return [run for run in gc.get_objects() if isinstance(run, Run)]


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
    return [actor for actor in gc.get_objects() if isinstance(actor, KeyActor)]


@pytest.mark.nightly(beyond=1)
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
        previous_ids = set(map(id, _actors()))
        gc.disable()
        try:
            harness.push_all((key, number) for number in range(again) for key in range(KEYS))
            harness.run_until_idle()
            leftover_count = sum(id(actor) not in previous_ids for actor in _actors())
            assert leftover_count <= 1, f"{leftover_count} of {KEYS} actors are left"
        finally:
            gc.enable()


class Dropping(Agent):
    """Leaves a suspended generator in a cycle, which the run of another input collects or not."""

    async def numbers(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            CLOSED.append("numbers")

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == "leave":
            holder: dict[str, Any] = {"numbers": self.numbers()}
            holder["itself"] = holder
            await anext(holder["numbers"])
            return OutputEvent(output=0)
        if COLLECTS:
            gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)

        async def call(number: int) -> int:
            return await ctx.durable_execute_async(ask, number)

        calls = [asyncio.create_task(call(number)) for number in range(2)]
        return OutputEvent(output=[await call for call in calls])


COLLECTS: list[bool] = []
CLOSED: list[str] = []


@pytest.mark.own_conditions
@pytest.mark.parametrize("collects_first", [False, True])
def test_a_generator_that_is_collected_takes_no_number_of_a_task(collects_first: bool) -> None:
    COLLECTS[:] = [True] * collects_first
    CLOSED.clear()
    # The end of the action is not recorded, so that another attempt replays its calls.
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    gc.disable()
    try:
        with OperatorHarness(Dropping(), store=faults.store, **UNFORCED) as harness:
            checkpoint = harness.snapshot()
            harness.push("leave")
            with pytest.raises(StoreError):
                harness.push("ask")
            COLLECTS[:] = [True] * (not collects_first)
            harness.restore(checkpoint)
            harness.push("leave")
            assert harness.push("ask") == [[1, 2]]
            assert set(CLOSED) == {"numbers"}
    finally:
        gc.enable()
