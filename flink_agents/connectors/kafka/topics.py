"""Creates, lists and describes topics, for ``flink-agents kafka topic``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flink_agents.api.errors import KafkaStreamError
from flink_agents.api.errors.base import suggest
from flink_agents.connectors.kafka.client import create_client, create_consumer, translate_client_errors

_TIMEOUT_MS = 10_000

_VISIBLE_SECONDS = 10.0
"""The most seconds that the creation of a topic waits until a broker knows it."""


@dataclass(frozen=True)
class TopicDescription:
    """A topic.

    Attributes:
        name: Name of the topic.
        partitions: Number of its partitions.
        replication_factor: Maximum number of replicas of a partition.
        records: Number of offsets between start and end of all partitions; compacted records count as well.
        config: Settings that differ from the brokers' defaults.
    """

    name: str
    partitions: int
    replication_factor: int
    records: int
    config: Mapping[str, str]


def create_topic(
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    config: Mapping[str, str] | None = None,
    **client: Any,
) -> bool:
    """Create a topic, and wait up to 10 seconds until a broker knows it.

    Args:
        name: Name of the topic.
        partitions: Number of its partitions.
        replication_factor: Number of replicas of each partition.
        config: Settings of the topic, by Kafka's names.
        **client: Options of kafka-python, with ``bootstrap_servers``.

    Returns:
        False if the topic exists already.

    Raises:
        KafkaStreamError: The brokers cannot be reached, or reject the request.
    """
    from kafka.errors import TopicAlreadyExistsError

    topic_settings = {
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "configs": dict(config or {}),
    }
    with _open_admin(client) as admin:
        try:
            admin.create_topics({name: topic_settings})
        except TopicAlreadyExistsError:
            return False
        _await_topic(name, admin)
    return True


def _await_topic(name: str, admin: Any) -> None:
    """Wait until a broker knows a new topic, at most 10 seconds. Other brokers may know it later."""
    end = time.monotonic() + _VISIBLE_SECONDS
    while name not in admin.list_topics() and time.monotonic() < end:
        time.sleep(0.05)


def list_topics(**client: Any) -> list[str]:
    """Return the names of all topics except Kafka's own, sorted.

    Args:
        **client: Options of kafka-python, with ``bootstrap_servers``.

    Raises:
        KafkaStreamError: The brokers cannot be reached, or reject the request.
    """
    with _open_admin(client) as admin:
        return sorted(name for name in admin.list_topics() if not name.startswith("__"))


def describe_topic(name: str, **client: Any) -> TopicDescription:
    """Ask the brokers for a topic, its settings, and its number of records.

    Args:
        name: Name of the topic.
        **client: Options of kafka-python, with ``bootstrap_servers``.

    Raises:
        KafkaStreamError: The topic does not exist, or the brokers cannot be reached or reject the request.
    """
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.structs import TopicPartition

    with _open_admin(client) as admin:
        topic: dict[str, Any] = next(iter(admin.describe_topics([name])), {"error_code": 3})
        if topic["error_code"] or not topic["partitions"]:
            names = sorted(
                topic_name for topic_name in admin.list_topics() if not topic_name.startswith("__")
            )
            raise KafkaStreamError(
                f"topic {name!r} does not exist",
                expected="a topic of these brokers",
                found=", ".join(names) or "no topics",
                fix=suggest(name, names, f"flink-agents kafka topic create {name}"),
            )
        described: Any = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    partitions = [TopicPartition(name, partition["partition_index"]) for partition in topic["partitions"]]
    consumer = create_consumer(**client)
    try:
        with translate_client_errors(client.get("bootstrap_servers")):
            ends = consumer.end_offsets(partitions)
            begins = consumer.beginning_offsets(partitions)
    finally:
        consumer.close()
    return TopicDescription(
        name,
        len(partitions),
        max(len(partition["replica_nodes"]) for partition in topic["partitions"]),
        sum(ends[partition] - begins[partition] for partition in partitions),
        _modified_settings(described),
    )


def _modified_settings(described: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Return the settings that a topic overrides, from what ``describe_configs`` of kafka-python returned."""
    return {
        str(key): str(value["value"] if isinstance(value, dict) else value)
        for of_type in described.values()
        for settings in of_type.values()
        for key, value in settings.items()
    }


@contextmanager
def _open_admin(client: Mapping[str, Any]) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    admin = create_client(KafkaAdminClient, **{"request_timeout_ms": _TIMEOUT_MS, **client})
    try:
        with translate_client_errors(client.get("bootstrap_servers")):
            yield admin
    finally:
        admin.close()
