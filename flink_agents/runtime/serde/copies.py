"""Copies values without encoding them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of immutable values, which need no copy."""


class NotPlain(Exception):
    """A value has a part that is neither plain nor a container of plain values."""


def plain_copy(value: Any) -> Any:
    """Return a copy of a plain value, without encoding it.

    Raises:
        NotPlain: A part of it is not plain.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if kind is dict:
        if not UNCHANGING.issuperset(map(type, value)):
            raise NotPlain
        if UNCHANGING.issuperset(map(type, value.values())):
            return dict(value)
        return {name: plain_copy(part) for name, part in value.items()}
    if kind is list or kind is tuple:
        return kind([plain_copy(part) for part in value])
    raise NotPlain


def is_unchanging(value: Any) -> bool:
    """Return True if ``value`` is immutable and needs no copy."""
    kind = type(value)
    return kind in UNCHANGING or (kind is tuple and are_unchanging(value))


def are_unchanging(values: Collection[Any]) -> bool:
    """Return True if all ``values`` are immutable."""
    # Most have exactly these types, which can be checked without a call for each.
    return UNCHANGING.issuperset(map(type, values)) or all(map(is_unchanging, values))
