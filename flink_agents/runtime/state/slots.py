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
"""Returns lists, maps and plain values as MessagePack. The caller puts a version byte before it."""


def unpack(entry_name: str, data: bytes, make_entry: Callable[[Any], T], version: bytes) -> T:
    """Return an entry of state from its bytes.

    Args:
        entry_name: The entry, for messages: such as ``the head of a key``.
        data: A version byte, and MessagePack.
        make_entry: Returns the entry for the unpacked MessagePack.
        version: The version byte that the entry must have.

    Raises:
        StateFormatError: The bytes are corrupt, or of an unknown version.
    """
    if data[:1] != version:
        raise unknown_version(entry_name, data, version)
    try:
        return make_entry(msgpack.unpackb(data[1:], strict_map_key=False, unicode_errors="surrogatepass"))
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise StateFormatError(f"{entry_name} cannot be read", found=str(error)) from error


class ValueSlot(Protocol):
    """A state with one value, as bytes, for each key; it gives access to that of the current key."""

    def value(self) -> bytes | None:
        """Return the bytes; None if the key has no value."""
        ...

    def update(self, value: bytes) -> None:
        """Set the value of the current key."""
        ...

    def clear(self) -> None:
        """Remove the value of the current key."""
        ...


class OperatorSlot(Protocol):
    """A map of the operator from text to bytes, which belongs to no key: each subtask has a copy."""

    def put(self, name: str, value: bytes) -> None:
        """Set the bytes under ``name``."""
        ...

    def items(self) -> Iterable[tuple[str, bytes]]:
        """Return all entries as pairs; after a restore, those of all former subtasks, so names may repeat."""
        ...


class MapSlot(Protocol[K]):
    """A state with a map to bytes for each key; it gives access to that of the current key."""

    def get(self, key: K) -> bytes | None:
        """Return the bytes under ``key``; None if there are none."""
        ...

    def put(self, key: K, value: bytes) -> None:
        """Set the bytes under ``key``."""
        ...

    def remove(self, key: K) -> None:
        """Remove the entry of ``key``, if there is one."""
        ...

    def items(self) -> Iterable[tuple[K, bytes]]:
        """Return all entries that have not expired, as pairs of key and bytes."""
        ...

    def clear(self) -> None:
        """Remove all entries, and the map itself."""
        ...
