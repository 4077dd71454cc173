"""Writes records to a Kafka topic, keyed by the id of their run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flink_agents.api.errors.trace import TraceOptionError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.kafka_topic import SEND_SECONDS, KafkaTopic
from flink_agents.trace.target import TraceLine, TraceTarget


class KafkaSink:
    """Sends records with acknowledgement of the leader. A failed record is not sent again.

    Args:
        servers: Addresses of brokers, ``host:port``, separated by commas.
        topic: Name of the topic.
        seconds: Timeout of a batch in seconds; after it, the records count as dropped.
        client: Further options of kafka-python, such as for TLS and SASL.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        seconds: float = SEND_SECONDS,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self._topic = KafkaTopic(servers, topic, client, seconds)

    @classmethod
    def from_target(cls, target: TraceTarget) -> KafkaSink:
        """Create the sink of a subtask from the options of its job.

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
        topic = target.config.get(AgentOptions.TRACE_KAFKA_TOPIC)
        return cls(servers, topic, client=target.config.below(AgentOptions.TRACE_KAFKA_CLIENT.key))

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Send records, and wait until the leaders of their partitions have them."""
        self._topic.send_records((record.run_id.encode(), record.to_bytes()) for record in records)

    def write_lines(self, lines: Sequence[TraceLine]) -> None:
        """Send encoded records, and wait until the leaders of their partitions have them."""
        self._topic.send_records((run_id.encode(), line[:-1]) for run_id, line in lines)

    def close(self) -> None:
        """Close the producer."""
        self._topic.close()
