"""What a source and a sink have in common: the connector, its options, and the name in the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.connectors.kafka.client import java_properties
from flink_agents.connectors.kafka.connector_jar import FACTORY, connector_jar
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following.brokers import note_brokers

RAW_FORMATS = {"key.format": "raw", "key.fields": "key", "value.format": "raw"} | {
    "value.fields-include": "EXCEPT_KEY"
}
"""Keys and values reach Python, and leave it, as the bytes that they are in Kafka."""


@dataclass(frozen=True)
class Connection:
    """How a source or sink reaches its brokers.

    Attributes:
        client: Options of kafka-python.
        properties: Properties of the Java client, which win.
        jar: The connector's file that the user names, or None.
    """

    client: Mapping[str, Any]
    properties: Mapping[str, str] = field(default_factory=dict)
    jar: str | Path | None = None

    def options(self) -> dict[str, str]:
        """Return the connector's options for the client.

        Raises:
            KafkaStreamError: An option is unknown, is missing, or does not fit.
        """
        found = java_properties(self.client, self.properties)
        note_brokers(found["bootstrap.servers"])
        return {f"properties.{name}": value for name, value in found.items()}

    def bring_connector(self, env: StreamExecutionEnvironment) -> None:
        """Let the job have the connector, unless Flink has it in ``lib``.

        Raises:
            KafkaConnectorError: It is not there, and cannot be fetched.
        """
        if self.jar is not None or not flink_compat.on_class_path(FACTORY):
            flink_compat.add_jar(env, connector_jar(self.jar).as_uri())
