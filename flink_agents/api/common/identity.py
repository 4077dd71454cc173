"""``IdentityCache``: keeps what was found out about objects for as long as each of them lives."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class IdentityCache(Generic[Value]):
    """Values by object, where an equal object is another one.

    Code objects of two files are equal where their instructions are, and classes can define what is equal to
    them; what was read in the source of one says nothing about the other. The cache keeps no object alive.
    """

    def __init__(self) -> None:
        self._cached: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, owner: object) -> Value | None:
        """Return the value of an object, or None."""
        found = self._cached.get(id(owner))
        # Another object can have the number of one that is gone.
        return found[1] if found is not None and found[0]() is owner else None

    def put(self, owner: object, value: Value) -> Value:
        """Keep the value of an object, which must allow weak references; returns it."""
        cached, number = self._cached, id(owner)

        def forget(reference: weakref.ref[Any]) -> None:
            if (found := cached.get(number)) is not None and found[0] is reference:
                del cached[number]

        cached[number] = weakref.ref(owner, forget), value
        return value

    def __len__(self) -> int:
        return len(self._cached)
