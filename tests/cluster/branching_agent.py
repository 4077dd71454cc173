"""The agent of the other chaos job: branches with calls, a race, and memory that expires.

It notes effects and records as :mod:`tests.cluster.durable_agent` says. What it finds in memory goes into
its calls, so that a replay that finds something else does not go on. :mod:`tests.cluster.branching_check`
judges what it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from flink_agents import Agent, Event, InputEvent, OutputEvent, TerminalError, action
from tests.cluster.counting_job import extended_digest
from tests.cluster.durable_agent import (
    DECLINED_EVERY,
    blocking_effect,
    charging_effect,
    note,
    waiting_effect,
)

BRANCHES = ("left", "right")

BRANCHED = ("left-0", "left-1", "right-0", "right-1")
"""Steps of the branches, each of which makes one call after the other."""

RACE = ("race-0", "race-1", "race-2")
"""Steps of which the first one that ends is kept; the others are cancelled."""

CLOSE = "close"


class Branched(Event):
    number: int
    begun: int
    tokens: list[str]


class Raced(Event):
    number: int
    begun: int
    tokens: list[str]


class BranchingAgent(Agent):
    """Three chained actions: branches side by side, a race, a call in a ``def`` action."""

    output_type = str

    def __init__(self, seed: int, effects: str) -> None:
        self.seed = seed
        self.effects = effects

    @action(InputEvent)
    async def branch(self, event: InputEvent, ctx: Any) -> Branched:
        number: int = event.input
        run_count = ctx.short_term_memory.get("begun", 0) + 1
        ctx.short_term_memory.set("begun", run_count)
        both = await asyncio.gather(*(self._branch(ctx, number, side, run_count) for side in BRANCHES))
        return Branched(number=number, begun=run_count, tokens=[token for tokens in both for token in tokens])

    async def _branch(self, ctx: Any, number: int, side: str, begun: int) -> list[str]:
        first = await self._call(ctx, number, f"{side}-0", begun)
        self._note(ctx, number, f"{side}-0", first)
        try:
            # What one call gave goes into the next one, so that branches cannot be mixed up unseen.
            second = await self._call(ctx, number, f"{side}-1", first, seeing_and_charging)
        except TerminalError as declined:
            return [first, str(declined)]
        self._note(ctx, number, f"{side}-1", second)
        return [first, second]

    @action(Branched)
    async def race(self, event: Branched, ctx: Any) -> Raced:
        number = event.number
        if is_declined(number):
            # These failures are recorded by now, with the end of the action.
            for step, token in zip(BRANCHED[1::2], event.tokens[1::2], strict=True):
                self._note(ctx, number, step, token)
        racing = {asyncio.ensure_future(self._call(ctx, number, step, event.begun)): step for step in RACE}
        done, pending = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        winner = min(done, key=lambda future: racing[future])
        self._note(ctx, number, racing[winner], winner.result())
        return Raced(number=number, begun=event.begun, tokens=[*event.tokens, winner.result()])

    @action(Raced)
    def close(self, event: Raced, ctx: Any) -> OutputEvent:
        number = event.number
        total = ctx.short_term_memory.get("total", 0) + number
        digest = extended_digest(ctx.short_term_memory.get("digest", 0), number)
        token = ctx.durable_execute(seeing_in_thread, [total, digest], *self._arguments(ctx, number, CLOSE))
        self._note(ctx, number, CLOSE, token)
        ctx.short_term_memory.set("total", total)
        ctx.short_term_memory.set("digest", digest)
        tokens = ",".join([*event.tokens, token])
        return OutputEvent(output=f"{ctx.key} {number} {event.begun} {total} {digest} {tokens}")

    def _arguments(self, ctx: Any, number: int, step: str) -> tuple[Any, ...]:
        return self.effects, self.seed, ctx.key, number, step

    def _call(
        self, ctx: Any, number: int, step: str, seen: Any, effect: Callable[..., Any] | None = None
    ) -> Awaitable[str]:
        return ctx.durable_execute_async(effect or seeing, seen, *self._arguments(ctx, number, step))

    def _note(self, ctx: Any, number: int, step: str, token: str) -> None:
        note(self.effects, "record", ctx.key, number, step, token)


def is_declined(number: int) -> bool:
    """Whether the last call of each branch fails for good."""
    return number % DECLINED_EVERY == 0


async def seeing(seen: Any, *arguments: Any, idempotency_key: str) -> str:
    """Take effect; ``seen`` is part of the call's identity."""
    return await waiting_effect(*arguments, idempotency_key=idempotency_key)


async def seeing_and_charging(seen: Any, *arguments: Any, idempotency_key: str) -> str:
    """The same; fails for some numbers after it took effect."""
    return await charging_effect(*arguments, idempotency_key=idempotency_key)


def seeing_in_thread(seen: Any, *arguments: Any, idempotency_key: str) -> str:
    """The same, for threads."""
    return blocking_effect(*arguments, idempotency_key=idempotency_key)
