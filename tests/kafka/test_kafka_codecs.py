"""Compressed topics: a reader without the codec's library raises an error by name, and does not hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, codec as codec_libraries
from kafka.admin import ConfigResource, ConfigResourceType

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import AgentsError, KafkaStreamError, StoreUnavailableError
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.dead_letters.redrive import redrive
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.kafka_clients import CODEC_LIBRARIES
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.ui.sources import TraceTopic
from tests.kafka.kafka_stores import GROUP, configure, journal_in, make_settings, opened, record, run
from tests.suite.tables import each_case


@pytest.fixture(autouse=True)
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("snappy", "zstd", "lz4", "lz4f", "lz4framed"):
        monkeypatch.setattr(codec_libraries, library, None)


def filled(broker: KafkaBroker, name: str, codec: str, partitions: int = 2) -> str:
    """Return a topic with plain records, and then with compressed ones."""
    topic = f"{name}-{codec}"
    create_topic(topic, partitions=partitions, bootstrap_servers=broker.bootstrap_servers)
    settings = KafkaSettings(broker.bootstrap_servers, topic)
    send(broker, topic, b"plain", partitions)
    configure(settings, topic, compression_type=codec)
    send(broker, topic, b"compressed" * 100, partitions)
    return topic


def send(broker: KafkaBroker, topic: str, value: bytes, partitions: int) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for partition in range(partitions):
        for number in range(3):
            producer.send(topic, json.dumps([value.decode(), number]).encode(), b"key", partition=partition)
    producer.flush()
    producer.close()


def read_letters(broker: KafkaBroker, topic: str) -> None:
    redrive(topic, "elsewhere", dry_run=True, bootstrap_servers=broker.bootstrap_servers)


def read_approvals(broker: KafkaBroker, topic: str) -> None:
    KafkaApprovals("signals", requests=topic, bootstrap_servers=broker.bootstrap_servers).pending()


def read_trace(broker: KafkaBroker, topic: str) -> None:
    source = TraceTopic(topic, {"bootstrap_servers": broker.bootstrap_servers})
    try:
        # A poll may return the plain records, or none.
        for _ in range(100):
            list(source.read())
    finally:
        source.close()


def read_answers(broker: KafkaBroker, topic: str) -> None:
    from flink_agents.cli.runs.places import TRACE_TOPIC
    from flink_agents.connectors.kafka.client import translate_client_errors
    from flink_agents.connectors.kafka.requests.latest import reader_of, records_until_now

    client = {"bootstrap_servers": broker.bootstrap_servers}
    with translate_client_errors(), reader_of(topic, client, TRACE_TOPIC) as (consumer, partitions):
        consumer.seek_to_beginning(*partitions)
        list(records_until_now(consumer, partitions))


READERS = [read_letters, read_approvals, read_trace, read_answers]


@pytest.mark.nightly
@each_case("read", READERS, ids=lambda read: read.__name__)
@each_case("codec", CODEC_LIBRARIES)
def test_a_reader_names_the_missing_library(
    kafka_broker: KafkaBroker, codec: str, read: Callable[[KafkaBroker, str], None]
) -> None:
    topic = filled(kafka_broker, read.__name__, codec)
    with pytest.raises(KafkaStreamError) as raised:
        read(kafka_broker, topic)
    assert named(raised.value, topic, codec)


def named(error: AgentsError, topic: str, codec: str) -> bool:
    text = str(error)
    return f"topic {topic!r}" in text and f"by {codec}" in text and CODEC_LIBRARIES[codec] in text


@each_case("codec", ["gzip", "uncompressed"])
def test_other_codecs_are_read(kafka_broker: KafkaBroker, codec: str) -> None:
    read_answers(kafka_broker, filled(kafka_broker, "plain", codec))


@contextmanager
def compressing(broker: KafkaBroker, codec: str) -> Iterator[None]:
    """Let the broker compress what it stores, whatever producers do."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)

    def alter(value: Any) -> None:
        client.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", {"compression.type": value})])

    try:
        alter(codec)
        yield
    finally:
        # A setting with its default value would still count as changed, also for the topics of other tests.
        alter(("DELETE", None))
        client.close()


@each_case("codec", CODEC_LIBRARIES)
def test_topics_of_the_store_are_not_compressed_by_the_broker(
    cleaning_broker: KafkaBroker, codec: str
) -> None:
    settings = make_settings(cleaning_broker)
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        await first.append(journal, [record()])
        again = await opened(settings)
        await again.rebuild()
        assert len(await again.scan(journal)) == 1
        await again.close()
        await first.close()

    with compressing(cleaning_broker, codec):
        run(body())


@pytest.mark.nightly
@each_case("topic", ["topic", "claims_topic"])
@each_case("codec", CODEC_LIBRARIES)
@each_case("state", ["set", "was set"])
def test_a_store_names_the_missing_library(
    cleaning_broker: KafkaBroker, codec: str, topic: str, state: str
) -> None:
    settings = make_settings(cleaning_broker)
    name = getattr(settings, topic)
    journal = journal_in(settings, 0)

    async def fill() -> None:
        store = await opened(settings)
        configure(settings, name, compression_type=codec)
        await store.append(journal, [record(data=b"data" * 1000)])
        await store.remember_plan("plan", b"plan" * 1000)
        await store.close()

    async def reopen() -> None:
        store = KafkaStore(settings)
        try:
            await store.open(Owner.create("job-1", GROUP))
            await store.rebuild()
        finally:
            await store.close()

    run(fill())
    if state == "was set":
        configure(settings, name, compression_type="producer")
    with pytest.raises(StoreUnavailableError) as raised:
        asyncio.run(asyncio.wait_for(reopen(), 60))
    assert named(raised.value, name, codec)
