"""Reads a compacted topic from its start to its end: the last value of each key, and invalid values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.connectors.kafka.client import check_topic, create_consumer

T = TypeVar("T")

POLL_MS = 500

STALLED_SECONDS = 60.0
"""Time that a read waits for records that the brokers have, but do not send."""

RENEW_SECONDS = 600.0
"""Time after which a topic that is followed is read from its start again."""

MOST_FOREIGN = 10_000
"""Invalid records of a topic that are noted."""

REQUESTS = "the topic that approvals_to_kafka writes, or kafka_signals reads"


@dataclass(frozen=True)
class UnexpectedRecord:
    """A record that does not belong into a topic.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        offset: Its offset in the partition.
        problem: Why it does not belong there.
    """

    topic: str
    partition: int
    offset: int
    problem: str = field(compare=False)

    def __str__(self) -> str:
        place = f"topic {self.topic}, partition {self.partition}, offset {self.offset}"
        return f"skipped a record that is not a request: {place}: {self.problem}"


@contextmanager
def reader_of(
    topic: str,
    client: Mapping[str, Any],
    purpose: str = REQUESTS,
    create: str = "KafkaApprovals.create_topics",
) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a consumer of committed records with all partitions of a topic assigned, and these partitions.

    The topic is never created. The consumer is closed after the block.

    Args:
        topic: Name of the topic.
        client: Options of kafka-python for the connection.
        purpose: What the topic is for, as ``expected`` of the error.
        create: The call or command that creates it, for the fix of the error.

    Raises:
        KafkaStreamError: The topic does not exist, or the brokers cannot be reached.
    """
    from kafka.structs import TopicPartition

    options: dict[str, Any] = {
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
        **client,
    }
    consumer = create_consumer(group_id=None, enable_auto_commit=False, **options)
    try:
        check_topic(topic, client, purpose, create)
        numbers = consumer.partitions_for_topic(topic) or ()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        yield consumer, partitions
    finally:
        consumer.close()


def batches_until_now(consumer: Any, partitions: Sequence[Any]) -> Iterator[dict[Any, list[Any]]]:
    """Yield the batches that a consumer polls, from its position to the present end of its partitions.

    An empty poll is not the end: the brokers may be slow.

    Raises:
        KafkaStreamError: The brokers sent nothing for `STALLED_SECONDS`.
    """
    ends = consumer.end_offsets(partitions)
    silent_since = time.monotonic()
    while remaining_positions := {
        partition: at for partition in partitions if (at := consumer.position(partition)) < ends[partition]
    }:
        if polled := consumer.poll(timeout_ms=POLL_MS):
            yield polled
        elif any(consumer.position(partition) != at for partition, at in remaining_positions.items()):
            pass  # It passed records of aborted transactions, or the marks of committed ones.
        elif time.monotonic() - silent_since < STALLED_SECONDS:
            continue
        else:
            raise _stalled_error(remaining_positions, ends)
        silent_since = time.monotonic()


def _stalled_error(remaining_positions: Mapping[Any, int], ends: Mapping[Any, int]) -> KafkaStreamError:
    places = ", ".join(
        f"{partition.topic}/{partition.partition} at offset {at} of {ends[partition]}"
        for partition, at in remaining_positions.items()
    )
    return KafkaStreamError(
        f"the brokers stopped sending records: {places}",
        expected="brokers that send the records they have",
        found=f"nothing for {STALLED_SECONDS:g} s",
        fix="check that the leaders of these partitions run, and try again",
    )


def records_until_now(consumer: Any, partitions: Sequence[Any]) -> Iterator[Any]:
    """Yield the records from a consumer's position to the present end of its partitions."""
    for polled in batches_until_now(consumer, partitions):
        for records in polled.values():
            yield from records


def latest_values(
    topic: str, client: Mapping[str, Any], read: Callable[[bytes], T]
) -> tuple[list[T], tuple[UnexpectedRecord, ...]]:
    """Return the last value of each key of a topic, and the invalid records.

    An invalid record does not replace a valid one.

    Args:
        topic: The topic.
        client: Options of kafka-python for the connection.
        read: Parses the value of a record; raises ``KafkaValueError`` for an invalid one.

    Raises:
        KafkaStreamError: There is no such topic, or the brokers cannot be reached.
    """
    values = LatestValues(topic, client, read)
    with closing(values):
        return values.read(), tuple(values.foreign)


class LatestValues(Generic[T]):
    """Follows a compacted topic: each read continues at the last position.

    It starts over if the topic was truncated or created again, after an error, and every `RENEW_SECONDS`: by
    then, Kafka may have removed records that end a key, and another topic may have the name.

    Args:
        topic: The topic.
        client: Options of kafka-python for the connection.
        read: Parses the value of a record; raises ``KafkaValueError`` for an invalid one.

    Attributes:
        foreign: Records that could not be parsed, up to `MOST_FOREIGN`.
    """

    def __init__(self, topic: str, client: Mapping[str, Any], read: Callable[[bytes], T]) -> None:
        self._topic = topic
        self._client = client
        self._parse = read
        self._open = ExitStack()
        self._consumer: Any = None
        self._partitions: list[Any] = []
        self._values: dict[tuple[int, bytes | None], T] = {}
        self._renewed_at = 0.0
        self.foreign: list[UnexpectedRecord] = []

    def read(self) -> list[T]:
        """Read the new records of the topic, and return the last valid value of each key.

        Raises:
            KafkaStreamError: The topic does not exist, or the brokers cannot be reached or stop sending.
        """
        try:
            if self._consumer is None or self._is_old():
                self._start_consumer()
            for record in records_until_now(self._consumer, self._partitions):
                self._apply_record(record)
        except BaseException:
            self.close()
            raise
        return list(self._values.values())

    def close(self) -> None:
        """Close the consumer. The next read starts from the beginning of the topic."""
        self._consumer = None
        self._open.close()

    def _is_old(self) -> bool:
        if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            return True
        begins = self._consumer.beginning_offsets(self._partitions)
        ends = self._consumer.end_offsets(self._partitions)
        positions = {partition: self._consumer.position(partition) for partition in self._partitions}
        return any(not begins[partition] <= at <= ends[partition] for partition, at in positions.items())

    def _start_consumer(self) -> None:
        self.close()
        self._values = {}
        self.foreign = []
        consumer, self._partitions = self._open.enter_context(reader_of(self._topic, self._client))
        consumer.seek_to_beginning(*self._partitions)
        self._consumer = consumer
        self._renewed_at = time.monotonic()

    def _apply_record(self, record: Any) -> None:
        place = record.partition, record.key
        if record.value is None:
            self._values.pop(place, None)
            return
        try:
            self._values[place] = self._parse(record.value)
        except KafkaValueError as error:
            problem = " ".join((error.found or error.message).split())[:200]
            if len(self.foreign) < MOST_FOREIGN:
                self.foreign.append(UnexpectedRecord(self._topic, record.partition, record.offset, problem))
