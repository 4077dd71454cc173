"""The installed stores of durable execution, and the options of each of them.

Stores and their options are found by name, so a name or an option can be checked without importing a store.

``memory``, ``sqlite`` and ``kafka`` are part of this package. Another distribution adds one with an entry
point of the group ``flink_agents.action_state_stores``, which names a function, or a class, that takes a
mapping of options and returns an :class:`~flink_agents.api.action_state.ActionStateStore`. One of the group
``flink_agents.action_state_options`` names the options of that store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.common.providers import Providers
from flink_agents.api.errors import OptionError, UnknownStoreError

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


def open_store(name: str, options: Mapping[str, Any] | None = None) -> ActionStateStore:
    """Return a store that is not open yet.

    Args:
        name: Name of the store; see :func:`store_names`.
        options: Its options, without any prefix: ``Configuration.below(f"action-state.{name}")``.

    Raises:
        UnknownStoreError: The store is unknown, or cannot be imported.
        OptionError: An option is unknown, or its value is invalid.
    """
    return STORES.create_object(name, ActionStateStore, dict(options or {}))


def check_store(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Check a store's name and options without importing the store.

    Args:
        name: Name of the store. A third party's store has to be installed on this machine as well.
        options: Its options, without any prefix. A store that declares no options checks them when it is
            opened.

    Raises:
        UnknownStoreError: The store is unknown, or has several providers.
        OptionError: An option is unknown, or its value is invalid.
    """
    STORES.find(name)
    if options_of_store(name) is not None:
        read_options(name, options or {})


def store_names() -> list[str]:
    """Return the names of all installed stores, of this package and of others, sorted."""
    return STORES.names()


def read_options(store: str, job_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each option of ``store``, by its name without the prefix.

    Args:
        store: Name of the store. An option without a default is required, unless it is a mapping of entries.
        job_options: The options that the job sets, without the prefix. Values are strings or already parsed.

    Raises:
        OptionError: An option is unknown, missing or invalid.
    """
    prefix = f"{STORE_PREFIX}{store}."
    options = {key.removeprefix(prefix): option for key, option in (options_of_store(store) or {}).items()}
    groups = tuple(f"{name}." for name, option in options.items() if option.type is dict)
    unknown = sorted(name for name in set(job_options) - set(options) if not name.startswith(groups))
    if unknown:
        raise OptionError(
            f"store {store!r} has no option {unknown[0]!r}",
            expected=f"one of {', '.join(sorted(options))}",
            found=", ".join(unknown),
            fix="correct its name, or remove it",
        )
    return {name: _option_value(name, option, store, job_options) for name, option in options.items()}


def _option_value(name: str, option: ConfigOption[Any], store: str, job_options: Mapping[str, Any]) -> Any:
    """Return the value of the option ``name`` of a store: that of the job, or its default.

    Raises:
        OptionError: It is invalid, or missing and without a default.
    """
    if option.type is dict:
        entries = {
            key.removeprefix(f"{name}."): value
            for key, value in job_options.items()
            if key.startswith(f"{name}.")
        }
        return {**option.parse(job_options.get(name, {})), **entries}
    if name in job_options:
        return option.parse(job_options[name])
    if option.default is None:
        raise OptionError(f"store {store!r} needs its option {option.key!r}", fix=option.doc)
    return option.default
