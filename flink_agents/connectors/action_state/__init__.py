"""Stores of durable execution, by name.

``memory``, ``sqlite`` and ``kafka`` are part of this package. Another distribution adds one by an entry point
of the group ``flink_agents.action_state_stores``, which names a function, or a class, that takes a
mapping of options and returns an :class:`~flink_agents.api.action_state.ActionStateStore`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.errors import UnknownStoreError
from flink_agents.api.store_names import BUILT_IN_STORES, ENTRY_POINT_GROUP, third_party_stores
from flink_agents.connectors.action_state.options import read_options

BUILT_IN = {
    "kafka": "flink_agents.connectors.action_state.kafka.store:KafkaStore.from_options",
    "memory": "flink_agents.connectors.action_state.memory:MemoryStore.from_options",
    "sqlite": "flink_agents.connectors.action_state.sqlite:SQLiteStore.from_options",
}
"""Stores of this package; each is imported when a job uses it."""

StoreFactory = Callable[[Mapping[str, Any]], ActionStateStore]


def open_store(name: str, options: Mapping[str, Any] | None = None) -> ActionStateStore:
    """A store, which is still to be opened.

    Args:
        name: Which one; see :func:`store_names`.
        options: Its options, without any prefix: ``Configuration.below(f"action-state.{name}")``.

    Raises:
        UnknownStoreError: There is no such store, or it cannot be imported.
        OptionError: It has no such option, or a value does not fit.
    """
    made = _factory(name)(dict(options or {}))
    if not isinstance(made, ActionStateStore):
        raise UnknownStoreError(
            f"the provider of store {name!r} returns no store",
            expected="an object of a subclass of ActionStateStore",
            found=type(made).__name__,
            fix=f"correct its entry point in the group {ENTRY_POINT_GROUP}",
        )
    return made


def check_store(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Refuse what :func:`open_store` would, as far as that can be told without importing a store.

    Args:
        name: Which one; that of a third party has to be installed here as well.
        options: Its options. Those of a third party are checked where its store is made.

    Raises:
        UnknownStoreError: There is no such store, or several.
        OptionError: A store of this package has no such option, or a value does not fit.
    """
    if name in BUILT_IN:
        read_options(name, options or {})
    else:
        _entry_point(name)


def store_names() -> list[str]:
    """The names of all stores that are installed."""
    return sorted({*BUILT_IN_STORES, *third_party_stores()})


def _factory(name: str) -> StoreFactory:
    if name in BUILT_IN:
        module, _, path = BUILT_IN[name].partition(":")
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return found
    return _load(_entry_point(name))


def _entry_point(name: str) -> EntryPoint:
    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if len({point.value for point in points}) == 1:
        return points[0]
    raise UnknownStoreError(
        f"several distributions provide a store {name!r}" if points else f"there is no store {name!r}",
        expected=f"one of {', '.join(store_names())}",
        found=", ".join(point.value for point in points) or name,
        fix=f"install a distribution with one entry point {name!r} in the group {ENTRY_POINT_GROUP}",
    )


def _load(point: EntryPoint) -> StoreFactory:
    try:
        return point.load()
    except Exception as error:
        raise UnknownStoreError(
            f"the provider of store {point.name!r} cannot be imported",
            found=f"{point.value}: {type(error).__name__}: {error}",
            fix="install what it needs, in the workers of the cluster as well",
        ) from error
