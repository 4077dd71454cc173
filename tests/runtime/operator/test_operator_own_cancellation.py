"""Durable functions that raise ``CancelledError`` themselves: a failure as any other, and called once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each

pytestmark = pytest.mark.own_conditions

CALLS: list[str] = []


def raises(what: str) -> str:
    CALLS.append(what)
    raise asyncio.CancelledError("its own")


async def raises_awaited(what: str) -> str:
    CALLS.append(what)
    raise asyncio.CancelledError("its own")


async def raises_later(what: str) -> str:
    CALLS.append(what)
    await asyncio.sleep(0)
    raise asyncio.CancelledError("its own")


async def awaits_what_it_cancels(what: str) -> str:
    CALLS.append(what)
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task
    return what


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(function, event.input))

    return act


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(function, event.input))

    return act


def side_by_side(function: Callable[..., Any]) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> OutputEvent:
        call = ctx.durable_execute_async(function, event.input)
        found = await asyncio.gather(call, asyncio.sleep(0), return_exceptions=True)
        return OutputEvent(output=type(found[0]).__name__)

    return act


@each("function", [raises, raises_awaited, raises_later, awaits_what_it_cancels])
@each("make", [in_thread, awaited, side_by_side])
def test_the_function_is_called_once(make: Callable[..., Any], function: Callable[..., Any]) -> None:
    CALLS.clear()
    agent = Agent(name="cancels").add_action("act", [InputEvent], make(function), on_error="dead-letter")
    with OperatorHarness(agent, crash="everywhere") as job:
        job.push("a")
        assert len(job.outputs) + len(job.dead_letters) == 1
    assert CALLS == ["a"]
