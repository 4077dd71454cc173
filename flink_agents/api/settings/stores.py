"""The installed stores of durable execution, and the options of each of them.

Stores and their options are found by name, so a name or an option can be checked without importing a store.
"""

from __future__ import annotations

from typing import Any

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.common.providers import Providers
from flink_agents.api.errors import UnknownStoreError

STORE_PREFIX = "action-state."
"""Prefix of options of stores; the name of a store, a dot, and the option follow."""

STORES = Providers("flink_agents.action_state_stores", "store", UnknownStoreError)
"""Each provider is a function or a class that creates a store from a mapping of options."""

STORE_OPTIONS = Providers(
    "flink_agents.action_state_options", "list of options of the store", UnknownStoreError
)
"""Each provider has the name of a store, and is a list of ``ConfigOption``. A third party may omit it."""


def third_party_stores(key: str = STORE_PREFIX) -> list[str]:
    """Return the names of installed third-party stores, the longest first.

    Args:
        key: An option's key. If it is not an option of a store, the result is empty, without a search.
    """
    if not key.startswith(STORE_PREFIX):
        return []
    names = set(STORES.names()).difference(STORES.built_in)
    return sorted(names, key=lambda name: (-len(name), name))


def options_of_store(store: str) -> dict[str, ConfigOption[Any]] | None:
    """Return the options of a store by key; None if a third-party store does not declare them.

    Raises:
        UnknownStoreError: The declared options of a third-party store are invalid.
    """
    if store not in STORE_OPTIONS:
        return None
    declared: Any = STORE_OPTIONS.load(store)
    prefix = f"{STORE_PREFIX}{store}."
    if not all(isinstance(option, ConfigOption) and option.key.startswith(prefix) for option in declared):
        raise UnknownStoreError(
            f"the options of store {store!r} are invalid",
            expected=f"ConfigOption objects with keys that begin with {prefix}",
            found=repr(declared)[:200],
            fix=f"correct its entry point in the group {STORE_OPTIONS.group}",
        )
    return {option.key: option for option in declared}
