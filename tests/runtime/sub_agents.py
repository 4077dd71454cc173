"""A sub-agent, an agent that calls it, and the effects of their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents import (
    Agent,
    Event,
    InputEvent,
    OutputEvent,
    RetryableError,
    RetryPolicy,
    RunnerContext,
    action,
)
from flink_agents.testing import OperatorHarness

DONE: list[Any] = []
"""What durable calls, and clients, did outside."""

AT_ONCE = RetryPolicy(initial_interval=0, max_attempts=3, retry_on=(OSError, RetryableError))


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    """Begin with nothing done."""
    DONE.clear()
    yield
    DONE.clear()


async def price_of(item: str, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    DONE.append(item)
    return 10 * len(item)


async def refuse(item: str) -> int:
    DONE.append(item)
    raise OSError(f"no {item}")


class Priced(Event):
    item: str
    price: int


class Pricer(Agent):
    """Says what a thing costs, in two actions."""

    @action(InputEvent)
    async def look_up(self, event: InputEvent, ctx: RunnerContext) -> Priced:
        ctx.short_term_memory.set("asked", ctx.short_term_memory.get("asked", 0) + 1)
        ctx.sensory_memory.set("seen", event.input)
        return Priced(
            item=event.input,
            price=await ctx.durable_execute_async(price_of, event.input, slowness(event.input)),
        )

    @action(Priced)
    def tell(self, event: Priced, ctx: RunnerContext) -> OutputEvent:
        assert ctx.sensory_memory.get("seen") == event.item
        return OutputEvent(output=(event.item, event.price, ctx.short_term_memory.get("asked")))


def slowness(item: str) -> float:
    return 60.0 if item.startswith("slow") else 0.0


class Refusing(Agent):
    """Writes, and fails then."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> None:
        ctx.short_term_memory.set("wrote", event.input)
        await ctx.durable_execute_async(refuse, event.input)


class Asker(Agent):
    """Executes ``body`` for each input."""

    side_outputs = {"audit": str}

    def __init__(self) -> None:
        super().__init__(name="asker")


def asker(body: Any, **settings: Any) -> Agent:
    """An agent whose action puts out what ``body(ctx, input)`` returns."""

    async def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await body(ctx, event.input))

    return Asker().add_action("act", [InputEvent], act, **settings)


def answers(body: Any, *records: Any, crash: bool = True, **options: Any) -> OperatorHarness:
    """Push ``records`` to an agent that asks, three ways that come to the same."""
    records = records or ("tea",)
    plain = OperatorHarness(asker(body), crash=None, **options)
    plain.push_all(records)
    ways: list[dict[str, Any]] = [{"forced_replay": True, "crash": None}]
    if crash:
        ways += [{"crash": "everywhere"}]
    for way in ways:
        DONE.clear()
        harness = OperatorHarness(asker(body), **way, **options)
        harness.push_all(records)
        assert (harness.outputs, harness.memory()) == (plain.outputs, plain.memory())
        assert harness.side_output("audit") == plain.side_output("audit")
        harness.close()
    return plain
