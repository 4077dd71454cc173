"""Sets of bounded size: one of the last items, and one of all items with false positives.

A job may see an unbounded number of keys, such as one for each order. So a subtask remembers only a bounded
amount besides their state, and its callers can handle errors on one side.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SEEN_BITS = 2**25
"""The default size: 4 MB.

After a million items, one in 7,000 others is a false positive; after ten million, one in four.
"""

PROBES = 4
"""The number of bits for each item."""


class Recent(Generic[T]):
    """The last items that were added. For any thread.

    Args:
        most: The most items.

    Attributes:
        things: The items.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.things: dict[T, None] = {}
        self._lock = threading.Lock()

    def add(self, thing: T) -> None:
        """Add an item. If there are too many, the oldest is removed."""
        with self._lock:
            self.things[thing] = None
            if len(self.things) > self._most:
                del self.things[next(iter(self.things))]

    def discard(self, thing: T) -> None:
        """Remove an item, if it is there."""
        with self._lock:
            self.things.pop(thing, None)

    def __contains__(self, thing: T) -> bool:
        return thing in self.things

    def __len__(self) -> int:
        return len(self.things)


class BloomFilter:
    """A set of all items that were ever added, with some false positives. For one thread.

    Args:
        bits: The number of bits, a power of two.
    """

    def __init__(self, bits: int = SEEN_BITS) -> None:
        self._mask = bits - 1
        self._bits: bytearray | None = None

    def add(self, thing: Hashable) -> None:
        """Add an item."""
        if self._bits is None:  # an empty filter takes no memory
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
