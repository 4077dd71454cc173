"""The interface of Flink's state that the core uses, and the form of the runtime's own entries in it.

State has values and maps of a key, and a map of the operator. An entry has a version byte, and MessagePack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

import msgpack

from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.serde.codec import unknown_version

K = TypeVar("K")
T = TypeVar("T")

pack = cast("Callable[[object], bytes]", msgpack.packb)


def unpack(what: str, data: bytes, make: Callable[[Any], T], version: bytes) -> T:
    """Return an entry from its bytes.

    Args:
        what: The entry, for messages.
        data: The bytes.
        make: Returns the entry for what MessagePack has.
        version: The version that it must have.

    Raises:
        StateFormatError: The bytes are corrupt, or of an unknown version.
    """
    if data[:1] != version:
        raise unknown_version(what, data, version)
    try:
        return make(msgpack.unpackb(data[1:], strict_map_key=False))
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise StateFormatError(f"{what} cannot be read", found=str(error)) from error


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
