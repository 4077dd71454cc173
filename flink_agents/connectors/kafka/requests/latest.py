"""Reads a compacted topic from its start to its end: the last value of each key, and invalid values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.connectors.kafka.client import check_topic, made_client

T = TypeVar("T")

POLL_MS = 500

STALLED_SECONDS = 60.0
"""Time that a read waits for records that the brokers have, but do not send."""

REQUESTS = "the topic that approvals_to_kafka writes, or kafka_signals reads"


@dataclass(frozen=True)
class UnexpectedRecord:
    """A record that does not belong into a topic.

    Attributes:
        topic: The topic.
        partition: Number of the partition.
        offset: Its place in the partition.
        problem: What is wrong with it.
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
    topic: str, client: Mapping[str, Any], purpose: str = REQUESTS
) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a consumer of all partitions of a topic, and the partitions. This never creates the topic.

    Args:
        topic: The topic.
        client: Options of kafka-python for the connection.
        purpose: What the topic is for, for the message if there is none.

    Raises:
        KafkaStreamError: There is no such topic, or the brokers cannot be reached.
    """
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    options: dict[str, Any] = {
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
        **client,
    }
    consumer = made_client(KafkaConsumer, group_id=None, enable_auto_commit=False, **options)
    try:
        check_topic(topic, client, purpose)
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
    while left := {one: at for one in partitions if (at := consumer.position(one)) < ends[one]}:
        if polled := consumer.poll(timeout_ms=POLL_MS):
            yield polled
        elif any(consumer.position(one) != at for one, at in left.items()):
            pass  # It passed records of aborted transactions, or the marks of committed ones.
        elif time.monotonic() - silent_since < STALLED_SECONDS:
            continue
        else:
            raise _stalled(left, ends)
        silent_since = time.monotonic()


def _stalled(left: Mapping[Any, int], ends: Mapping[Any, int]) -> KafkaStreamError:
    places = ", ".join(
        f"{one.topic}/{one.partition} at offset {at} of {ends[one]}" for one, at in left.items()
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
        read: Parses the value of a record.

    Raises:
        KafkaStreamError: There is no such topic, or the brokers cannot be reached.
    """
    found: dict[tuple[int, bytes | None], T] = {}
    foreign: list[UnexpectedRecord] = []
    with reader_of(topic, client) as (consumer, partitions):
        consumer.seek_to_beginning(*partitions)
        for record in records_until_now(consumer, partitions):
            place = record.partition, record.key
            if record.value is None:
                found.pop(place, None)
                continue
            try:
                found[place] = read(record.value)
            except KafkaValueError as error:
                problem = " ".join((error.found or error.message).split())[:200]
                foreign.append(UnexpectedRecord(topic, record.partition, record.offset, problem))
    return list(found.values()), tuple(foreign)
