"""The stores of this package do what every store must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from broken_stores import kill_in_memory

from flink_agents.api.action_state import ActionStateStore
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.testing.store_conformance import ActionStateStoreSuite

LEASE_SECONDS = 1.0
REMOVALS = 20


class TestMemory(ActionStateStoreSuite):
    removals = REMOVALS

    @pytest.fixture
    def make_store(self) -> Callable[[], ActionStateStore]:
        place = MemoryPlace()
        return lambda: MemoryStore(place, removals=REMOVALS)

    async def kill(self, store: ActionStateStore) -> None:
        kill_in_memory(store)


class TestSQLite(ActionStateStoreSuite):
    removals = REMOVALS

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], ActionStateStore]:
        file = tmp_path / "directory" / "store.db"
        return lambda: SQLiteStore(file, lease_seconds=LEASE_SECONDS, removals=REMOVALS)

    @pytest.fixture
    def store_files(self, tmp_path: Path) -> Path:
        return tmp_path / "directory"

    async def kill(self, store: ActionStateStore) -> None:
        assert isinstance(store, SQLiteStore)
        store.kill()


class TestMemoryThatRemembersMore(ActionStateStoreSuite):
    """The cases of a store without a bound."""

    @pytest.fixture
    def make_store(self) -> Callable[[], ActionStateStore]:
        place = MemoryPlace()
        return lambda: MemoryStore(place)

    async def kill(self, store: ActionStateStore) -> None:
        kill_in_memory(store)
