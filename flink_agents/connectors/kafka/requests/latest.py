"""Reads a compacted topic from its start to its end: the last value of each key, and invalid values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flink_agents.api.errors import KafkaValueError
from flink_agents.connectors.kafka.client import check_topic, made_client

T = TypeVar("T")

POLL_MS = 500


@dataclass(frozen=True)
class Foreign:
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
def reader_of(topic: str, client: Mapping[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a consumer of all partitions of a topic, and the partitions. This never creates the topic.

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
        check_topic(topic, client, "the topic that approvals_to_kafka writes, or kafka_signals reads")
        numbers = consumer.partitions_for_topic(topic) or ()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        yield consumer, partitions
    finally:
        consumer.close()


def records_until_now(consumer: Any, partitions: Sequence[Any]) -> Iterator[Any]:
    """Yield the records from a consumer's position to the present end of its partitions."""
    ends = consumer.end_offsets(partitions)
    while any(consumer.position(one) < ends[one] for one in partitions):
        for records in consumer.poll(timeout_ms=POLL_MS).values():
            yield from records


def latest_values(
    topic: str, client: Mapping[str, Any], read: Callable[[bytes], T]
) -> tuple[list[T], tuple[Foreign, ...]]:
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
    foreign: list[Foreign] = []
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
                foreign.append(Foreign(topic, record.partition, record.offset, problem))
    return list(found.values()), tuple(foreign)
