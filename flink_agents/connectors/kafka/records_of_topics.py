"""Writes records to a topic and reads them, without a job: for ``flink-agents kafka send`` and ``read``."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.connectors.kafka.client import check_topic, create_client, translate_client_errors
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.records import KafkaRecord
from flink_agents.connectors.kafka.requests.latest import POLL_MS, batches_until_now, reader_of
from flink_agents.kafka_clients import headers_to_send

RawRecord = KafkaRecord[bytes | None]

_FIELDS = ("value", "key", "headers", "timestamp_ms", "topic", "partition", "offset")
_BASE64 = "base64"


def send_records(topic: str, records: Iterable[RawRecord], **client: Any) -> int:
    """Write records to an existing topic; return their number when the brokers have them.

    Stops at the first failure.

    Args:
        topic: Name of the topic.
        records: The records. Their places are ignored.
        **client: Options of kafka-python, with ``bootstrap_servers``.

    Raises:
        KafkaStreamError: The topic does not exist, the brokers cannot be reached, or they reject a record.
    """
    from kafka import KafkaProducer

    check_topic(topic, client, "a topic to write to", f"flink-agents kafka topic create {topic}")
    producer: Any = create_client(KafkaProducer, **client)
    failures: list[BaseException] = []
    number = 0
    try:
        with translate_client_errors(client.get("bootstrap_servers")):
            for record in records:
                _send_record(producer, topic, record).add_errback(failures.append)
                number += 1
                if failures:
                    break
            producer.flush()
            for failure in failures:
                raise failure
    finally:
        producer.close()
    return number


def _send_record(producer: Any, topic: str, record: RawRecord) -> Any:
    headers = headers_to_send(KafkaHeaders.of(record.headers).pairs)
    try:
        return producer.send(
            topic, value=record.value, key=record.key, headers=headers, timestamp_ms=record.timestamp
        )
    except ValueError as error:
        raise KafkaStreamError(
            f"a record cannot be written to topic {topic!r}",
            expected="a record with a key or a value",
            found=f"{type(error).__name__}: {error}",
            fix="give it a key or a value",
        ) from error


def read_records(topic: str, *, from_end: bool, follow: bool, **client: Any) -> Iterator[RawRecord]:
    """Yield the committed records of a topic, those of a partition in their order.

    Args:
        topic: Name of the topic.
        from_end: True to skip the records that are in the topic now.
        follow: True to wait for further records, without end.
        **client: Options of kafka-python.

    Raises:
        KafkaStreamError: There is no such topic, or the brokers cannot be reached.
    """
    servers = client.get("bootstrap_servers")
    purpose = "a topic to read"
    create = f"flink-agents kafka topic create {topic}"
    with (
        translate_client_errors(servers),
        reader_of(topic, client, purpose, create) as (consumer, partitions),
    ):
        if from_end:
            consumer.seek_to_end(*partitions)
        else:
            consumer.seek_to_beginning(*partitions)
        for polled in batches_until_now(consumer, partitions):
            yield from _read_records(polled)
        while follow:
            yield from _read_records(consumer.poll(timeout_ms=POLL_MS))


def _read_records(polled: Mapping[Any, Iterable[Any]]) -> Iterator[RawRecord]:
    for records in polled.values():
        for record in records:
            headers = KafkaHeaders(tuple(record.headers))
            place = record.topic, record.partition, record.offset
            yield KafkaRecord(record.value, record.key, headers, record.timestamp, *place)


def record_as_json(record: RawRecord) -> str:
    """Return a record as a line of JSON. Bytes that are not UTF-8 become ``{"base64": "..."}``."""
    headers = [[name, _as_json(content)] for name, content in KafkaHeaders.of(record.headers).pairs]
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp,
            "key": _as_json(record.key),
            "value": _as_json(record.value),
            "headers": headers,
        },
        ensure_ascii=False,
    )


def record_of_json(line: str | bytes) -> RawRecord:
    """Parse a line that :func:`record_as_json` wrote. All fields are optional; topic and place are ignored.

    Raises:
        KafkaValueError: The line is not such a record.
    """
    try:
        fields = json.loads(line)
        unknown = set(fields) - set(_FIELDS)
        if unknown:
            raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
        header_fields = fields.get("headers") or []
        pairs = list(header_fields.items()) if isinstance(header_fields, dict) else header_fields
        headers = KafkaHeaders(tuple((str(name), _as_bytes(content)) for name, content in pairs))
        timestamp = fields.get("timestamp_ms")
        if not (timestamp is None or type(timestamp) is int):
            raise ValueError("timestamp_ms is no integer")
        return KafkaRecord(_as_bytes(fields.get("value")), _as_bytes(fields.get("key")), headers, timestamp)
    except (ValueError, TypeError, AttributeError) as error:
        raise KafkaValueError(
            "a line is not a record",
            expected="a JSON object as `flink-agents kafka read --json` prints it",
            found=f"{error}: {line!r}"[:500],
            fix="correct the line; without --records, each line is the value of a record",
        ) from error


def _as_json(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(content).decode()}


def _as_bytes(content: Any) -> bytes | None:
    """Return text as UTF-8, ``{"base64": "..."}`` decoded, and any other JSON value as JSON."""
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, dict) and set(content) == {_BASE64}:
        try:
            return base64.b64decode(content[_BASE64], validate=True)
        except binascii.Error as error:
            raise ValueError(f"no base64: {error}") from error
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
