"""Agents that pause and wait for signals, and the effects of their calls."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.api.errors import NoMoreSignalsError, SignalTimeoutError

calls: list[Any] = []


def charge(amount: int) -> int:
    calls.append(amount)
    return 10 * amount


class Approval(BaseModel):
    granted: bool
    by: str = ""


class Chosen(Event):
    """A number that an action has chosen."""

    number: int


class Naps(Agent):
    """Sleeps between two parts of its work."""

    @action(InputEvent)
    async def nap(self, event: InputEvent, ctx: Any) -> OutputEvent:
        count = ctx.short_term_memory.get("count", 0)
        await ctx.sleep(10)
        ctx.short_term_memory.set("count", count + 1)
        return OutputEvent(output=(event.input, count))


class Charges(Agent):
    """Makes durable calls before and behind a pause."""

    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        first = await ctx.durable_execute_async(charge, event.input)
        await ctx.sleep(timedelta(seconds=10))
        second = await ctx.durable_execute_async(charge, event.input + 1)
        await ctx.sleep(1)
        return OutputEvent(output=first + second)


class Paid(Agent):
    """Makes a durable call by what a signal says."""

    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        amount = await ctx.wait_for_signal("amount", int)
        return OutputEvent(output=await ctx.durable_execute_async(charge, amount))


class Refunds(Agent):
    """Asks for an approval, and goes on with the answer."""

    side_outputs = {"asked": str}

    @action(InputEvent)
    async def refund(self, event: InputEvent, ctx: Any) -> OutputEvent:
        approval = ctx.wait_for_signal("approval", Approval, timeout=60)
        ctx.emit_to("asked", f"{event.input}?")
        try:
            answer = await approval
        except SignalTimeoutError:
            return OutputEvent(output=(event.input, "nobody"))
        except NoMoreSignalsError:
            return OutputEvent(output=(event.input, "the end"))
        return OutputEvent(output=(event.input, answer.granted, answer.by))


opened = threading.Event()
"""Lets :func:`behind_a_door` return."""


async def behind_a_door() -> str:
    """A call that goes on until a test lets it end."""
    while not opened.is_set():
        await asyncio.sleep(0.001)
    return "through"


class Opens(Agent):
    """Lets its call end when a signal says so; until then its run cannot be suspended."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        call = asyncio.create_task(ctx.durable_execute_async(behind_a_door))
        opens = await ctx.wait_for_signal("go")
        opened.set()
        return OutputEvent(output=(opens, await call))
