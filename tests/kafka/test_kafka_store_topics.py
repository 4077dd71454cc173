"""Topics that are missing, created again or unfit, brokers that cannot be reached: each has a named error."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import (
    OptionError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreMismatchError,
    StoreUnavailableError,
)
from flink_agents.connectors.action_state.kafka import topics
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.connectors.action_state.kafka.topics import find_topics
from tests.kafka.kafka_stores import (
    admin,
    configure,
    journal_in,
    opened,
    record,
    run,
)


async def used(settings: KafkaSettings) -> None:
    """Have topics with a record."""
    store = await opened(settings)
    await store.append(journal_in(settings, 0), [record()])
    await store.close()


def refused(settings: KafkaSettings, error: type[StoreError] | type[OptionError], told: str) -> None:
    """See that a store does not open, and says why; the threads of the attempt end."""
    with pytest.raises(error, match=f"(?s){told}"):
        run(opened(settings))


@pytest.fixture
def used_settings(settings: KafkaSettings) -> KafkaSettings:
    """Settings of a store that was used before."""
    run(used(settings))
    return settings


def test_topics_are_made_as_they_must_be(settings: KafkaSettings) -> None:
    async def several() -> None:
        stores = await asyncio.gather(*(opened(settings, subtask, 4) for subtask in range(4)))
        assert len({store.store_id for store in stores}) == 1
        await asyncio.gather(*(store.close() for store in stores))

    run(several())
    journals, claims = find_topics(settings, create=False)
    assert (journals.name, journals.partitions) == (settings.topic, settings.partitions)
    assert (claims.name, claims.partitions) == (f"{settings.topic}-claims", 1)


def test_a_topic_that_exists_keeps_its_number_of_partitions(used_settings: KafkaSettings) -> None:
    run(used(replace(used_settings, partitions=7)))
    assert find_topics(used_settings, create=False)[0].partitions == used_settings.partitions


def test_a_topic_that_was_made_anew(used_settings: KafkaSettings) -> None:
    with admin(used_settings) as client:
        client.delete_topics([used_settings.topic])
    refused(used_settings, StoreMismatchError, "deleted and created again")
    refused(used_settings, StoreMismatchError, "deleted and created again")


def test_claims_that_were_deleted(used_settings: KafkaSettings) -> None:
    """Of attempts that were outranked nobody knows any more which records count."""
    with admin(used_settings) as client:
        client.delete_topics([f"{used_settings.topic}-claims"])
    refused(used_settings, StoreMismatchError, "claims of topic .* are lost")
    refused(used_settings, StoreMismatchError, "claims of topic .* are lost")


def test_claims_that_were_deleted_before_anything_was_written(settings: KafkaSettings) -> None:
    async def opened_only() -> None:
        await (await opened(settings)).close()

    run(opened_only())
    with admin(settings) as client:
        client.delete_topics([f"{settings.topic}-claims"])
    run(used(settings))


def test_a_topic_with_more_partitions_than_before(used_settings: KafkaSettings) -> None:
    more: Any = {used_settings.topic: used_settings.partitions + 2}
    with admin(used_settings) as client:
        client.create_partitions(more)
    refused(used_settings, StoreMismatchError, "number of partitions.*4 partitions.*6")


@pytest.mark.parametrize("topic", ["topic", "claims_topic"])
@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ({"cleanup_policy": "delete"}, "cleanup.policy.*compact.*delete"),
        ({"cleanup_policy": "compact,delete"}, "cleanup.policy"),
        ({"max_message_bytes": 1_000_000}, "max.message.bytes.*17825792.*1000000"),
    ],
)
def test_a_topic_that_is_not_as_it_must_be(
    used_settings: KafkaSettings, topic: str, configs: dict[str, Any], told: str
) -> None:
    configure(used_settings, getattr(used_settings, topic), **configs)
    refused(used_settings, StoreFormatError, f"{getattr(used_settings, topic)}'.*{told}")


def test_a_topic_of_claims_with_more_partitions(used_settings: KafkaSettings) -> None:
    more: Any = {used_settings.claims_topic: 2}
    with admin(used_settings) as client:
        client.create_partitions(more)
    refused(used_settings, StoreFormatError, "-claims.*partitions.*1.*2")


def test_too_few_replicas(used_settings: KafkaSettings) -> None:
    refused(replace(used_settings, replication_factor=2), StoreFormatError, "replicas.*at least 2.*1")
    # A broker takes one for enough where a topic has no more.
    refused(replace(used_settings, min_insync_replicas=2), StoreFormatError, "replicas.*at least 2.*1")
    configure(used_settings, used_settings.claims_topic, min_insync_replicas=2)
    refused(replace(used_settings, min_insync_replicas=2), StoreFormatError, "replicas.*at least 2.*1")


def test_more_replicas_than_brokers(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits for more brokers, here not for long."""
    monkeypatch.setattr(topics, "CREATE_SECONDS", 1.0)
    refused(replace(settings, replication_factor=2), StoreUnavailableError, "(?i)replication")


def test_who_only_looks_makes_no_topic(settings: KafkaSettings) -> None:
    for _ in range(2):
        with pytest.raises(
            StoreUnavailableError, match=f"(?s)topic '{settings.topic}.*does not exist.*action-state.kafka"
        ):
            run(KafkaStore(settings).open(None))


@pytest.fixture
def silent() -> Iterator[str]:
    """Somebody who listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_nobody_answers(settings: KafkaSettings, silent: str) -> None:
    quick = {"bootstrap_timeout_ms": 500, "request_timeout_ms": 500}
    for nowhere in ("127.0.0.1:1", "nowhere.invalid:9092", silent):
        bad = replace(settings, bootstrap_servers=nowhere, client=quick)
        refused(bad, StoreUnavailableError, "no broker of")
    gc.collect()  # kafka-python forgets a socket where a client cannot be made


def test_options_of_the_client(used_settings: KafkaSettings) -> None:
    refused(replace(used_settings, client={"nonsense": 1}), OptionError, "client.nonsense")
    texts = {
        "bootstrap-servers": used_settings.bootstrap_servers,
        "topic": used_settings.topic,
        "client.client-id": "me",
    }
    texts |= {"client.request-timeout-ms": "5000", "client.retry_backoff_ms": "50", "append-timeout": "9s"}
    run(used(KafkaSettings.from_options(texts)))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("security_protocol", "nonsense"),
        ("request_timeout_ms", "soon"),
        ("ssl_check_hostname", "perhaps"),
        ("acks", 0),
        ("enable_idempotence", False),
        ("group_id", "mine"),
        ("value_deserializer", str),
    ],
)
def test_options_of_the_client_that_the_store_cannot_have(
    settings: KafkaSettings, option: str, value: Any
) -> None:
    refused(replace(settings, client={option: value}), OptionError, option)


def test_a_store_that_did_not_open_is_closed(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = KafkaStore(replace(settings, client={"nonsense": 1}))
        with pytest.raises(OptionError):
            await store.open(Owner.create("job-1", "group"))
        await store.close()
        with pytest.raises(StoreClosedError):
            await store.open(Owner.create("job-1", "group"))
        with pytest.raises(StoreClosedError):
            await store.rebuild()

    run(body())
