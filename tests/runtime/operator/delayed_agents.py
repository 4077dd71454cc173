"""Agents that send events with a delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flink_agents import Agent, Event, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]


calls: list[Any] = []


def charge(amount: int) -> int:
    calls.append(amount)
    return 10 * amount


class Later(Event):
    """What comes later.

    Attributes:
        what: What it says.
        more: Delays of what follows it.
    """

    what: Any
    more: tuple[float, ...] = ()


class Plain(Agent):
    """Sends what an input says later; an input is a name and the delays in seconds."""

    @action(InputEvent)
    def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
        name, *delays = event.input
        for number, delay in enumerate(delays):
            ctx.send_event(Later(what=f"{name}{number}"), delay=delay)
        return OutputEvent(output=name)

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        seen = ctx.short_term_memory.get("seen", [])
        ctx.short_term_memory.set("seen", [*seen, event.what])
        for delay in event.more[:1]:
            ctx.send_event(Later(what=event.what, more=event.more[1:]), delay=delay)
        return OutputEvent(output=event.what)


class Calls(Agent):
    """Makes durable calls before it sends, behind that, and when the event comes."""

    @action(InputEvent)
    async def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
        first = await ctx.durable_execute_async(charge, event.input)
        ctx.send_event(Later(what=first), delay=10)
        return OutputEvent(output=await ctx.durable_execute_async(charge, event.input + 1))

    @action(Later)
    async def later(self, event: Later, ctx: Any) -> OutputEvent:
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        return OutputEvent(output=(event.what, await ctx.durable_execute_async(charge, 100 + count)))


class Chained(Agent):
    """Sends in an action behind another one, and sends on when the event comes."""

    @action(InputEvent)
    async def take(self, event: InputEvent, ctx: Any) -> Later:
        await ctx.durable_execute_async(charge, event.input)
        return Later(what=event.input, more=(10, 10))

    @action(Later)
    def later(self, event: Later, ctx: Any) -> OutputEvent:
        for delay in event.more[:1]:
            ctx.send_event(Later(what=event.what, more=event.more[1:]), delay=delay)
        return OutputEvent(output=(event.what, len(event.more)))


class Sleeps(Agent):
    """Sends before a pause and behind it."""

    @action(InputEvent)
    async def take(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.send_event(Later(what="before"), delay=5)
        await ctx.sleep(10)
        ctx.send_event(Later(what="behind"), delay=5)
        return OutputEvent(output=event.input)

    @action(Later)
    async def later(self, event: Later, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.what)
