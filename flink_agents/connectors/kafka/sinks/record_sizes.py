"""The size of a record, and the largest that a topic and the client of a sink take.

A record above it would end the job, at each restart again. So a sink reports it by the names of the topic and
the setting; a dead letter is cut instead (:mod:`flink_agents.connectors.kafka.dead_letters.cutting`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.connectors.kafka.client import QUESTION_MS, create_client, translate_client_errors
from flink_agents.runtime.serde.typenames import shorten

MAX_REQUEST = "max.request.size"
"""The setting of Kafka's Java client that limits a record, before it is compressed."""

_BUFFER = "buffer.memory"
_TOPIC_SETTING = "max.message.bytes"
_BROKER_SETTING = "message.max.bytes"

_DEFAULTS = {MAX_REQUEST: 1_048_576, _BUFFER: 33_554_432}

_BATCH_OVERHEAD = 61
_RECORD_OVERHEAD = 21
"""Bytes that the Java client adds to the fields of a record when it estimates the size of its batch."""

_SILENT_SECONDS = 60
_last_failures: dict[str, float] = {}
"""When brokers did not answer, by their addresses: sinks of the same job do not all wait for them."""

Pairs = Iterable[tuple[str, bytes | None]]

_log = bounded_logger("flink_agents.kafka")


@dataclass(frozen=True)
class SizeLimit:
    """The largest record that a sink can write.

    Attributes:
        topic: The topic.
        size: Maximum size that is checked, in bytes, with key and headers.
        setting: The setting with that limit, and where it is set, for errors.
        certain_size: Maximum size that brokers accept even if compression saves nothing.
        place: The author's line with the sink; None if it is not known.
    """

    topic: str
    size: int
    setting: str
    certain_size: int
    place: str | None = None

    def check_record(self, key: bytes | None, value: bytes | None, headers: Pairs) -> None:
        """Check that a record can be written.

        Raises:
            KafkaValueError: The record is larger than ``size``.
        """
        size = batch_size(key, value, headers)
        if size <= self.size:
            return
        raise KafkaValueError(
            f"a record is larger than topic {self.topic!r} allows",
            expected=f"at most {self.size} bytes, with key and headers: {self.setting}",
            found=f"{size} bytes: {shorten(value)}",
            fix=f"raise {self.setting}, and start the job again; or write smaller values, such as a link to "
            "the content",
            where=self.place,
        )


def batch_size(key: bytes | None, value: bytes | None, headers: Pairs) -> int:
    """Return the largest size in bytes of a batch with one record, as the Java client estimates it."""
    size = _BATCH_OVERHEAD + _RECORD_OVERHEAD + _field_size(key) + _field_size(value)
    number = 0
    for name, content in headers:
        number += 1
        size += _field_size(name.encode()) + _field_size(content)
    return size + _varint_size(number)


def _field_size(content: bytes | None) -> int:
    return 1 if content is None else _varint_size(len(content)) + len(content)


def _varint_size(number: int) -> int:
    """Return the number of bytes of a non-negative number as a zigzag varint."""
    return max(1, ((number << 1).bit_length() + 6) // 7)


def size_limit(
    topic: str, client: Mapping[str, Any], properties: Mapping[str, str], place: str | None = None
) -> SizeLimit:
    """Return the size limit of a sink, by its settings and those of the topic.

    Asks the brokers; if they do not answer, only the settings of the sink count.

    Args:
        topic: The topic. If it does not exist, the default of the brokers counts, which will create it.
        client: Options of kafka-python.
        properties: Properties of the Java client.
        place: The author's line with the sink, for errors.
    """
    topic_limit = _limit_of_topic(topic, client, properties)
    client_limits = {
        f"{name} of the sink (properties={{{name!r}: ...}})": int(properties.get(name, default))
        for name, default in _DEFAULTS.items()
    }
    request_setting = next(iter(client_limits))
    if topic_limit is not None and MAX_REQUEST not in properties:
        # What the topic takes, the client does not reject.
        client_limits[request_setting] = max(client_limits[request_setting], topic_limit[1])
    limits = client_limits if topic_limit is None else {topic_limit[0]: topic_limit[1], **client_limits}
    is_compressed = properties.get("compression.type", "none") != "none"
    checked_limits = client_limits if is_compressed else limits
    setting = min(checked_limits, key=lambda name: checked_limits[name])
    return SizeLimit(topic, checked_limits[setting], setting, min(limits.values()), place)


def request_option(limit: SizeLimit, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the property that lets the client send what the topic accepts; empty if it is set."""
    if MAX_REQUEST in properties or limit.size <= _DEFAULTS[MAX_REQUEST]:
        return {}
    return {MAX_REQUEST: str(limit.size)}


def _limit_of_topic(
    topic: str, client: Mapping[str, Any], properties: Mapping[str, str]
) -> tuple[str, int] | None:
    """Return the setting that limits records of a topic, and its value in bytes; None if unknown."""
    if any(name.startswith(("sasl.", "ssl.", "security.")) for name in properties):
        # kafka-python has no login.
        return None
    servers = str(client.get("bootstrap_servers"))
    if time.monotonic() - _last_failures.get(servers, -_SILENT_SECONDS) < _SILENT_SECONDS:
        return None
    try:
        return _request_limit(topic, client)
    except KafkaStreamError as error:
        _last_failures[servers] = time.monotonic()
        _log.warning("the brokers cannot be asked for %s of topic %r: %s", _TOPIC_SETTING, topic, error.found)
        return None


def _request_limit(topic: str, client: Mapping[str, Any]) -> tuple[str, int]:
    """Ask the brokers for the limit of a topic: the setting, and its value in bytes.

    Raises:
        KafkaStreamError: They do not answer, or do not allow it.
    """
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource, ConfigResourceType

    default_config: Any = KafkaAdminClient.DEFAULT_CONFIG
    options = {option: client[option] for option in client if option in default_config}
    admin = create_client(KafkaAdminClient, **{"bootstrap_timeout_ms": QUESTION_MS, **options})
    try:
        with translate_client_errors(client.get("bootstrap_servers")):
            if topic in admin.list_topics():
                kind = ConfigResourceType.TOPIC
                name = topic
                setting = _TOPIC_SETTING
                described_setting = f"{setting} of topic {topic!r}"
            else:
                broker = admin.describe_cluster()["brokers"][0]["broker_id"]
                kind = ConfigResourceType.BROKER
                name = str(broker)
                setting = _BROKER_SETTING
                described_setting = f"{setting} of the brokers"
            answer = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
    finally:
        admin.close()
    return described_setting, int(answer[kind.name.lower()][name][setting]["value"])
