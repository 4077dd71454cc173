"""Kafka in and out: topics as streams of typed values, and streams into topics.

::

    from flink_agents.connectors.kafka import kafka_sink, kafka_source

    brokers = {"bootstrap_servers": "localhost:9092"}
    orders = kafka_source(env, "orders", value=Order, dead_letters="orders-rejected", **brokers)
    prices = env.from_datastream(orders, key_selector=lambda order: order.customer).apply(Pricing)
    prices.to_datastream().sink_to(kafka_sink("prices", **brokers))

``source``, ``sink`` and ``approvals`` are all that knows PyFlink, with ``tables``, which they share.
``values`` is what keys and values are as bytes, ``headers`` what messages say of their origin, ``client`` how
brokers are reached, ``connector_jar`` where Flink's connector comes from. ``desk`` is where people see what
agents ask, and answer; ``approvals`` is a job's side of that.
"""

from typing import TYPE_CHECKING, Any

from flink_agents.connectors.kafka.desk import KafkaApprovals
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord

if TYPE_CHECKING:
    from flink_agents.connectors.kafka.approvals import approvals_to_kafka, kafka_signals
    from flink_agents.connectors.kafka.sink import kafka_sink
    from flink_agents.connectors.kafka.source import KafkaStream, kafka_source

__all__ = [
    "KafkaDeadLetter",
    "KafkaApprovals",
    "KafkaRecord",
    "KafkaStream",
    "approvals_to_kafka",
    "kafka_signals",
    "kafka_sink",
    "kafka_source",
]


def __getattr__(name: str) -> Any:
    """Import what needs PyFlink when somebody asks for it: the driver's JVM has to find this Python first."""
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
