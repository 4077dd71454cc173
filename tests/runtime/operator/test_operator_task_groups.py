"""A run is suspended while the tasks of its task groups wait, in groups of asyncio and of anyio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from flink_agents import Agent, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

Wait = Callable[[int], Coroutine[Any, Any, Any]]
Group = Callable[[Wait], Awaitable[Any]]


def double(number: int) -> int:
    return 2 * number


class Sleeper(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> Event:
        await ctx.sleep(3)
        return OutputEvent(output=await ctx.durable_execute_async(double, event.input))


SLEEPER = Sleeper()


async def in_asyncio_group(wait: Wait) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(wait(1))
        group.create_task(wait(2))


async def in_anyio_group(wait: Wait) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(wait, 1)
        group.start_soon(wait, 2)


async def in_nested_groups(wait: Wait) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(in_anyio_group, wait)


async def in_anyio_in_asyncio(wait: Wait) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(in_anyio_group(wait))


async def in_asyncio_in_anyio(wait: Wait) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(in_asyncio_group, wait)


async def in_task_with_group(wait: Wait) -> None:
    await asyncio.shield(asyncio.create_task(in_anyio_group(wait)))


async def in_grown_group(wait: Wait) -> None:
    async with anyio.create_task_group() as group:

        async def start_second() -> None:
            await wait(1)
            group.start_soon(wait, 2)

        group.start_soon(start_second)


async def in_group_after_a_failure(wait: Wait) -> None:
    async def fail() -> None:
        raise ValueError("no such order")

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait, 3)
            group.start_soon(fail)
    except* ValueError:
        await in_anyio_group(wait)


GROUPS: dict[str, Group] = {
    "asyncio": in_asyncio_group,
    "anyio": in_anyio_group,
    "nested": in_nested_groups,
    "anyio in asyncio": in_anyio_in_asyncio,
    "asyncio in anyio": in_asyncio_in_anyio,
    "in a task": in_task_with_group,
    "grown": in_grown_group,
    "after a failure": in_group_after_a_failure,
}

WAITS: dict[str, Callable[[RunnerContext, int], Awaitable[Any]]] = {
    "sleep": lambda ctx, number: ctx.sleep(number),
    "signal": lambda ctx, number: ctx.wait_for_signal(f"go {number}"),
    "approval": lambda ctx, number: ctx.request_approval(f"pay {number}"),
    "sub-agent": lambda ctx, number: ctx.call_agent(SLEEPER, number),
}


def agent_of(group: str, wait: str) -> Agent:
    class Waiting(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> Event:
            ended: list[int] = []

            async def wait_and_note(number: int) -> None:
                await WAITS[wait](ctx, number)
                ended.append(await ctx.durable_execute_async(double, number))

            await GROUPS[group](wait_and_note)
            return OutputEvent(output=sorted(ended))

    return Waiting()


def end_waits(harness: OperatorHarness) -> list[Any]:
    """End all waits of key 0, and return the outputs."""
    outputs: list[Any] = []
    for number in (1, 2):
        outputs += harness.advance_time(3000)
        outputs += harness.approve(harness.approvals[0]) if harness.approvals else []
        if any(pending.name == f"go {number}" for pending in harness.waits(0)):
            outputs += harness.signal(0, f"go {number}")
    return outputs


@each_case(
    ("group", "wait"),
    [
        (group, wait)
        for group in GROUPS
        for wait in WAITS
        if wait in ("sleep", "signal") or group in ("asyncio", "anyio")
    ],
)
def test_a_run_is_suspended_while_tasks_of_a_group_wait(group: str, wait: str) -> None:
    with OperatorHarness(agent_of(group, wait), crash="everywhere", hang_after=5) as harness:
        assert harness.push(1) == []
        assert len(harness.waits(0)) == (1 if group == "grown" else 2)
        harness.restore(harness.snapshot())
        assert end_waits(harness) == [[2, 4]]
