"""The order in which inputs return after a restore."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flink_agents.api.errors import AgentConfigurationError

T = TypeVar("T")

Reorder = int | Callable[[list[Any]], Sequence[Any]]
"""A seed, or a function that returns the given inputs in another order."""


def reordered(inputs: Sequence[T], reorder: Reorder | None, record_of: Callable[[T], Any]) -> list[T]:
    """Return the inputs in the order in which they return.

    With a seed, any order is possible: as if each input came from its own source. ``record_of`` makes the
    argument for a function.

    Raises:
        AgentConfigurationError: The function does not return the same inputs.
    """
    given = list(inputs)
    if reorder is None:
        return given
    if isinstance(reorder, int):
        random.Random(reorder).shuffle(given)
        return given
    records = [record_of(one) for one in given]
    found = list(reorder(list(records)))
    if sorted(map(id, found)) != sorted(map(id, records)):
        raise AgentConfigurationError(
            "reorder returned other inputs than it got",
            expected=f"the same {len(given)} inputs in any order",
            found=repr(found)[:300],
            fix="return a permutation of the list: lambda inputs: inputs[::-1]",
        )
    at: dict[int, list[T]] = {}
    for record, one in zip(records, given, strict=True):
        at.setdefault(id(record), []).append(one)
    return [at[id(record)].pop(0) for record in found]
