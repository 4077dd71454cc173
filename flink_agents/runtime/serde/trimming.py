"""Shortens values so that their bytes fit a limit: the start of each part is kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flink_agents.api.errors import StateError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.typenames import shorten

FRAME = 16
"""An upper bound for the bytes of a value's encoding besides those of its parts."""

LEAST = 64
"""A part is dropped if it would be cut below this size."""


def encoded_size(codec: ValueCodec, value: Any) -> int | None:
    """Return the size of the encoding of ``value``; None if it cannot be encoded."""
    try:
        return len(codec.encode(value))
    except (StateError, RecursionError):
        return None


def shares(wanted: list[int], limit: int) -> list[int]:
    """Divide ``limit`` bytes among parts: each gets its size, if all of them fit.

    Small parts get their size; large ones share the rest.
    """
    given, left = [0] * len(wanted), max(0, limit)
    for number, position in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[position] = min(wanted[position], left // (len(wanted) - number))
        left -= given[position]
    return given


def cut(text: str, limit: int) -> str:
    """Return the beginning of ``text``, in at most ``limit`` bytes of UTF-8."""
    text = text[: max(0, limit)]
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text
    end = max(0, limit)
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


def trimmed(codec: ValueCodec, value: Any, limit: int) -> Any:
    """Return ``value`` with its larger parts cut, so that its encoding has about ``limit`` bytes at most.

    Strings and bytes keep their start, lists and dictionaries as many entries as fit. A value
    of another class becomes the start of its representation.

    Raises:
        StateError: A part of it cannot be encoded.
    """
    if len(codec.encode(value)) <= limit:
        return value
    room = limit - FRAME
    if type(value) is str:
        return cut(value, room)
    if type(value) in (bytes, bytearray):
        return bytes(value[: max(0, room)])
    if type(value) in (list, tuple):
        return type(value)(_items(codec, list(value), room))
    if type(value) is dict:
        return _entries(codec, value, room)
    return cut(shorten(value), room)


def _items(codec: ValueCodec, items: list[Any], room: int) -> list[Any]:
    sizes = _fitting((len(codec.encode(item)) for item in items), room, 0)
    return [trimmed(codec, item, share) for item, share in zip(items, shares(sizes, room), strict=False)]


def _entries(codec: ValueCodec, entries: dict[Any, Any], room: int) -> dict[Any, Any]:
    """Return the first entries; their keys stay whole, since a cut key is a different one."""
    keys = {key: len(codec.encode(key)) for key in entries}
    longest = max(keys.values())
    sizes = _fitting((len(codec.encode(entries[key])) + size for key, size in keys.items()), room, longest)
    return {
        key: trimmed(codec, entries[key], share - size)
        for (key, size), share in zip(keys.items(), shares(sizes, room), strict=False)
        if share > size
    }


def _fitting(sizes: Iterable[int], room: int, whole: int) -> list[int]:
    """Return the sizes of as many parts as fit, each of which may be cut to ``whole + LEAST`` bytes."""
    fitting = list[int]()
    for size in sizes:
        room -= min(size, whole + LEAST) + 1
        if room < 0:
            break
        fitting.append(size)
    return fitting
