"""The agent of the chaos runs: durable calls whose effects are counted outside of its process.

Each call appends a line to a file when it takes effect, and the action another one as soon as it
may rely on the call's record:

    effect KEY NUMBER STEP TOKEN IDEMPOTENCY_KEY PID
    record KEY NUMBER STEP TOKEN

The token is another one at each effect, and is what the call returns. So the file tells how often
a call took effect, whether one of the effects came after the record, and which of them the action
saw. :mod:`tests.cluster.durable_check` reads it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import zlib
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any

from flink_agents import Agent, Event, InputEvent, OutputEvent, TerminalError, action
from tests.cluster.counting_job import extended_digest

PARALLEL = ("reserve-0", "reserve-1", "reserve-2")
"""Steps whose calls run side by side."""

DECLINED_EVERY = 7
"""The call of each such number fails for good; the action makes another one instead."""

SPREAD_MS = 20
"""The longest time that a call takes."""


class Reserved(Event):
    number: int
    begun: int
    tokens: list[str]


class Charged(Event):
    number: int
    begun: int
    charged: int
    tokens: list[str]


class ChainAgent(Agent):
    """Three chained actions: parallel calls, calls one after the other, a call in a ``def`` action.

    Each keeps something in memory: how many runs were begun, the sum of all numbers, and a digest
    of the numbers in their order.
    """

    output_type = str

    def __init__(self, seed: int, effects: str) -> None:
        self.seed = seed
        self.effects = effects

    @action(InputEvent)
    async def reserve(self, event: InputEvent, ctx: Any) -> Reserved:
        number: int = event.input
        run_count = ctx.short_term_memory.get("begun", 0) + 1
        ctx.short_term_memory.set("begun", run_count)
        calls: list[Awaitable[str]] = []
        for place, step in enumerate(PARALLEL):
            # One of them blocks a thread of the pool.
            effect = blocking_effect if place == 1 else waiting_effect
            calls.append(ctx.durable_execute_async(effect, *self._arguments(ctx, number, step)))
        noted = [self._noted(ctx, number, step, call) for step, call in zip(PARALLEL, calls, strict=True)]
        return Reserved(number=number, begun=run_count, tokens=await asyncio.gather(*noted))

    @action(Reserved)
    async def charge(self, event: Reserved, ctx: Any) -> Charged:
        number = event.number
        tokens = list(event.tokens)
        charged = ctx.short_term_memory.get("charged", 0) + number
        try:
            call = ctx.durable_execute_async(charging_effect, *self._arguments(ctx, number, "charge"))
            tokens.append(await self._noted(ctx, number, "charge", call))
        except TerminalError as declined:
            # A failure is recorded together with the next call.
            call = ctx.durable_execute_async(waiting_effect, *self._arguments(ctx, number, "refund"))
            refunded = await self._noted(ctx, number, "refund", call)
            note(self.effects, "record", ctx.key, number, "charge", str(declined))
            tokens += [str(declined), refunded]
        ctx.short_term_memory.set("charged", charged)
        return Charged(number=number, begun=event.begun, charged=charged, tokens=tokens)

    @action(Charged)
    def settle(self, event: Charged, ctx: Any) -> OutputEvent:
        number = event.number
        token = ctx.durable_execute(blocking_effect, *self._arguments(ctx, number, "settle"))
        note(self.effects, "record", ctx.key, number, "settle", token)
        digest = extended_digest(ctx.short_term_memory.get("digest", 0), number)
        ctx.short_term_memory.set("digest", digest)
        tokens = ",".join([*event.tokens, token])
        return OutputEvent(output=f"{ctx.key} {number} {event.begun} {event.charged} {digest} {tokens}")

    def _arguments(self, ctx: Any, number: int, step: str) -> tuple[Any, ...]:
        return self.effects, self.seed, ctx.key, number, step

    async def _noted(self, ctx: Any, number: int, step: str, call: Awaitable[str]) -> str:
        token = await call
        note(self.effects, "record", ctx.key, number, step, token)
        return token


def steps_of(number: int) -> Sequence[str]:
    """The steps of a number, in the order of its tokens."""
    refund = ("refund",) if number % DECLINED_EVERY == 0 else ()
    return (*PARALLEL, "charge", *refund, "settle")


def duration(seed: int, number: int, step: str) -> float:
    """How long a call takes, in seconds; the same in each attempt."""
    return (1 + zlib.crc32(f"{seed}:{number}:{step}".encode()) % SPREAD_MS) / 1000


# -- effects --------------------------------------------------------------------------


async def waiting_effect(path: str, seed: int, key: int, number: int, step: str, idempotency_key: str) -> str:
    """Take effect in the middle of the time that it takes."""
    half = duration(seed, number, step) / 2
    await asyncio.sleep(half)
    token = take_effect(path, key, number, step, idempotency_key)
    await asyncio.sleep(half)
    return token


def blocking_effect(path: str, seed: int, key: int, number: int, step: str, idempotency_key: str) -> str:
    """The same, for threads."""
    half = duration(seed, number, step) / 2
    time.sleep(half)
    token = take_effect(path, key, number, step, idempotency_key)
    time.sleep(half)
    return token


async def charging_effect(
    path: str, seed: int, key: int, number: int, step: str, idempotency_key: str
) -> str:
    """The same; fails for some numbers after it took effect, with the token as the message."""
    token = await waiting_effect(path, seed, key, number, step, idempotency_key)
    if number % DECLINED_EVERY == 0:
        raise TerminalError(token)
    return token


def take_effect(path: str, key: int, number: int, step: str, idempotency_key: str) -> str:
    """Append that the call took effect; returns a new token."""
    token = secrets.token_hex(6)
    note(path, "effect", key, number, step, token, idempotency_key, os.getpid())
    return token


def note(path: str, *words: Any) -> None:
    """Append a line. It is written as a whole, whoever else writes and whenever the process dies."""
    os.write(_opened(path), (" ".join(map(str, words)) + "\n").encode())


@lru_cache(maxsize=8)
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
