"""Sets that do not grow with what they were ever given: of the last ones, or of all of them, but for errors.

A job may see as many keys as there are orders. What a subtask knows of them beyond their state is
therefore bounded, and whoever asks has to do with an answer that errs on one side.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SEEN_BITS = 2**25
"""4 MB. Behind a million of things, one in 7,000 others seems to have been added as well; behind ten million
one in four."""

PROBES = 4
"""How many bits stand for a thing."""


class Recent(Generic[T]):
    """The last things that were added. For any thread.

    Args:
        most: How many there are at most.

    Attributes:
        things: Those that are there.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.things: dict[T, None] = {}
        self._lock = threading.Lock()

    def add(self, thing: T) -> None:
        """Add ``thing``; the one that was added first goes where there are too many."""
        with self._lock:
            self.things[thing] = None
            if len(self.things) > self._most:
                del self.things[next(iter(self.things))]

    def discard(self, thing: T) -> None:
        """Remove ``thing``, if it is there."""
        with self._lock:
            self.things.pop(thing, None)

    def __contains__(self, thing: T) -> bool:
        return thing in self.things

    def __len__(self) -> int:
        return len(self.things)


class BloomFilter:
    """All things that were ever added, and some that were not (a Bloom filter). For one thread.

    Args:
        bits: How many bits there are, a power of two.
    """

    def __init__(self, bits: int = SEEN_BITS) -> None:
        self._mask = bits - 1
        self._bits: bytearray | None = None

    def add(self, thing: Hashable) -> None:
        """Add ``thing``."""
        if self._bits is None:  # where nothing is ever added, nothing is taken
            self._bits = bytearray((self._mask + 1) // 8)
        for place in self._places(thing):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, thing: Hashable) -> bool:
        bits = self._bits
        return bits is not None and all(bits[place >> 3] >> (place & 7) & 1 for place in self._places(thing))

    def _places(self, thing: Hashable) -> list[int]:
        first = hash(thing)
        step = hash((first, PROBES)) | 1
        return [(first + number * step) & self._mask for number in range(PROBES)]
