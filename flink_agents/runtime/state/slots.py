"""The interface of Flink's state that the core uses: values and maps of a key, a map of the operator."""

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


class OperatorSlot(Protocol):
    """A map of the operator, which belongs to no key: each subtask has a copy."""

    def put(self, name: str, value: bytes) -> None:
        """Set the bytes under ``name``."""
        ...

    def items(self) -> Iterable[tuple[str, bytes]]:
        """Return all entries; after a restore, also the positions of subtasks that this one continues."""
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
        """Return all entries that have not expired."""
        ...

    def clear(self) -> None:
        """Remove all entries, and the map itself."""
        ...
