"""Random numbers that code of an action draws: only where the context may be used."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


class GuardedRandom(random.Random):
    """A generator that draws only where the context may be used. What it draws is that of its base."""

    guard: Callable[[], None] | None = None

    def random(self) -> float:
        """Draw a number below 1."""
        if self.guard is not None:
            self.guard()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        """Draw bits."""
        if self.guard is not None:
            self.guard()
        return super().getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Begin another sequence."""
        if self.guard is not None:
            self.guard()
        super().seed(a, version)

    def setstate(self, state: Any) -> None:
        """Go on where another generator was."""
        if self.guard is not None:
            self.guard()
        super().setstate(state)
