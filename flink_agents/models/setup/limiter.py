"""Limits of the requests to one service, and of the depth of nested conversations.

A request waits inside its recorded call, so that a replay, which sends nothing, does not wait.

A tool that is code of an action can talk to the model that called it. Each conversation has its own limits,
but those do not limit how many of them wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from aiolimiter import AsyncLimiter

from flink_agents.api.common.policies import RateLimit
from flink_agents.api.errors import NestedChatsError


class RequestLimiter:
    """Limits the requests to a service: ``async with`` waits until one more may start.

    It belongs to the event loop on which it is used.

    Args:
        max_concurrency: Maximum number of requests in flight; None for no limit.
        rate: Maximum number of requests that start in a period; None for no limit.
    """

    def __init__(self, max_concurrency: int | None, rate: RateLimit | None) -> None:
        self._slots = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._rate = None if rate is None else AsyncLimiter(rate.calls, rate.per)

    async def __aenter__(self) -> None:
        if self._slots is not None:
            await self._slots.acquire()
        if self._rate is not None:
            try:
                await self._rate.acquire()
            except BaseException:
                await self.__aexit__()
                raise

    async def __aexit__(self, *_: object) -> None:
        if self._slots is not None:
            self._slots.release()


MOST_NESTED = 10
"""Maximum depth of nested conversations. Agents that delegate work need three or four."""

_under_way: ContextVar[tuple[str, ...]] = ContextVar("flink_agents_conversations", default=())
"""Holders of the conversations around the running code, the outermost first."""


@contextmanager
def enter_nested_conversation(holder: str) -> Iterator[None]:
    """Count the conversation of the block as nested in those around the calling code.

    Args:
        holder: Holder of the conversation, for the error: ``the chat model 'analyst'``.

    Raises:
        NestedChatsError: Too many conversations are nested.
    """
    outer_holders = _under_way.get()
    if len(outer_holders) >= MOST_NESTED:
        raise NestedChatsError(
            f"{len(outer_holders)} conversations are nested, and a tool starts one more",
            expected=f"at most {MOST_NESTED}",
            found=" -> ".join([*outer_holders[-3:], holder]),
            fix="pass the inner conversation no tool that leads back to it, by tools=... of the chat model "
            "or of the agent that it calls",
        )
    holders = (*outer_holders, holder)
    _under_way.set(holders)
    try:
        yield
    finally:
        # A task that is dropped while it waits is closed in another task's context.
        if _under_way.get() is holders:
            _under_way.set(outer_holders)
