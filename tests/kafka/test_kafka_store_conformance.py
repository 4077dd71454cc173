"""The store ``kafka`` does what every store must do, on a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flink_agents.api.action_state import ActionStateStore
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.testing.store_conformance import ActionStateStoreSuite


class TestKafka(ActionStateStoreSuite):
    @pytest.fixture
    def make_store(self, settings: KafkaSettings) -> Callable[[], ActionStateStore]:
        return lambda: KafkaStore(settings)

    async def kill(self, store: ActionStateStore) -> None:
        assert isinstance(store, KafkaStore)
        store.kill()
