"""Which stores of durable execution third parties have installed.

They announce them by entry points, so that options and stores are found by name without an import.
"""

from __future__ import annotations

from importlib.metadata import entry_points

ENTRY_POINT_GROUP = "flink_agents.action_state_stores"
"""Each entry point names a function, or a class, that makes a store of a mapping of options."""

STORE_PREFIX = "action-state."
"""Behind it stand the name of a store, a dot, and an option of that store."""

BUILT_IN_STORES = ("kafka", "memory", "sqlite")
"""The stores of this package; nobody else can provide one of these names."""

CLIENT_OPTIONS = f"{STORE_PREFIX}kafka.client."
"""Options behind it go to Kafka's client as they are."""


def third_party_stores(key: str = STORE_PREFIX) -> list[str]:
    """Names of installed stores that are not of this package, longest first.

    Args:
        key: Where this is no key of an option of stores, there are none: nothing is looked for.
    """
    if not key.startswith(STORE_PREFIX):
        return []
    names = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return sorted(names.difference(BUILT_IN_STORES), key=lambda name: (-len(name), name))
