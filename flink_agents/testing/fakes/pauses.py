"""Pauses between the attempts of a call or an action, on the clock of a harness."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

SHORT_SECONDS = 0.001
"""Duration of a pause while a harness runs until idle: other work in flight gets a turn."""


class Pauses:
    """Pauses that end when a harness runs until idle, or when its clock reaches their time.

    Args:
        clock: The wall-clock time of the harness in milliseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count()
        self._open: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ending = 0

    async def pause(self, seconds: float) -> None:
        """Wait until the clock has advanced by ``seconds``, or the harness runs until idle."""
        ended = self._open_pause(seconds)
        await (asyncio.sleep(min(seconds, SHORT_SECONDS)) if ended is None else ended)

    def _open_pause(self, seconds: float) -> asyncio.Future[None] | None:
        """Return the future that the end of a pause resolves; None if the harness runs until idle."""
        with self._lock:
            if self._ending:
                return None
            ended = asyncio.get_running_loop().create_future()
            due = self._clock() + int(seconds * 1000)
            heapq.heappush(self._open, (due, next(self._numbers), ended))
            return ended

    @contextmanager
    def ended_at_once(self) -> Iterator[None]:
        """End pauses at once."""
        with self._lock:
            self._ending += 1
        self.end_due(None)
        try:
            yield
        finally:
            with self._lock:
                self._ending -= 1

    @property
    def waiting(self) -> int:
        """The number of pauses that have not ended."""
        with self._lock:
            return sum(not future.done() for _, _, future in self._open)

    def end_due(self, until: int | None) -> None:
        """End the pauses that are due at a time; with None, all of them."""
        ended: list[asyncio.Future[None]] = []
        with self._lock:
            while self._open and (until is None or self._open[0][0] <= until):
                ended.append(heapq.heappop(self._open)[2])
        for future in ended:
            loop = future.get_loop()
            # A closed operator has closed its loop.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_end, future)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
