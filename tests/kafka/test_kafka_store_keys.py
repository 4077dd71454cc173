"""Keys of all kinds, and records of all sizes, in the store ``kafka``."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from flink_agents.api.action_state import JournalKey
from flink_agents.api.errors import RecordTooLargeError
from flink_agents.connectors.action_state.kafka.layout import partition_of
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.runtime.serde.keys import encode_key
from tests.kafka.kafka_stores import indexes, opened, record, run

KEYS = 1000


def odd_keys() -> list[Any]:
    """Keys that a careless encoding would take for each other."""
    keys: list[Any] = [
        "",
        "_",
        "__",
        " ",
        "\x00",
        None,
        True,
        False,
        (),
        ("",),
        (None,),
        b"",
        "\ud800",
        "1.0",
    ]
    for number in range(110):
        text = str(number)
        keys += [number, text, (number,), (text,), f"user_{text}", f"{text}_", (number, text), float(number)]
    keys += [f"{'x' * 10_240}{number}" for number in range(6)]
    keys += [chr(0x3B1 + number) + "\u0301" * (number % 3) for number in range(40)]
    keys += [chr(0x1F600 + number) for number in range(40)]
    keys += [((number, "a"), ("a", number)) for number in range(KEYS - len(keys))]
    return keys


def test_a_thousand_odd_keys_have_journals_of_their_own(settings: KafkaSettings) -> None:
    journals = [JournalKey("job", encode_key(key)) for key in odd_keys()]
    assert len(set(journals)) == len(journals) == KEYS

    async def check(store: KafkaStore) -> None:
        record_lists = await asyncio.gather(*map(store.scan, journals))
        assert [indexes(records) for records in record_lists] == [[number] for number in range(KEYS)]

    async def body() -> None:
        store = await opened(settings)
        await asyncio.gather(
            *(store.append(journal, [record(index=number)]) for number, journal in enumerate(journals))
        )
        await check(store)
        await store.close()
        again = await opened(settings)
        await again.rebuild()
        assert all(map(again.may_have, journals))
        assert not again.may_have(JournalKey("job", encode_key("never")))
        await check(again)
        await again.close()

    run(body())
    spread = Counter(partition_of(journal, settings.partitions) for journal in journals)
    assert set(spread) == set(range(settings.partitions))
    assert max(spread.values()) < 1.3 * KEYS / settings.partitions


def test_the_partition_of_a_journal_never_changes() -> None:
    """Another hash would lose the journals of a topic that exists."""
    names = [JournalKey("job", "s1"), JournalKey("", ""), JournalKey("a", "\udcff"), JournalKey("jo", "bs1")]
    assert [partition_of(name, 1000) for name in names] == [618, 479, 625, 514]


def test_records_of_the_largest_size(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        largest = record(data=bytes(settings.max_record_bytes))
        journal = JournalKey("job", "s1")
        await store.append(journal, [largest, largest])
        with pytest.raises(RecordTooLargeError, match="together"):
            await store.append(journal, [largest, largest, largest])
        # Beside them, names must find their place; or the error must say what is too large.
        with pytest.raises(RecordTooLargeError, match="together"):
            await store.append(JournalKey("job", "s" * settings.message_bytes), [record()])
        await store.append(JournalKey("job", "s2"), [record(index=7)])
        again = await opened(settings)
        await again.rebuild()
        assert await again.scan(journal) == [largest, largest]
        assert indexes(await again.scan(JournalKey("job", "s2"))) == [7]
        await store.close()
        await again.close()

    run(body())
