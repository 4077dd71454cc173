"""Writes records into a Kafka topic, keyed by the id of their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flink_agents.api.errors.trace import TraceOptionError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.kafka_clients import close_producer
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.target import TraceTarget

SEND_SECONDS = 10.0


class KafkaSink:
    """Sends records with acknowledgement of the leader. Nothing is sent twice on purpose.

    Args:
        servers: Addresses of brokers, separated by commas.
        topic: The topic.
        seconds: How long a batch may take before it counts as dropped.
    """

    def __init__(self, servers: str, topic: str, seconds: float = SEND_SECONDS) -> None:
        self._servers = servers
        self._topic = topic
        self._seconds = seconds
        self._producer: Any = None

    @classmethod
    def from_target(cls, target: TraceTarget) -> KafkaSink:
        """Make the sink of a subtask from the options of its job.

        Raises:
            TraceOptionError: No broker is named.
        """
        servers = target.config.get(AgentOptions.TRACE_KAFKA_SERVERS)
        if not servers:
            raise TraceOptionError(
                "the trace sink 'kafka' has no broker",
                expected="the option trace.kafka.bootstrap-servers",
                found="nothing",
                fix="set trace.kafka.bootstrap-servers, for example to 'localhost:9092'",
            )
        return cls(servers, target.config.get(AgentOptions.TRACE_KAFKA_TOPIC))

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Send records and wait until the broker has them."""
        producer = self._open()
        sent = [
            producer.send(self._topic, key=record.run_id.encode(), value=record.to_bytes())
            for record in records
        ]
        producer.flush(self._seconds)
        for one in sent:
            one.get(self._seconds)

    def close(self) -> None:
        """Close the client."""
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, 1.0)

    def _open(self) -> Any:
        if self._producer is None:
            from kafka import KafkaProducer

            most = int(self._seconds * 1000)
            self._producer = KafkaProducer(
                bootstrap_servers=self._servers.split(","),
                acks=1,
                enable_idempotence=False,
                linger_ms=5,
                max_block_ms=most,
                request_timeout_ms=max(1, most - 1000),
                delivery_timeout_ms=most,
                metrics_enabled=False,
            )
        return self._producer
