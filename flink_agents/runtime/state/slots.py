"""The interface of Flink's keyed state that the core uses: a value and a map of the current key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

K = TypeVar("K")


class ValueSlot(Protocol):
    """A value of the current key."""

    def value(self) -> bytes | None:
        """Return the bytes, or None."""
        ...

    def update(self, value: bytes) -> None:
        """Replace the bytes."""
        ...

    def clear(self) -> None:
        """Remove the bytes."""
        ...


class MapSlot(Protocol[K]):
    """A map of the current key."""

    def get(self, key: K) -> bytes | None:
        """Return the bytes under ``key``, or None."""
        ...

    def put(self, key: K, value: bytes) -> None:
        """Set the bytes under ``key``."""
        ...

    def remove(self, key: K) -> None:
        """Remove ``key``."""
        ...

    def items(self) -> Iterable[tuple[K, bytes]]:
        """Return all entries."""
        ...
