"""An Apache Kafka broker for development and tests, without Docker.

::

    from flink_agents.testing.kafka import KafkaBroker

    with KafkaBroker("kafka-data") as broker:
        producer = KafkaProducer(**broker.client_options)

One node in KRaft mode, listening on this machine only. Needs the extra ``kafka``.
"""

from flink_agents.foreign_imports import import_quietly
from flink_agents.testing.kafka.artifacts import KAFKA_VERSION
from flink_agents.testing.kafka.broker import BrokerStatus, KafkaBroker
from flink_agents.testing.kafka.settings import DEFAULT_DATA, Security

import_quietly("kafka")

__all__ = ["DEFAULT_DATA", "KAFKA_VERSION", "BrokerStatus", "KafkaBroker", "Security"]
