"""Kafka in and out: topics as streams of typed values, and streams into topics.

::

    from flink_agents.connectors.kafka import KafkaClientOptions, kafka_sink, kafka_source

    brokers: KafkaClientOptions = {"bootstrap_servers": "localhost:9092"}
    orders = kafka_source(env, "orders", value=Order, dead_letters="orders-rejected", **brokers)
    prices = env.from_datastream(orders, key_selector=lambda order: order.customer).apply(Pricing)
    prices.to_datastream().sink_to(kafka_sink("prices", **brokers))

Only ``source``, ``sink``, ``approvals`` and ``tables``, which they share, import PyFlink.
``values`` converts keys and values to bytes, ``headers`` writes the origin of messages, ``client`` connects
to brokers, ``connector_jar`` finds Flink's connector. ``desk`` lets people see and answer the requests of
agents; ``approvals`` is the job's side of it.
"""

from typing import TYPE_CHECKING, Any

from flink_agents.connectors.kafka.client import KafkaClientOptions
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.requests.desk import KafkaApprovals
from flink_agents.foreign_imports import import_quietly

import_quietly("kafka")

if TYPE_CHECKING:
    from flink_agents.connectors.kafka.approvals import approvals_to_kafka, kafka_signals
    from flink_agents.connectors.kafka.sink import kafka_sink
    from flink_agents.connectors.kafka.source import KafkaStream, kafka_source

__all__ = [
    "KafkaDeadLetter",
    "KafkaApprovals",
    "KafkaClientOptions",
    "KafkaHeaders",
    "KafkaRecord",
    "KafkaStream",
    "approvals_to_kafka",
    "kafka_signals",
    "kafka_sink",
    "kafka_source",
]


def __getattr__(name: str) -> Any:
    """Import modules that need PyFlink at first use: the driver's JVM has to find this Python first."""
    if name == "kafka_sink":
        from flink_agents.connectors.kafka import sink

        return sink.kafka_sink
    if name in ("approvals_to_kafka", "kafka_signals"):
        from flink_agents.connectors.kafka import approvals

        return getattr(approvals, name)
    if name in ("KafkaStream", "kafka_source"):
        from flink_agents.connectors.kafka import source

        return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
