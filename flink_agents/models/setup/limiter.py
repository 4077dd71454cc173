"""Limits of the requests to one service, of all keys of a subtask.

A request waits inside its recorded call, so that a replay, which sends nothing, does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiolimiter import AsyncLimiter

from flink_agents.api.common.policies import RateLimit


class RequestLimiter:
    """Limits the requests to a service. It belongs to the loop on which it is made.

    Args:
        max_concurrency: Maximum number of requests in flight, or None.
        rate: Maximum number of requests that start in a period, or None.
    """

    def __init__(self, max_concurrency: int | None, rate: RateLimit | None) -> None:
        self._slots = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        self._rate = None if rate is None else AsyncLimiter(rate.calls, rate.per)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until one more request may start; on exit, let the next one start."""
        if self._slots is not None:
            await self._slots.acquire()
        try:
            if self._rate is not None:
                await self._rate.acquire()
            yield
        finally:
            if self._slots is not None:
                self._slots.release()
