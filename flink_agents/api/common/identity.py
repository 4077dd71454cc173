"""``IdentityCache``: caches facts about objects for as long as each of them lives."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class IdentityCache(Generic[Value]):
    """A weak cache whose keys are compared by identity, not by equality.

    Code objects of two files are equal if their instructions are, and classes can define equality, so facts
    about one object do not apply to an equal one. The cache keeps no object alive.
    """

    def __init__(self) -> None:
        self._cached: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, owner: object) -> Value | None:
        """Return the value that was stored for this object; None if there is none."""
        entry = self._cached.get(id(owner))
        # Another object can get the id of a deleted one.
        return entry[1] if entry is not None and entry[0]() is owner else None

    def put(self, owner: object, value: Value) -> Value:
        """Store a value for an object, which must allow weak references, and return the value."""
        cached = self._cached
        owner_id = id(owner)

        def forget(reference: weakref.ref[Any]) -> None:
            if (entry := cached.get(owner_id)) is not None and entry[0] is reference:
                del cached[owner_id]

        cached[owner_id] = weakref.ref(owner, forget), value
        return value

    def __len__(self) -> int:
        return len(self._cached)
