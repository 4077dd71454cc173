"""Settings of stores for the tests of the store ``kafka``; failed assertions of helpers are explained."""

from __future__ import annotations

import pytest

from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.testing.kafka import KafkaBroker

for name in ("base", "content", "forgetting", "lifecycle", "ownership", "pruning"):
    pytest.register_assert_rewrite(f"flink_agents.testing.store_conformance.{name}")
pytest.register_assert_rewrite("tests.kafka.kafka_stores")


@pytest.fixture(scope="session")
def cleaning_broker(kafka_broker: KafkaBroker) -> KafkaBroker:
    """The broker, with a log cleaner that looks for work all the time."""
    from tests.kafka.kafka_stores import quick_cleaner

    quick_cleaner(kafka_broker)
    return kafka_broker


@pytest.fixture
def settings(cleaning_broker: KafkaBroker) -> KafkaSettings:
    """Settings of a store in topics of its own."""
    from tests.kafka.kafka_stores import make_settings

    return make_settings(cleaning_broker)
