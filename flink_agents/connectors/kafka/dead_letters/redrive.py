"""Redrives dead letters: from the topic of dead letters into the topic that a job reads.

Each letter is redriven exactly once, even if a redrive is interrupted: the written letters and the read
position belong to one transaction. The marks of what was read are part of the committed position.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.client import create_consumer, translate_client_errors
from flink_agents.connectors.kafka.dead_letters.cutting import Originals
from flink_agents.connectors.kafka.dead_letters.letter import Letter
from flink_agents.connectors.kafka.dead_letters.sending import (
    LetterRejectedError,
    LetterSender,
    UnsendableLetter,
    rejection_reason,
)
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.requests.latest import batches_until_now

GROUP = "flink-agents-redrive"
"""Prefix of the consumer group that stores the read position of a topic."""

BATCH = 500
"""The largest number of letters per transaction."""

BATCH_BYTES = 32 * 1024 * 1024
"""The size of values from which a transaction gets no further letter."""

UNKNOWN = ""
"""The target of a letter whose origin is unknown."""

Chosen = tuple[Letter, str | None, Any]
"""A letter, its target (None if it is left out), and its record."""


@dataclass
class PutBack:
    """The result of a redrive.

    Attributes:
        topics: Number of redriven letters by target topic.
        left_out: Number of letters that ``choose`` excluded.
        unsendable: Letters that cannot be sent. They stay for the next redrive.
    """

    topics: dict[str, int] = field(default_factory=dict[str, int])
    left_out: int = 0
    unsendable: list[UnsendableLetter] = field(default_factory=list[UnsendableLetter])


@translate_client_errors()
def redrive(
    dead_letters: str,
    to: str | None = None,
    *,
    choose: Callable[[Letter], bool] = lambda letter: True,
    limit: int | None = None,
    dry_run: bool = False,
    on_letter: Callable[[Letter, str | None], None] = lambda letter, topic: None,
    max_request_size: int | None = None,
    **client: Any,
) -> PutBack:
    """Redrive the dead letters that are in the topic now.

    A letter keeps its value, key, timestamp and own headers, and gets a header ``flink-agents-redrive``
    with the number of its redrives. Letters that are not chosen, and those that cannot be sent, stay for the
    next time.

    Args:
        dead_letters: The topic of dead letters.
        to: The topic to write to. Default: for each letter the topic that it came from.
        choose: Returns True if a letter is to be redriven.
        limit: The largest number of letters to read. Default: all of them.
        dry_run: Only read: nothing is written, and all letters stay for the next time.
        on_letter: Called with each letter that was read, and its target topic; None for one that is left out.
        max_request_size: The largest size of a letter in bytes. Default: that of kafka-python, 1 MiB. The
            topic has a limit of its own, ``max.message.bytes``.
        **client: Options of kafka-python, ``bootstrap_servers`` among them.

    Raises:
        KafkaStreamError: The brokers cannot be reached, the topic does not exist, or too many letters are
            skipped for the brokers to store which.
    """
    group = f"{GROUP}-{dead_letters}"
    options: dict[str, Any] = {"enable_auto_commit": False, "isolation_level": "read_committed", **client}
    consumer = create_consumer(group_id=group, max_poll_records=BATCH, **options)
    sender: LetterSender | None = None
    originals = Originals(client)
    done = PutBack()
    try:
        if not dry_run:
            # Fences another redrive of the same topic, before its offsets are read.
            sender = LetterSender(group, max_request_size, client)
        marks = _seek_to_marks(consumer, dead_letters)
        position = partial(_committed_offsets, dead_letters, marks)
        for records in _read_batches(consumer, dead_letters, limit, marks):
            batch: list[Chosen] = []
            size = 0
            for record in records:
                letter = _read_letter(record)
                topic = to or letter.origin or UNKNOWN if choose(letter) else None
                on_letter(letter, topic)
                if topic is not None and letter.cut_size is not None:
                    letter = originals.complete_letter(letter)
                batch.append((letter, topic, record))
                size += len(letter.value or b"")
                if size >= BATCH_BYTES:
                    _finish_batch(sender, batch, marks, position, done)
                    batch = []
                    size = 0
            _finish_batch(sender, batch, marks, position, done)
    finally:
        consumer.close()
        originals.close()
        if sender is not None:
            sender.close()
    return done


def _finish_batch(
    sender: LetterSender | None,
    batch: list[Chosen],
    marks: Mapping[int, ReadMarks],
    position: Callable[[], Mapping[Any, Any]],
    done: PutBack,
) -> None:
    """Send the letters of a batch, and count them; with a dry run (no sender), only count them."""
    if sender is None:
        _count_letters(done, batch)
    elif batch:
        _send_batch(sender, batch, marks, position, done)


def _send_batch(
    sender: LetterSender,
    batch: list[Chosen],
    marks: Mapping[int, ReadMarks],
    position: Callable[[], Mapping[Any, Any]],
    done: PutBack,
) -> None:
    """Send the chosen letters of a batch in one transaction.

    If one of them is rejected, each is sent in a transaction of its own.

    Args:
        sender: Sends letters.
        batch: All letters that were read, with their targets.
        marks: The handled letters by partition, which are updated.
        position: Returns the offsets to commit, by the marks.
        done: The result, which is updated.
    """

    def mark_handled(part: list[Chosen]) -> Mapping[Any, Any]:
        for _, topic, record in part:
            marks[record.partition].note_handled(record.offset, topic is not None)
        return position()

    try:
        sender.deliver_letters([chosen_letter[:2] for chosen_letter in batch], lambda: mark_handled(batch))
        _count_letters(done, batch)
        return
    except LetterRejectedError:
        pass
    for choice in batch:
        letter, _, record = choice
        try:
            sender.deliver_letters([choice[:2]], lambda single=choice: mark_handled([single]))
            _count_letters(done, [choice])
        except LetterRejectedError as error:
            marks[record.partition].note_handled(record.offset, False)
            done.unsendable.append(UnsendableLetter(letter.place, str(error)))


def _count_letters(done: PutBack, batch: list[Chosen]) -> None:
    for letter, topic, _ in batch:
        if topic is None:
            done.left_out += 1
        elif (reason := rejection_reason(letter, topic)) is not None:
            done.unsendable.append(UnsendableLetter(letter.place, reason))
        else:
            done.topics[topic] = done.topics.get(topic, 0) + 1


def _committed_offsets(topic: str, marks: Mapping[int, ReadMarks]) -> dict[Any, Any]:
    """Return the offset to commit by partition, with the handled letters as its metadata."""
    from kafka.structs import OffsetAndMetadata, TopicPartition

    return {
        TopicPartition(topic, number): OffsetAndMetadata(read_marks.begin, read_marks.text(), -1)
        for number, read_marks in marks.items()
        if read_marks.read
    }


def _seek_to_marks(consumer: Any, topic: str) -> dict[int, ReadMarks]:
    """Seek each partition to its first letter that was not handled, and return the marks by partition.

    Raises:
        KafkaStreamError: The topic does not exist.
    """
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
    begins = consumer.beginning_offsets(partitions)
    marks_by_partition = dict[int, ReadMarks]()
    for partition in partitions:
        committed = consumer.committed(partition, metadata=True)
        marks = (
            ReadMarks(begins[partition])
            if committed is None
            else ReadMarks.parse(committed.offset, committed.metadata)
        )
        consumer.seek(partition, max(marks.begin, begins[partition]))
        marks_by_partition[partition.partition] = marks
    return marks_by_partition


def _read_batches(
    consumer: Any, topic: str, limit: int | None, marks: Mapping[int, ReadMarks]
) -> Iterator[list[Any]]:
    """Yield the letters that are in the topic now and were not handled yet, in batches, at most ``limit``."""
    from kafka.structs import TopicPartition

    partitions = [TopicPartition(topic, number) for number in marks]
    ends = consumer.end_offsets(partitions)
    remaining_count = limit
    for polled in batches_until_now(consumer, partitions):
        records = [
            record
            for record in chain(*polled.values())
            if record.offset < ends[TopicPartition(topic, record.partition)]
            and not marks[record.partition].is_done(record.offset)
        ]
        if remaining_count is not None:
            records = records[:remaining_count]
            remaining_count -= len(records)
        if records:
            yield records
        if remaining_count == 0:
            return


def _read_letter(record: Any) -> Letter:
    headers = KafkaHeaders(tuple(record.headers))
    place = f"{record.topic}/{record.partition}/{record.offset}"
    return Letter(record.value, record.key, headers, record.timestamp, place)


MOST_TEXT = 4000
"""Brokers take 4,096 bytes (``offset.metadata.max.bytes``)."""

_VERSION = "1:"


class ReadMarks:
    """The handled messages of a partition, in a form that fits into a committed offset.

    Args:
        begin: Offset of the first message that was not handled, as far as is known.

    Attributes:
        begin: Offset of the first message that was not handled.
        read: True if :meth:`note_handled` was called.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.read = False
        self._end = begin
        self._done: set[int] = set()
        self._first_left: int | None = None

    @classmethod
    def parse(cls, offset: int, text: str) -> ReadMarks:
        """Create the marks from a committed offset.

        Args:
            offset: The offset.
            text: Its metadata: a result of :meth:`text`, or another text, which is ignored.
        """
        marks = cls(offset)
        if text.startswith(_VERSION):
            bits = zlib.decompress(base64.b64decode(text.removeprefix(_VERSION)))
            marks._done = {
                offset + 8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1
            }
        return marks

    def is_done(self, offset: int) -> bool:
        """Return True if the message at an offset was redriven."""
        return offset < self.begin or offset in self._done

    def note_handled(self, offset: int, done: bool) -> None:
        """Record that a message was read.

        Messages come in the order of their offsets, except those that were redriven before.

        Args:
            offset: Its offset.
            done: True if it was redriven; False if it stays for the next time.
        """
        self.read = True
        self._end = offset + 1
        if done:
            self._done.add(offset)
        elif self._first_left is None:
            self._first_left = offset
        # Offsets between messages belong to transactions, and not to any message.
        self.begin = self._first_left if self._first_left is not None else self._end

    def text(self) -> str:
        """Return the redriven messages after :attr:`begin` as text: a version, and a bitmap in base64.

        Raises:
            KafkaStreamError: The text is longer than brokers allow, because there are too many gaps.
        """
        done = [offset - self.begin for offset in self._done if offset >= self.begin]
        if not done:
            return ""
        bits = bytearray(max(done) // 8 + 1)
        for relative_offset in done:
            bits[relative_offset // 8] |= 1 << relative_offset % 8
        text = _VERSION + base64.b64encode(zlib.compress(bytes(bits), 9)).decode("ascii")
        if len(text) > MOST_TEXT:
            raise KafkaStreamError(
                "too many dead letters are skipped for the brokers to store which",
                expected=f"a mark of at most {MOST_TEXT} characters for each partition",
                found=f"{len(text)} characters for {max(done)} letters",
                fix="redrive the skipped letters first, or use --limit",
            )
        return text
