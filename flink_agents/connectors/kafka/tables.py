"""The common part of a source and a sink: the connector, its options, and the name in the job."""

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
"""Keys and values reach and leave Python as raw bytes."""


@dataclass(frozen=True)
class BrokerConnection:
    """The connection of a source or sink to its brokers.

    Attributes:
        client: Options of kafka-python.
        properties: Properties of the Java client, which take precedence.
        jar: The connector's file that you pass, or None.
    """

    client: Mapping[str, Any]
    properties: Mapping[str, str] = field(default_factory=dict)
    jar: str | Path | None = None

    def options(self) -> dict[str, str]:
        """Return the connector's options for the client.

        Raises:
            KafkaStreamError: An option is unknown, missing or invalid.
        """
        found = java_properties(self.client, self.properties)
        note_brokers(found["bootstrap.servers"])
        return {f"properties.{name}": value for name, value in found.items()}

    def bring_connector(self, env: StreamExecutionEnvironment) -> None:
        """Add the connector to the job, unless Flink has it in ``lib``.

        Raises:
            KafkaConnectorError: It is missing, and cannot be downloaded.
        """
        if self.jar is not None or not flink_compat.on_class_path(FACTORY):
            flink_compat.add_jar(env, connector_jar(self.jar).as_uri())
