"""Redrives dead letters: from the topic of dead letters into the topic that a job reads.

Each letter is redriven exactly once, even if a redrive is interrupted: the written letters and the read
position belong to one transaction. The marks of what was read are part of the committed position.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.client import made_client, reaching
from flink_agents.connectors.kafka.headers import (
    ERROR,
    ERROR_TYPE,
    FAILED_AGENT,
    FAILED_KEY,
    ORIGIN,
    without_letter,
)
from flink_agents.connectors.kafka.requests.latest import batches_until_now
from flink_agents.runtime.serde.keys import decode_key

GROUP = "flink-agents-redrive"
"""Prefix of the consumer group that stores the read position of a topic."""

BATCH = 500
"""The largest number of letters per transaction."""


@dataclass(frozen=True)
class Letter:
    """A message in a topic of dead letters.

    Attributes:
        value: Its value, as bytes.
        key: Its key.
        headers: Its headers by name.
        timestamp: Milliseconds since 1970.
        place: Its place: ``topic/partition/offset``.
    """

    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes]
    timestamp: int
    place: str

    @property
    def error(self) -> str:
        """Class and message of the error."""
        return f"{self._text(ERROR_TYPE)}: {self._text(ERROR)}"

    @property
    def error_type(self) -> str:
        """Class of the error."""
        return self._text(ERROR_TYPE)

    @property
    def agent(self) -> str:
        """Name of the agent that could not handle it; empty if a source could not read it."""
        return self._text(FAILED_AGENT)

    @property
    def failed_key(self) -> str:
        """The key of the failed run as text; empty if a source rejected the record."""
        text = self._text(FAILED_KEY)
        try:
            value = decode_key(text, from_outside=True) if text else ""
        except Exception:  # A key of a class, or of another program.
            return text
        return value if isinstance(value, str) else json.dumps(value, default=str)

    @property
    def origin(self) -> str | None:
        """The topic that it came from, if it is known."""
        return self._text(ORIGIN).rsplit("/", 2)[0] or None

    def _text(self, name: str) -> str:
        return (self.headers.get(name) or b"").decode("utf-8", "replace")


@dataclass
class PutBack:
    """The result of a redrive.

    Attributes:
        topics: The number of redriven letters, by topic.
        left_out: The number of letters that were not chosen.
    """

    topics: dict[str, int] = field(default_factory=dict[str, int])
    left_out: int = 0


@reaching()
def redrive(
    dead_letters: str,
    to: str | None = None,
    *,
    choose: Callable[[Letter], bool] = lambda letter: True,
    limit: int | None = None,
    dry_run: bool = False,
    told: Callable[[Letter, str | None], None] = lambda letter, topic: None,
    **client: Any,
) -> PutBack:
    """Redrive the dead letters that are in the topic now.

    A letter keeps its value, key, timestamp and own headers, and gets a header ``flink-agents-redrive``
    with the number of its redrives. Letters that are not chosen stay for the next time.

    Args:
        dead_letters: The topic of dead letters.
        to: The topic to write to. Default: for each letter the topic that it came from.
        choose: Returns True if a letter is to be redriven.
        limit: The largest number of letters to read. Default: all of them.
        dry_run: Only read: nothing is written, and all letters stay for the next time.
        told: Called with each letter that was read, and its target topic; None for a letter that is left out.
        **client: Options of kafka-python, ``bootstrap_servers`` among them.

    Raises:
        KafkaStreamError: The brokers cannot be reached, the topic does not exist, the origin of a letter is
            unknown, or too many letters are skipped for the brokers to store which.
    """
    from kafka import KafkaConsumer, KafkaProducer

    group = f"{GROUP}-{dead_letters}"
    options: dict[str, Any] = {"enable_auto_commit": False, "isolation_level": "read_committed", **client}
    consumer = made_client(KafkaConsumer, group_id=group, max_poll_records=BATCH, **options)
    producer: Any = None
    done = PutBack()
    try:
        if not dry_run:
            producer = made_client(KafkaProducer, transactional_id=group, **client)
            # Fences another redrive of the same topic, before its offsets are read.
            producer.init_transactions()
        marks = _marks(consumer, dead_letters)
        for records in _batches(consumer, dead_letters, limit, marks):
            chosen = [(one, _topic_of(one, to) if choose(one) else None) for one in map(_letter, records)]
            for record, (letter, topic) in zip(records, chosen, strict=True):
                told(letter, topic)
                marks[record.partition].note(record.offset, topic is not None)
                if topic is None:
                    done.left_out += 1
                else:
                    done.topics[topic] = done.topics.get(topic, 0) + 1
            if producer is not None:
                _commit(producer, group, chosen, _offsets(dead_letters, marks))
    finally:
        consumer.close()
        if producer is not None:
            producer.close()
    return done


def _commit(
    producer: Any, group: str, chosen: list[tuple[Letter, str | None]], offsets: Mapping[Any, Any]
) -> None:
    """Write letters and the read position in one transaction."""
    producer.begin_transaction()
    try:
        sent = [
            producer.send(
                topic,
                value=letter.value,
                key=letter.key,
                headers=list(without_letter(letter.headers).items()),
                timestamp_ms=letter.timestamp,
            )
            for letter, topic in chosen
            if topic is not None
        ]
        producer.flush()
        for one in sent:
            one.get()
        producer.send_offsets_to_transaction(offsets, group)
        producer.commit_transaction()
    except BaseException:
        producer.abort_transaction()
        raise


def _offsets(topic: str, marks: Mapping[int, ReadMarks]) -> dict[Any, Any]:
    """Return the read position of each partition, to commit for the consumer group."""
    from kafka.structs import OffsetAndMetadata, TopicPartition

    return {
        TopicPartition(topic, number): OffsetAndMetadata(one.begin, one.text(), -1)
        for number, one in marks.items()
        if one.read
    }


def _marks(consumer: Any, topic: str) -> dict[int, ReadMarks]:
    """Seek to the read positions of earlier redrives, and return them by partition."""
    from kafka.structs import TopicPartition

    numbers = consumer.partitions_for_topic(topic)
    if not numbers:
        raise KafkaStreamError(
            f"topic {topic!r} of dead letters does not exist",
            expected="a topic of these brokers",
            found=", ".join(sorted(consumer.topics())) or "no topics",
            fix="name the topic that dead_letters= of the source, or the sink of dead letters, writes",
        )
    partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
    consumer.assign(partitions)
    begins, found = consumer.beginning_offsets(partitions), dict[int, ReadMarks]()
    for one in partitions:
        committed = consumer.committed(one, metadata=True)
        marks = (
            ReadMarks(begins[one])
            if committed is None
            else ReadMarks.of(committed.offset, committed.metadata)
        )
        consumer.seek(one, max(marks.begin, begins[one]))
        found[one.partition] = marks
    return found


def _batches(
    consumer: Any, topic: str, limit: int | None, marks: Mapping[int, ReadMarks]
) -> Iterator[list[Any]]:
    """Yield the letters that are in a topic now and were not redriven, in batches."""
    from kafka.structs import TopicPartition

    partitions = [TopicPartition(topic, number) for number in marks]
    ends = consumer.end_offsets(partitions)
    left = limit
    for polled in batches_until_now(consumer, partitions):
        records = [
            one
            for one in chain(*polled.values())
            if one.offset < ends[TopicPartition(topic, one.partition)]
            and not marks[one.partition].is_done(one.offset)
        ]
        if left is not None:
            records, left = records[:left], left - min(left, len(records))
        if records:
            yield records
        if left == 0:
            return


def _letter(record: Any) -> Letter:
    headers = {name: content or b"" for name, content in record.headers}
    place = f"{record.topic}/{record.partition}/{record.offset}"
    return Letter(record.value, record.key, headers, record.timestamp, place)


def _topic_of(letter: Letter, to: str | None) -> str:
    topic = to or letter.origin
    if topic is None:
        raise KafkaStreamError(
            f"the origin of the dead letter {letter.place} is unknown",
            expected=f"a target topic, or a header {ORIGIN}",
            found=f"headers: {', '.join(letter.headers) or 'none'}",
            fix="name the topic with --to; with records=True of the source, dead letters of agents have it",
        )
    return topic


MOST_TEXT = 4000
"""Brokers take 4,096 bytes (``offset.metadata.max.bytes``)."""

_VERSION = "1:"


class ReadMarks:
    """The handled messages of a partition.

    Args:
        begin: The first offset that was not handled, as far as is known.

    Attributes:
        begin: The first offset that was not handled.
        read: True if any message was noted.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.read = False
        self._end = begin
        self._done: set[int] = set()
        self._first_left: int | None = None

    @classmethod
    def of(cls, offset: int, text: str) -> ReadMarks:
        """Return the object for a string that :meth:`text` made."""
        made = cls(offset)
        if text.startswith(_VERSION):
            bits = zlib.decompress(base64.b64decode(text.removeprefix(_VERSION)))
            made._done = {
                offset + 8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1
            }
        return made

    def is_done(self, offset: int) -> bool:
        """Return True if the message at ``offset`` was handled."""
        return offset < self.begin or offset in self._done

    def note(self, offset: int, done: bool) -> None:
        """Record a message as handled. Messages come in order, except those that were handled earlier."""
        self.read = True
        self._end = offset + 1
        if done:
            self._done.add(offset)
        elif self._first_left is None:
            self._first_left = offset
        # Offsets between messages belong to transactions, and not to any message.
        self.begin = self._first_left if self._first_left is not None else self._end

    def text(self) -> str:
        """Return the handled messages after :attr:`begin` as a string.

        Raises:
            KafkaStreamError: The string is too long, because there are too many gaps.
        """
        done = [offset - self.begin for offset in self._done if offset >= self.begin]
        if not done:
            return ""
        bits = bytearray(max(done) // 8 + 1)
        for one in done:
            bits[one // 8] |= 1 << one % 8
        text = _VERSION + base64.b64encode(zlib.compress(bytes(bits), 9)).decode("ascii")
        if len(text) > MOST_TEXT:
            raise KafkaStreamError(
                "too many dead letters are skipped for the brokers to store which",
                expected=f"a mark of at most {MOST_TEXT} characters for each partition",
                found=f"{len(text)} characters for {max(done)} letters",
                fix="redrive the skipped letters first, or use --limit",
            )
        return text
