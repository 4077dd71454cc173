"""Stores of durable execution, by name.

``memory``, ``sqlite`` and ``kafka`` are part of this package. Another distribution adds one with an entry
point of the group ``flink_agents.action_state_stores``, which names a function, or a class, that takes a
mapping of options and returns an :class:`~flink_agents.api.action_state.ActionStateStore`. One of the group
``flink_agents.action_state_options`` names the options of that store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.settings.stores import STORES, options_of_store
from flink_agents.connectors.action_state.options import read_options


def open_store(name: str, options: Mapping[str, Any] | None = None) -> ActionStateStore:
    """Return a store that is not open yet.

    Args:
        name: Name of the store; see :func:`store_names`.
        options: Its options, without any prefix: ``Configuration.below(f"action-state.{name}")``.

    Raises:
        UnknownStoreError: The store is unknown, or cannot be imported.
        OptionError: An option is unknown, or its value is invalid.
    """
    return STORES.make(name, ActionStateStore, dict(options or {}))


def check_store(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Check a store's name and options without importing the store.

    Args:
        name: Name of the store. A third party's store has to be installed on this machine as well.
        options: Its options. A third party's store that declares no options checks them itself.

    Raises:
        UnknownStoreError: The store is unknown, or has several providers.
        OptionError: An option is unknown, or its value is invalid.
    """
    STORES.find(name)
    if options_of_store(name) is not None:
        read_options(name, options or {})


def store_names() -> list[str]:
    """Return the names of all installed stores."""
    return STORES.names()
