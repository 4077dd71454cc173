"""A broker that the tests of this folder may pause and kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flink_agents.testing.kafka import KafkaBroker
from tests.kafka.kafka_stores import quick_cleaner


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Yield a broker that no other folder uses."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka-faults")) as broker:
        yield broker


@pytest.fixture(scope="session")
def cleaning_broker(kafka_broker: KafkaBroker) -> KafkaBroker:
    """The broker, with a log cleaner that looks for work all the time."""
    quick_cleaner(kafka_broker)
    return kafka_broker
