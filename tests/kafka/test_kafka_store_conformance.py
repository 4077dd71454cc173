"""The store ``kafka`` does what every store must do, on a real broker."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from flink_agents.api.action_state import ActionStateStore
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.testing.store_conformance import ActionStateStoreSuite, Stores
from flink_agents.testing.store_conformance.base import case


class TestKafka(ActionStateStoreSuite):
    @pytest.fixture
    def make_store(self, settings: KafkaSettings) -> Callable[[], ActionStateStore]:
        return lambda: KafkaStore(settings)

    async def kill(self, store: ActionStateStore) -> None:
        assert isinstance(store, KafkaStore)
        store.kill()

    @pytest.mark.nightly
    def test_whatever_is_appended_and_pruned(self, stores: Stores) -> None:
        super().test_whatever_is_appended_and_pruned(stores)

    @case
    async def test_a_draw_of_appends_and_prunings(self, stores: Stores) -> None:
        await self._at_random(stores, random.Random(0), "job")
