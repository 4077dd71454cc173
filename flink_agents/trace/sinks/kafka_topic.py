"""Writes pairs of key and value to a Kafka topic, for sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flink_agents import redaction
from flink_agents.foreign_imports import import_quietly
from flink_agents.kafka_clients import close_producer

import_quietly("kafka")

SEND_SECONDS = 10.0


class KafkaTopic:
    """Sends pairs of key and value; the leaders acknowledge them. A failed pair is not sent again.

    Args:
        servers: Addresses of brokers, ``host:port``, separated by commas.
        topic: Name of the topic.
        client: Further options of kafka-python, such as for TLS and SASL. Strings are converted.
        seconds: Timeout of a batch in seconds.
        creates: True if brokers may create the topic.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        client: Mapping[str, Any] | None = None,
        seconds: float = SEND_SECONDS,
        creates: bool = True,
    ) -> None:
        self._servers = servers
        self._topic = topic
        self._client = {name.replace("-", "_"): value for name, value in (client or {}).items()}
        self._seconds = seconds
        self._creates = creates
        self._producer: Any = None

    def send_records(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Send pairs of key and value, and wait for the acknowledgements.

        Raises:
            Exception: kafka-python could not send a pair. One that is too large does not stop the others.
        """
        from kafka.errors import MessageSizeTooLargeError

        producer = self._open_producer()
        sent: list[Any] = []
        too_large: MessageSizeTooLargeError | None = None
        for key, value in records:
            try:
                sent.append(producer.send(self._topic, key=key, value=value))
            except MessageSizeTooLargeError as error:
                too_large = error
        producer.flush(self._seconds)
        for future in sent:
            future.get(self._seconds)
        if too_large is not None:
            raise too_large

    def close(self) -> None:
        """Close the producer."""
        producer = self._producer
        self._producer = None
        if producer is not None:
            close_producer(producer, 1.0)

    def _open_producer(self) -> Any:
        if self._producer is None:
            from kafka import KafkaProducer

            timeout_ms = int(self._seconds * 1000)
            redaction.add_secrets(self._client.get("sasl_plain_password"), self._client.get("ssl_password"))
            defaults: Mapping[str, Any] = KafkaProducer.DEFAULT_CONFIG
            client_options = {
                name: _parse_value(value, defaults.get(name)) for name, value in self._client.items()
            }
            sink_options = {
                "bootstrap_servers": self._servers.split(","),
                "acks": 1,
                "enable_idempotence": False,
                "allow_auto_create_topics": self._creates,
                "linger_ms": 5,
                "max_block_ms": timeout_ms,
                "request_timeout_ms": max(1, timeout_ms - 1000),
                "delivery_timeout_ms": timeout_ms,
                "metrics_enabled": False,
            }
            self._producer = KafkaProducer(**(sink_options | client_options))
        return self._producer


def _parse_value(value: Any, default: Any) -> Any:
    """Convert a string from a configuration file to the type of kafka-python's default."""
    if not isinstance(value, str) or not isinstance(default, (bool, int, float)):
        return value
    if isinstance(default, bool):
        return {"true": True, "false": False}[value.strip().lower()]
    return type(default)(value)
