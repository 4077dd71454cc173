"""Where reading the journals ends: at the ends that were asked for, whatever lies in the topic, and soon."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from flink_agents.api.action_state import NOTHING_PRUNED, JournalKey
from flink_agents.api.errors import StoreFormatError, StoreUnavailableError
from flink_agents.connectors.action_state.kafka import scan
from flink_agents.connectors.action_state.kafka.layout import BatchKey, pack_key
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from flink_agents.testing.kafka import KafkaBroker
from tests.kafka.kafka_stores import (
    FILLER,
    compact,
    delete_records,
    go_on,
    indexes,
    journal_in,
    opened,
    producer,
    record,
    run,
    send,
)


async def written(settings: KafkaSettings, journal: JournalKey, count: int) -> None:
    """One batch for each record, all of run 0."""
    store = await opened(settings)
    for index in range(count):
        await store.append(journal, [record(index=index)])
    await store.close()


async def read_indexes(settings: KafkaSettings, journal: JournalKey) -> list[int]:
    """What a new attempt reads."""
    store = await opened(settings)
    await store.rebuild()
    records = await store.scan(journal)
    await store.close()
    return indexes(records)


def transaction(settings: KafkaSettings, partition: int, *ends: str) -> None:
    """Append foreign transactions, each of which leaves a record that no client is shown."""
    with producer(settings, transactional_id=settings.topic) as foreign:
        foreign.init_transactions()
        for end in ends:
            foreign.begin_transaction()
            foreign.send(settings.topic, key=FILLER, value=b"", partition=partition).get(30)
            if end == "commit":
                foreign.commit_transaction()
            else:
                foreign.abort_transaction()


@contextmanager
def writing(settings: KafkaSettings, partition: int, key: bytes) -> Iterator[list[int]]:
    """Somebody who appends all the time; gives what is on its way the offsets of what is there."""
    offsets: list[int] = []
    ended = threading.Event()

    def work() -> None:
        with producer(settings) as foreign:
            while not ended.is_set():
                sent = [
                    foreign.send(settings.topic, key=key, value=b"", partition=partition) for _ in range(20)
                ]
                offsets.extend(future.get(30).offset for future in sent)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not offsets:
            pass
        yield offsets
    finally:
        ended.set()
        thread.join()


@contextmanager
def stuttering(broker: KafkaBroker) -> Iterator[None]:
    """A broker that stands still most of the time."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            broker.pause()
            ended.wait(0.3)
            broker.resume()
            ended.wait(0.1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        go_on(broker)


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("ends", [("commit",), ("abort",), ("commit", "abort", "abort")])
def test_records_that_no_client_is_shown_stand_at_the_end(
    settings: KafkaSettings, ends: tuple[str, ...]
) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 3)
        await asyncio.to_thread(transaction, settings, 0, *ends)
        store = await opened(settings)
        await store.rebuild()
        assert indexes(await store.scan(journal)) == [0, 1, 2]
        await store.append(journal, [record(index=3)])
        assert indexes(await store.scan(journal)) == [0, 1, 2, 3]
        await store.close()
        assert await read_indexes(settings, journal) == [0, 1, 2, 3]

    run(body())


def test_records_were_compacted_away(settings: KafkaSettings) -> None:
    """At the begin, in the middle, and before records that no client is shown."""
    journal, other_journal = journal_in(settings, 0), journal_in(settings, 0, 1)

    async def body() -> None:
        store = await opened(settings)
        for seq in range(12):
            await store.append(journal if seq % 4 else other_journal, [record(seq, seq)])
        await store.prune(other_journal, 7)
        await store.prune(journal, 5)
        marker = store.recovery_marker(journal)
        await store.append(journal, [record(12, 12)])
        await store.close()
        await asyncio.to_thread(transaction, settings, 0, "abort")
        compacted_records = await asyncio.to_thread(
            compact, settings, lambda raw: sum(raw_record.key is not None for raw_record in raw) == 9
        )
        await asyncio.to_thread(transaction, settings, 0, "commit")
        again = await opened(settings)
        await again.rebuild(journal, marker)
        assert indexes(await again.scan(journal)) == [12]
        await again.rebuild()
        assert indexes(await again.scan(journal)) == [6, 7, 9, 10, 11, 12]
        assert indexes(await again.scan(other_journal)) == [8]
        assert (await again.pruned_through(journal), await again.pruned_through(other_journal)) == (5, 7)
        offsets = [raw_record.offset for raw_record in compacted_records if raw_record.partition == 0]
        assert offsets[-1] > len(offsets), "there is no gap"
        await again.close()

    run(body())


def test_partitions_are_empty(settings: KafkaSettings) -> None:
    async def body() -> None:
        store = await opened(settings)
        await store.rebuild()
        assert await store.journals() == []
        await store.append(journal_in(settings, 2), [record(index=5)])
        await store.close()
        assert await read_indexes(settings, journal_in(settings, 2)) == [5]
        assert await read_indexes(settings, journal_in(settings, 1)) == []

    run(body())


def test_all_records_were_deleted(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 5)
        store = await opened(settings)
        await asyncio.to_thread(delete_records, settings, 0, -1)
        await store.rebuild()
        assert await store.scan(journal) == []
        assert await store.pruned_through(journal) == NOTHING_PRUNED
        await store.append(journal, [record(index=9)])
        assert indexes(await store.scan(journal)) == [9]
        await store.close()
        assert await read_indexes(settings, journal) == [9]

    run(body())


def test_records_are_deleted_while_they_are_read(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 6)
        store = await opened(settings)
        log_ends = store._scanner.log_ends

        def ends(partitions: list[int]) -> dict[int, int]:
            end_offsets = log_ends(partitions)
            delete_records(settings, 0, 4)
            return end_offsets

        monkeypatch.setattr(store._scanner, "log_ends", ends)
        await store.rebuild()
        monkeypatch.undo()
        assert indexes(await store.scan(journal)) == [4, 5]
        await store.close()

    run(body())


def test_somebody_appends_all_the_time(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 3)
        with writing(settings, 0, FILLER) as offsets:
            for _ in range(3):
                store = await opened(settings)
                await store.rebuild()
                read = store._scanner.records
                assert read <= offsets[-1] + 1000, "it read what came later"
                offset_count = len(offsets)
                assert indexes(await store.scan(journal)) == [0, 1, 2]
                await asyncio.to_thread(lambda low=offset_count: _until(lambda: len(offsets) > low))
                await store.close()

    def _until(condition: Any) -> None:
        while not condition():
            pass

    run(body())


def test_the_broker_is_slow(settings: KafkaSettings, kafka_broker: KafkaBroker) -> None:
    slow = replace(settings, client={"max_poll_records": 5, "max_partition_fetch_bytes": 1000})
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 60)
        store = await opened(slow)
        with stuttering(kafka_broker):
            await store.rebuild()
            assert indexes(await store.scan(journal)) == list(range(60))
        await store.close()

    run(body())


def test_a_broker_that_does_not_answer_is_named(settings: KafkaSettings, kafka_broker: KafkaBroker) -> None:
    impatient = replace(settings, rebuild_seconds=2.0)
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 3)
        store = await opened(impatient)
        kafka_broker.pause()
        try:
            with pytest.raises(StoreUnavailableError, match="made no progress for 2 s"):
                await store.rebuild()
        finally:
            go_on(kafka_broker)
        await store.rebuild()
        assert indexes(await store.scan(journal)) == [0, 1, 2]
        await store.close()

    run(body())


def test_what_failed_half_way_is_not_there_twice(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, number = journal_in(settings, 0), itertools.count()

    def unpack(data: bytes) -> Any:
        if next(number) == 4:
            raise StoreFormatError("for a moment")
        return unpacked(data)

    async def body() -> None:
        await written(settings, journal, 8)
        store = await opened(settings)
        monkeypatch.setattr(scan, "unpack_batch", unpack)
        with pytest.raises(StoreFormatError):
            await store.rebuild()
        await store.rebuild()
        assert indexes(await store.scan(journal)) == list(range(8))
        await store.prune(journal, 0)
        assert await store.scan(journal) == []
        await store.close()

    unpacked = scan.unpack_batch
    run(body())


@pytest.mark.nightly(beyond=3)
@pytest.mark.parametrize("key", [b"", b"other", b"\x93\xa5batch", pack_key(BatchKey("t", 1))[:-1]])
@pytest.mark.parametrize("value", [None, b"", b"other"])
def test_foreign_records_are_passed_over(settings: KafkaSettings, key: bytes, value: bytes | None) -> None:
    """A record without a key is none that a compacted topic takes."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 1)
        await asyncio.to_thread(send, settings, 0, key, value)
        store = await opened(settings)
        await store.rebuild()
        await store.append(journal, [record(index=1)])
        assert indexes(await store.scan(journal)) == [0, 1]
        await store.close()

    run(body())


@pytest.mark.parametrize(
    ("value", "told"),
    [(b"\x03\xc1", "cannot be read"), (b"\x03\x91\x91\xa1a", "cannot be read"), (b"\x02\x90", "version 2")],
)
def test_a_batch_that_is_damaged_is_named(settings: KafkaSettings, value: bytes, told: str) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 1)
        await asyncio.to_thread(send, settings, 0, pack_key(BatchKey("somebody", 1)), value)
        store = await opened(settings)
        with pytest.raises(StoreFormatError, match=told):
            await store.rebuild()
        with pytest.raises(StoreFormatError, match=told):
            await store.scan(journal)
        await store.close()

    run(body())


def test_stores_side_by_side_read_each_other(settings: KafkaSettings) -> None:
    """Each append is seen by whoever asks later, however many ask at a time."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        stores: list[KafkaStore] = [await opened(settings, subtask, 2) for subtask in range(2)]
        for index in range(10):
            await stores[index % 2].append(journal, [record(index=index)])
            seen = await asyncio.gather(*(store.scan(journal) for store in stores * 3))
            assert [indexes(records) for records in seen] == [list(range(index + 1))] * 6
        for store in stores:
            await store.close()

    run(body())


def test_what_was_written_and_read_is_measured(settings: KafkaSettings) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        await written(settings, journal, 20)
        store = await opened(settings)
        await store.rebuild()
        await asyncio.gather(*(store.append(journal, [record(1, index)]) for index in range(30)))
        values = store.metrics()
        assert values["rebuild_records"] == 20 and values["rebuild_millis"] >= 0
        assert values["appends"] == 30 and values["append_errors"] == 0
        assert values["append_bytes"] > 30 * len(record().data) and values["append_micros"] > 0
        await store.close()

    run(body())
