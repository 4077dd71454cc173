"""Creates and checks the topics of the store ``kafka``."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from flink_agents.api.errors import StoreFormatError, StoreUnavailableError
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings, translate_errors
from flink_agents.kafka_clients import check_codec

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

SEGMENT_BYTES = 32 * 1024 * 1024
SEGMENT_MS = 120_000
DELETE_RETENTION_MS = 300_000
"""Compaction skips the last segment, so segments must be neither large nor old."""

CREATE_SECONDS = 30.0
POLL_SECONDS = 0.05


class Topic(NamedTuple):
    """A topic as the brokers describe it.

    Attributes:
        name: Name of the topic.
        id: Its UUID, which differs after the topic is deleted and created again.
        partitions: Number of its partitions.
    """

    name: str
    id: uuid.UUID
    partitions: int


def find_topics(settings: KafkaSettings, create: bool) -> tuple[Topic, Topic]:
    """Return the journal topic and the claims topic.

    Args:
        settings: Settings of the store, with the names of both topics.
        create: True to create topics that do not exist.

    Raises:
        StoreFormatError: One of them has settings that the store cannot work with.
        StoreUnavailableError: One does not exist, or the brokers do not answer.
    """
    wanted = {settings.topic: settings.partitions, settings.claims_topic: 1}
    with translate_errors(f"the topic {settings.topic!r} cannot be inspected"):
        admin = settings.create_admin()
        try:
            missing = {name: count for name, count in wanted.items() if _find_topic(admin, name) is None}
            if missing and not create:
                raise _missing_topic_error(min(missing), settings)
            if missing:
                _create_topics(admin, settings, missing)
            journals, claims = (_check_topic(admin, settings, name) for name in wanted)
        finally:
            admin.close()
    if claims.partitions != 1:
        raise _unfit_topic_error(claims.name, "partitions", "1", str(claims.partitions))
    return journals, claims


def stored_bytes(settings: KafkaSettings) -> int | None:
    """Return the size of both topics on the disks of all brokers; None if the client may not ask for it."""
    from kafka.errors import AuthorizationError

    names = [settings.topic, settings.claims_topic]
    with translate_errors(f"the size of topic {settings.topic!r} cannot be determined"):
        admin = settings.create_admin()
        try:
            brokers = admin.describe_log_dirs(names)  # pyright: ignore[reportCallIssue]
        except AuthorizationError:
            return None
        finally:
            admin.close()
    topics = [topic for broker in brokers for log_dir in broker["log_dirs"] for topic in log_dir["topics"]]
    store_topics = [topic for topic in topics if topic["name"] in names]
    if not store_topics:  # A broker that does not permit the question answers with nothing.
        return None
    return sum(partition["partition_size"] for topic in store_topics for partition in topic["partitions"])


def _find_topic(admin: KafkaAdminClient, name: str) -> dict[str, Any] | None:
    (topic,) = admin.describe_topics([name])
    if topic["error_code"] or not topic["partitions"]:
        return None
    return topic


def _create_topics(admin: KafkaAdminClient, settings: KafkaSettings, missing: dict[str, int]) -> None:
    """Create topics, and wait until their partitions have leaders.

    Args:
        admin: The client.
        settings: Settings of the store.
        missing: Number of partitions of each topic, by name.

    Raises:
        StoreUnavailableError: A topic has no leader after :data:`CREATE_SECONDS`.
    """
    deadline = time.monotonic() + CREATE_SECONDS
    for name, partitions in missing.items():
        topic_settings = {
            "num_partitions": partitions,
            "replication_factor": settings.replication_factor,
            "configs": _topic_configs(settings),
        }
        while not _try_creation(admin, name, topic_settings, time.monotonic() > deadline):
            time.sleep(POLL_SECONDS)
    while any((topic := _find_topic(admin, name)) is None or not _has_leaders(topic) for name in missing):
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"topics were created, but have no leader after {CREATE_SECONDS:g} s: {', '.join(missing)}",
                fix="check the log of the brokers",
            )
        time.sleep(POLL_SECONDS)


def _try_creation(admin: KafkaAdminClient, name: str, topic_settings: dict[str, Any], is_last: bool) -> bool:
    """Create a topic, unless it exists.

    Returns:
        False if too few brokers are available, and this is not the ``is_last`` attempt.
    """
    from kafka.errors import InvalidReplicationFactorError, TopicAlreadyExistsError

    try:
        # The package's types describe an older form.
        admin.create_topics({name: topic_settings})  # pyright: ignore[reportArgumentType]
    except TopicAlreadyExistsError:
        pass  # Another subtask created it a moment ago.
    except InvalidReplicationFactorError:
        if is_last:
            raise
        return False
    return True


def _has_leaders(topic: dict[str, Any]) -> bool:
    return all(partition["leader_id"] >= 0 for partition in topic["partitions"])


def _topic_configs(settings: KafkaSettings) -> dict[str, str]:
    configs = {
        "cleanup.policy": "compact",
        # Brokers may be set to compress by a codec that this process cannot read.
        "compression.type": "producer",
        "max.message.bytes": str(settings.message_bytes),
        "segment.bytes": str(max(SEGMENT_BYTES, settings.message_bytes)),
        "segment.ms": str(SEGMENT_MS),
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        "min.cleanable.dirty.ratio": "0.2",
        "message.timestamp.type": "LogAppendTime",
    }
    if settings.min_insync_replicas:
        configs["min.insync.replicas"] = str(settings.min_insync_replicas)
    return configs


def _check_topic(admin: KafkaAdminClient, settings: KafkaSettings, name: str) -> Topic:
    """Return a topic whose settings meet the requirements of the store: compacted, large enough, replicated.

    Raises:
        StoreFormatError: A setting does not.
        StoreUnavailableError: The topic does not exist.
    """
    from kafka.admin import ConfigResource, ConfigResourceType

    topic = _find_topic(admin, name)
    if topic is None:
        raise _missing_topic_error(name, settings)
    resources = [ConfigResource(ConfigResourceType.TOPIC, name)]
    configs: Any = admin.describe_configs(resources, config_filter="all")  # pyright: ignore[reportCallIssue]
    setting_texts = {key: str(setting["value"]) for key, setting in configs["topic"][name].items()}
    if setting_texts["cleanup.policy"] != "compact":
        raise _unfit_topic_error(name, "cleanup.policy", "compact", setting_texts["cleanup.policy"])
    if int(setting_texts["max.message.bytes"]) < settings.message_bytes:
        raise _unfit_topic_error(
            name,
            "max.message.bytes",
            f"at least {settings.message_bytes}",
            setting_texts["max.message.bytes"],
        )
    check_codec(name, setting_texts["compression.type"])
    replicas = min(len(partition["replica_nodes"]) for partition in topic["partitions"])
    # If a topic requires more in-sync replicas than it has, brokers accept those that it has.
    needed = max(settings.replication_factor, settings.min_insync_replicas)
    if replicas < needed:
        raise _unfit_topic_error(name, "replicas", f"at least {needed}", str(replicas))
    if int(setting_texts["min.insync.replicas"]) < settings.min_insync_replicas:
        raise _unfit_topic_error(
            name,
            "min.insync.replicas",
            f"at least {settings.min_insync_replicas}",
            setting_texts["min.insync.replicas"],
        )
    return Topic(name, uuid.UUID(str(topic["topic_id"])), len(topic["partitions"]))


def _missing_topic_error(name: str, settings: KafkaSettings) -> StoreUnavailableError:
    error = StoreUnavailableError(
        f"topic {name!r} does not exist",
        found=f"brokers at {settings.bootstrap_servers}",
        fix="correct action-state.kafka.topic; a job creates its topics when it starts",
    )
    error.is_missing = True
    return error


def _unfit_topic_error(name: str, what: str, expected: str, found: str) -> StoreFormatError:
    return StoreFormatError(
        f"the topic {name!r} does not meet the store's requirements: {what}",
        expected=expected,
        found=found,
        fix="let the store create the topic, or change its configuration or the store's option",
    )
