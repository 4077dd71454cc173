"""The installed stores of durable execution, and the options of each of them.

Stores and their options are found by name: a name or an option can be checked without importing a store.
"""

from __future__ import annotations

from typing import Any

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.common.providers import Providers
from flink_agents.api.errors import UnknownStoreError

STORE_PREFIX = "action-state."
"""Behind it stand the name of a store, a dot, and an option of that store."""

_HOME = "flink_agents.connectors.action_state"

STORES = Providers(
    "flink_agents.action_state_stores",
    "store",
    UnknownStoreError,
    {
        "memory": f"{_HOME}.memory.store:MemoryStore.from_options",
        "sqlite": f"{_HOME}.sqlite.store:SQLiteStore.from_options",
        "kafka": f"{_HOME}.kafka.store:KafkaStore.from_options",
    },
)
"""Each names a function, or a class, that makes a store of a mapping of options."""

STORE_OPTIONS = Providers(
    "flink_agents.action_state_options",
    "list of options of the store",
    UnknownStoreError,
    {name: f"{_HOME}.{name}.options:OPTIONS" for name in STORES.built_in},
)
"""Each has the name of a store, and names its ``ConfigOption``s. A third party may leave it out."""


def third_party_stores(key: str = STORE_PREFIX) -> list[str]:
    """Return the names of installed stores that are not of this package, longest first.

    Args:
        key: Where this is no key of an option of stores, there are none: nothing is looked for.
    """
    if not key.startswith(STORE_PREFIX):
        return []
    names = set(STORES.names()).difference(STORES.built_in)
    return sorted(names, key=lambda name: (-len(name), name))


def options_of_store(store: str) -> dict[str, ConfigOption[Any]] | None:
    """Return the options of a store by key; None of a store of a third party that does not tell them.

    Raises:
        UnknownStoreError: What a third party names as its options are none.
    """
    if store not in STORE_OPTIONS:
        return None
    declared: Any = STORE_OPTIONS.load(store)
    prefix = f"{STORE_PREFIX}{store}."
    if not all(isinstance(one, ConfigOption) and one.key.startswith(prefix) for one in declared):
        raise UnknownStoreError(
            f"the options of store {store!r} are none",
            expected=f"ConfigOption objects with keys that begin with {prefix}",
            found=repr(declared)[:200],
            fix=f"correct its entry point in the group {STORE_OPTIONS.group}",
        )
    return {one.key: one for one in declared}
