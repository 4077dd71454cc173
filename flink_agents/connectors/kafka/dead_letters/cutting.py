"""Cuts dead letters that are larger than their topic allows, and finds the originals of cut ones.

A letter has more headers than the record that it is about, and its topic may have a lower limit than that of
the record. A cut letter has a header with the size of the whole value; its origin says where the record is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.connectors.kafka.client import create_consumer
from flink_agents.connectors.kafka.dead_letters.letter import Letter
from flink_agents.connectors.kafka.headers import CUT, ERROR, ORIGIN, PREFIX, TRACEBACK
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.sinks.record_sizes import SizeLimit, batch_size

MAX_TEXT = 1000
"""Maximum number of bytes of an error, and of its traceback, in a letter that is cut."""

FETCH_SECONDS = 15
"""Time that an original is waited for."""

RawLetter = tuple[bytes | None, bytes | None, KafkaHeaders]
"""Key, value and headers of a letter."""

_log = bounded_logger("flink_agents.kafka")


def fit_letter(key: bytes | None, value: bytes | None, headers: KafkaHeaders, limit: SizeLimit) -> RawLetter:
    """Return key, value and headers of a letter, cut to the size that its topic allows.

    A letter that fits is unchanged. Otherwise it loses, in this order: the ends of its error texts, the end
    of its value, the headers of the record, and the key.
    """
    if batch_size(key, value, headers.pairs) <= limit.certain_size:
        return key, value, headers
    headers = _with_short_texts(headers)
    if batch_size(key, value, headers.pairs) <= limit.certain_size:
        return key, value, headers
    size = 0 if value is None else len(value)
    headers |= {CUT: str(size).encode()}
    own_headers = KafkaHeaders(tuple(pair for pair in headers.pairs if pair[0].startswith(PREFIX)))
    for kept_key, kept_headers in ((key, headers), (key, own_headers), (None, own_headers)):
        remaining = limit.certain_size - batch_size(
            kept_key, None if value is None else b"", kept_headers.pairs
        )
        # The length of a value takes up to four bytes more than that of an empty one.
        if remaining >= 4:
            break
    cut = value if value is None else _cut_text(value, max(remaining - 4, 0))
    _log.warning(
        "a dead letter is cut, since topic %r takes no more than %s bytes (%s): %s of %s bytes of the value "
        "of %s remain",
        limit.topic,
        limit.certain_size,
        limit.setting,
        len(cut or b""),
        size,
        (headers.get(ORIGIN) or b"a record of unknown origin").decode("utf-8", "replace"),
    )
    return kept_key, cut, kept_headers


def _with_short_texts(headers: KafkaHeaders) -> KafkaHeaders:
    error = headers.get(ERROR)
    traceback = headers.get(TRACEBACK)
    if error is not None:
        headers |= {ERROR: _cut_text(error, MAX_TEXT)}
    if traceback is not None:
        headers |= {TRACEBACK: traceback[-MAX_TEXT:].decode("utf-8", "ignore").encode()}
    return headers


def _cut_text(content: bytes, size: int) -> bytes:
    """Return the first ``size`` bytes of UTF-8, without an incomplete character at the end."""
    if len(content) <= size:
        return content
    # The continuing bytes of a character in UTF-8; other content just ends a little earlier.
    for end in range(size, max(size - 4, -1), -1):
        if content[end] & 0xC0 != 0x80:
            return content[:end]
    return content[:size]


class Originals:
    """Reads the records that cut letters are about.

    The consumer is created at the first read.

    Args:
        client: Options of kafka-python.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._consumer: Any = None

    def close(self) -> None:
        """Close the consumer, if there is one."""
        if self._consumer is not None:
            self._consumer.close()

    def complete_letter(self, letter: Letter) -> Letter:
        """Return a cut letter with key, value and headers of the original record.

        If the record cannot be read or has changed, ``missing`` of the letter has the reason instead.
        """
        place = letter.origin_place
        if place is None:
            return replace(letter, missing=f"its value is cut, and its origin unknown (no header {ORIGIN})")
        topic, partition, offset = place
        record = self._read_record(topic, partition, offset)
        if record is None:
            reason = f"its value is cut, and {topic}/{partition}/{offset} has been removed from its topic"
            return replace(letter, missing=reason)
        # Agents have read a value; a source's letter has the bytes of the record.
        is_same = letter.agent or (
            len(record.value or b"") == letter.cut_size
            and (record.value or b"").startswith(letter.value or b"")
        )
        if not is_same:
            reason = f"its value is cut, and {topic}/{partition}/{offset} is another record by now"
            return replace(letter, missing=reason)
        # It has those headers of the letter that the record lacks, which name the error.
        names = {name for name, _ in record.headers}
        added = [pair for pair in letter.headers.pairs if pair[0] not in names]
        headers = KafkaHeaders((*record.headers, *added))
        return replace(letter, value=record.value, key=record.key, headers=headers)

    def _read_record(self, topic: str, partition: int, offset: int) -> Any:
        """Read the record at an offset, within :data:`FETCH_SECONDS`; return None if it does not exist."""
        from kafka.structs import TopicPartition

        if self._consumer is None:
            options: dict[str, Any] = {"enable_auto_commit": False, **self._client}
            self._consumer = create_consumer(**options, max_poll_records=1)
        consumer = self._consumer
        place = TopicPartition(topic, partition)
        if partition not in (consumer.partitions_for_topic(topic) or ()):
            return None
        consumer.assign([place])
        begin = consumer.beginning_offsets([place])[place]
        end = consumer.end_offsets([place])[place]
        if not begin <= offset < end:
            return None
        consumer.seek(place, offset)
        deadline = time.monotonic() + FETCH_SECONDS
        while time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=500).get(place, ()):
                return record if record.offset == offset else None
            if consumer.position(place) >= end:
                return None
        return None
