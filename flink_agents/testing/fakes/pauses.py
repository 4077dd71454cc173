"""Counts the pauses between the attempts of a call or an action in a harness."""

from __future__ import annotations

import asyncio


class Pauses:
    """Pauses on the event loop, which follows the clock of the harness.

    Attributes:
        waiting: Number of pauses that have not ended.
    """

    def __init__(self) -> None:
        self.waiting = 0

    async def pause(self, seconds: float) -> None:
        """Wait until the clock of the harness has advanced by ``seconds``."""
        self.waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.waiting -= 1
