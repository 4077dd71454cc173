"""Copies of values that need no bytes on their way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values that nobody can change, so that a copy of one is no other value."""


class NotPlain(Exception):
    """A value has a part that is neither a container of plain values nor one of them."""


def plain_copy(value: Any) -> Any:
    """Return a copy of a plain value, which needs no bytes on its way.

    Raises:
        NotPlain: It has a part that is not.
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
    """Return True if nobody can change ``value``: it needs no copy."""
    kind = type(value)
    return kind in UNCHANGING or (kind is tuple and are_unchanging(value))


def are_unchanging(values: Collection[Any]) -> bool:
    """Return True if nobody can change any of ``values``."""
    # Most are of these types themselves, which is told without a call for each.
    return UNCHANGING.issuperset(map(type, values)) or all(map(is_unchanging, values))
