"""Helpers for tests of the store ``kafka``: stores with a new topic, and a view of its records."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidReplicationFactorError, KafkaTimeoutError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.connectors.action_state.kafka.layout import (
    BatchKey,
    Entry,
    partition_of,
    unpack_batch,
    unpack_key,
)
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.testing.kafka import KafkaBroker

T = TypeVar("T")

PARTITIONS = 4
LEASE_SECONDS = 1.0
APPEND_LEASE_SECONDS = 0.2
DEADLINE_SECONDS = 180.0
GROUP = "orders/agent"
FILLER = b"filler"

_numbers = itertools.count()


def make_settings(broker: KafkaBroker, **given: Any) -> KafkaSettings:
    """Settings of a store in a topic that nobody else has."""
    settings = KafkaSettings(
        broker.bootstrap_servers,
        f"store-{os.getpid()}-{next(_numbers)}",
        partitions=PARTITIONS,
        lease_seconds=LEASE_SECONDS,
        append_lease_seconds=APPEND_LEASE_SECONDS,
        append_seconds=30.0,
        rebuild_seconds=30.0,
    )
    return replace(settings, **given)


async def opened(
    settings: KafkaSettings, subtask: int = 0, parallelism: int = 1, job_id: str = "job-1"
) -> KafkaStore:
    """A store that a new attempt opened, and that has read nothing yet."""
    store = KafkaStore(settings)
    await store.open(Owner.create(job_id, GROUP, subtask, parallelism))
    return store


def run(body: Coroutine[Any, Any, T], seconds: float = DEADLINE_SECONDS) -> T:
    """Execute a test, which fails where it does not end."""
    return asyncio.run(asyncio.wait_for(body, seconds))


def record(seq: int = 0, index: int = 0, data: bytes = b"data") -> Record:
    """A record; each argument has a default."""
    return Record(RecordKind.CALL, seq, "step", index, data)


def indexes(records: Sequence[Record]) -> list[int]:
    """What tells records of a test apart."""
    return [stored_record.index for stored_record in records]


def journal_in(settings: KafkaSettings, partition: int, number: int = 0) -> JournalKey:
    """A journal of a given partition; one with another number is another one."""
    names = (JournalKey("job", f"s{number}-{at}") for at in itertools.count())
    return next(name for name in names if partition_of(name, settings.partitions) == partition)


# -- the topic from outside ---------------------------------------------------------------


class Raw(NamedTuple):
    """A Kafka record of the topic of journals."""

    partition: int
    offset: int
    key: BatchKey | None
    entries: list[Entry] | None
    size: int


@contextmanager
def admin(settings: KafkaSettings) -> Iterator[KafkaAdminClient]:
    """A client for topics."""
    client = settings.create_admin()
    try:
        yield client
    finally:
        client.close()


@contextmanager
def producer(settings: KafkaSettings, **options: Any) -> Iterator[KafkaProducer]:
    """A foreign client that appends."""
    client = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, **options)
    try:
        yield client
    finally:
        client.close()


def send(settings: KafkaSettings, partition: int, key: bytes | None, value: bytes | None) -> int:
    """Append a foreign record; returns its offset."""
    with producer(settings) as foreign:
        return foreign.send(settings.topic, key=key, value=value, partition=partition).get(30).offset


def raw_records(settings: KafkaSettings) -> list[Raw]:
    """All Kafka records of the topic of journals."""
    consumer: Any = settings.create_consumer()
    try:
        partitions = [TopicPartition(settings.topic, number) for number in range(settings.partitions)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        topic_records: list[Raw] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while any((consumer.position(partition) or 0) < ends[partition] for partition in partitions):
            assert time.monotonic() < deadline, "the topic cannot be read"
            for topic_partition, records in consumer.poll(200).items():
                topic_records += [_raw(topic_partition.partition, message) for message in records]
        return topic_records
    finally:
        consumer.close()


def _raw(partition: int, one: Any) -> Raw:
    key = unpack_key(one.key)
    entries = unpack_batch(one.value) if key is not None and one.value is not None else None
    return Raw(partition, one.offset, key, entries, len(one.value or b""))


def batches(settings: KafkaSettings) -> list[Raw]:
    """The batches that the topic has, without those that were removed."""
    topic_records = raw_records(settings)
    removed = {
        raw_record.key
        for raw_record in topic_records
        if raw_record.key is not None and raw_record.entries is None
    }
    return [
        raw_record
        for raw_record in topic_records
        if raw_record.key is not None and raw_record.key not in removed
    ]


def configure(settings: KafkaSettings, topic: str, **configs: Any) -> None:
    """Change the configuration of a topic; an underscore in a name is a dot there."""
    values = {name.replace("_", "."): str(value) for name, value in configs.items()}
    with admin(settings) as client:
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, values)])


def compact(settings: KafkaSettings, enough: Callable[[list[Raw]], bool]) -> list[Raw]:
    """Have the broker compact the topic until what it has is right."""
    configure(settings, settings.topic, segment_ms=50, min_cleanable_dirty_ratio=0.001, delete_retention_ms=0)
    deadline = time.monotonic() + DEADLINE_SECONDS
    with producer(settings) as foreign:
        while not enough(topic_records := raw_records(settings)):
            assert time.monotonic() < deadline, f"the log cleaner did not do it: {topic_records}"
            # A segment ends with the first append after its time; the last one is never compacted.
            for partition in range(settings.partitions):
                foreign.send(settings.topic, key=FILLER, value=b"", partition=partition)
            foreign.flush()
            time.sleep(0.1)
    configure(settings, settings.topic, segment_ms=600_000)
    return topic_records


def delete_records(settings: KafkaSettings, partition: int, before: int) -> None:
    """Remove records as somebody with another idea of the topic would; -1 for all."""
    # Kafka takes it for no topic that is only compacted.
    configure(settings, settings.topic, cleanup_policy="compact,delete")
    with admin(settings) as client:
        client.delete_records({TopicPartition(settings.topic, partition): before})
    configure(settings, settings.topic, cleanup_policy="compact")


def quick_cleaner(broker: KafkaBroker) -> None:
    """Let the log cleaner look for work at once, and not each 15 seconds."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        values = {"log.cleaner.backoff.ms": "100"}
        client.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", values)])
    finally:
        client.close()


def go_on(broker: KafkaBroker) -> None:
    """End a pause, and wait until the broker makes topics again: its controller took it for dead."""
    broker.resume()
    topics: Any = {f"probe-{os.getpid()}-{next(_numbers)}": {"num_partitions": 1, "replication_factor": 1}}

    def makes_topics() -> bool:
        try:
            client.create_topics(topics)
        except (InvalidReplicationFactorError, KafkaTimeoutError):
            return False
        except TopicAlreadyExistsError:
            pass
        return True

    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        wait_until(makes_topics)
    finally:
        client.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process or thread does."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)
