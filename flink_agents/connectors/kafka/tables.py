"""The common part of a source and a sink: the connector, its options, and the name in the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.connectors.kafka.client import java_properties
from flink_agents.connectors.kafka.connector_jar import FACTORY, connector_jar, zstd_jar
from flink_agents.connectors.kafka.headers.packed import INTERCEPTOR, JAVA
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.internals.java_objects import JavaClasses, loader_of
from flink_agents.runtime.flink.job_errors import note_brokers

_INTERCEPTORS = "interceptor.classes"

RAW_FORMATS = {"key.format": "raw", "key.fields": "key", "value.format": "raw"} | {
    "value.fields-include": "EXCEPT_KEY"
}
"""Keys and values reach and leave Python as raw bytes."""


@dataclass(frozen=True)
class BrokerConnection:
    """The connection settings of a source or sink.

    Attributes:
        client: Options of kafka-python.
        properties: Properties of the Java client, which take precedence.
        jar: File of Flink's Kafka connector; None to find or download it.
    """

    client: Mapping[str, Any]
    properties: Mapping[str, str] = field(default_factory=dict)
    jar: str | Path | None = None

    def options(self, *, reads: bool) -> dict[str, str]:
        """Return the properties of the Java client, as options of the connector.

        Args:
            reads: True for a source, False for a sink: interceptors run in the opposite order.

        Raises:
            KafkaStreamError: An option is unknown, missing or invalid.
        """
        properties = java_properties(self.client, self.properties)
        # Interceptors of the author see the headers as they are in Kafka.
        interceptors = properties.get(_INTERCEPTORS)
        order = [interceptors, INTERCEPTOR] if reads else [INTERCEPTOR, interceptors]
        properties[_INTERCEPTORS] = ",".join(filter(None, order))
        note_brokers(properties["bootstrap.servers"])
        return {f"properties.{name}": value for name, value in properties.items()}

    def bring_connector(self, env: StreamExecutionEnvironment) -> None:
        """Add the connector, the library for zstd, and the interceptor of headers to the job.

        May download the first two.

        Raises:
            KafkaConnectorError: The connector is missing, and cannot be downloaded.
        """
        jars: list[Path] = []
        if self.jar is not None or not flink_compat.on_class_path(FACTORY):
            jars = [jar for jar in (connector_jar(self.jar), zstd_jar(self.jar)) if jar is not None]
        for jar in jars:
            flink_compat.add_jar(env, jar.as_uri())
        JavaClasses(JAVA, loader_of(jars)).add_to(env)
