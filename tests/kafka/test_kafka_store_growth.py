"""The store ``kafka`` follows what is not settled: keys that come once, attempts, plans, former topics."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from flink_agents.api.action_state import NOTHING_PRUNED, PLANS, JournalKey, Owner
from flink_agents.api.errors import (
    AppendOutcomeUnknownError,
    FencedOwnerError,
    RecordsPrunedError,
    StoreClosedError,
    StoreUnavailableError,
)
from flink_agents.connectors.action_state.kafka import store as store_module
from flink_agents.connectors.action_state.kafka.layout import (
    BatchKey,
    Entry,
    pack_batch,
    pack_entry,
    pack_key,
    unpack_claim_key,
)
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore
from tests.kafka.kafka_stores import (
    GROUP,
    Raw,
    compact,
    indexes,
    journal_in,
    opened,
    record,
    run,
    send,
    wait_until,
)

REMOVALS = 40


async def settle(store: KafkaStore, first: int, last: int) -> None:
    """Keys that come once each: a run, which is then removed."""
    for start in range(first, last, 50):
        journals = [JournalKey(GROUP, f"s{number}") for number in range(start, min(start + 50, last))]
        await asyncio.gather(*(store.append(journal, [record()]) for journal in journals))
        await asyncio.gather(*(store.prune(journal, 0) for journal in journals))


def claims_of(settings: KafkaSettings) -> list[tuple[str, str]]:
    """The last record of each key that the topic of claims has, unless it was removed."""
    consumer: Any = settings.create_consumer()
    try:
        partition = TopicPartition(settings.claims_topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        values_by_key: dict[bytes, bytes | None] = {}
        while (consumer.position(partition) or 0) < end:
            for message in consumer.poll(200).get(partition, ()):
                values_by_key[message.key] = message.value
    finally:
        consumer.close()
    claim_keys = [unpack_claim_key(key) for key, value in values_by_key.items() if value is not None]
    return [claim_key for claim_key in claim_keys if claim_key is not None]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("killed", [True, False])
def test_keys_that_come_once_leave_little_behind(settings: KafkaSettings, killed: bool) -> None:
    settings = replace(settings, removals=REMOVALS)

    async def body() -> None:
        waits = JournalKey(GROUP, "waits")
        for attempt in range(4):
            store = await opened(settings)
            if not attempt:
                await store.append(waits, [record(index=7)])
            await settle(store, 500 * attempt, 500 * attempt + 500)
            wait_until(lambda store=store: store.metrics()["tombstones_kept"] < 4 * REMOVALS)
            store.kill() if killed else await store.close()
        last = await opened(settings)
        await last.rebuild()
        wait_until(lambda: last.metrics()["batches_kept"] < 100)
        compacted_records = await asyncio.to_thread(compact, settings, lambda records: size(records) < 30_000)
        assert compacted_records
        await last.close()
        again = await opened(settings)
        await again.rebuild()
        # Of 2,000 keys; each of them is refused that was settled a moment ago.
        assert len(await again.journals(limit=5000)) < 4 * REMOVALS
        assert len(again._scanner.known_journals) < 4 * REMOVALS
        latest = JournalKey(GROUP, "s1999")
        assert again.may_have(latest)
        with pytest.raises(RecordsPrunedError):
            await again.scan(latest, 0)
        with pytest.raises(RecordsPrunedError):
            await again.append(latest, [record()])
        assert indexes(await again.scan(waits)) == [7]
        assert not again.may_have(JournalKey(GROUP, "new"))
        await again.close()

    run(body(), 360)


def size(found: list[Raw]) -> int:
    return sum(raw_record.size for raw_record in found)


def test_a_key_that_was_forgotten_is_as_new(settings: KafkaSettings) -> None:
    settings = replace(settings, removals=0, partitions=1)

    async def body() -> None:
        store = await opened(settings)
        await settle(store, 0, 300)
        wait_until(lambda store=store: store.metrics()["tombstones_kept"] < 150)
        again = await opened(settings)
        await again.rebuild()
        known_journals = {info.journal for info in await again.journals(limit=1000)}
        journal = next(
            candidate
            for number in range(300)
            if (candidate := JournalKey(GROUP, f"s{number}")) not in known_journals
        )
        assert not again.may_have(journal)
        assert await again.scan(journal, 0) == []
        assert await again.pruned_through(journal) == NOTHING_PRUNED
        await again.append(journal, [record(1, 5)])
        await again.append(journal, [record(2, 6)])
        await again.prune(journal, 1)
        assert indexes(await again.scan(journal)) == [6]
        third = await opened(settings)
        await third.rebuild()
        assert indexes(await third.scan(journal)) == [6]
        for opened_store in (store, again, third):
            await opened_store.close()

    run(body())


@pytest.mark.nightly
@pytest.mark.parametrize("reads", [True, False])
def test_attempts_leave_no_claims(
    settings: KafkaSettings, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all partitions are read in any case; and where none is, when there are many."""
    monkeypatch.setattr(store_module, "MANY_CLAIMS", 8)

    async def body() -> None:
        stores: list[KafkaStore] = []
        for attempt in range(25):
            store = await opened(settings, job_id=f"job-{attempt // 10}")
            stores.append(store)
            if reads:
                await store.rebuild()
            await store.append(journal_in(settings, 0), [record(attempt, attempt)])
            await store.prune(journal_in(settings, 0), attempt)
            if attempt % 10 == 9:
                await store.close()
            elif attempt % 2:
                store.kill()
        await stores[-1].append(journal_in(settings, 1), [record()])
        wait_until(lambda: len(claims_of(settings)) < 60)
        # Those that go on find out, and nothing of what they do counts.
        for store in stores[-5:-1:2]:
            with pytest.raises(FencedOwnerError):
                await store.append(journal_in(settings, 0), [record(100, 100)])
            with pytest.raises(FencedOwnerError):
                await store.prune(journal_in(settings, 0), 100)
        last = await opened(settings, job_id="job-2")
        await last.rebuild()
        assert await last.scan(journal_in(settings, 0), 25) == []
        assert len(await last.scan(journal_in(settings, 1))) == 1
        assert len((await last.stats()).owners) == 1
        for store in [*(store for store in stores if not store._closed), last]:
            await store.close()

    run(body(), 360)


@pytest.mark.parametrize("what", ["records", "removal"])
def test_what_an_owner_without_a_claim_writes_does_not_count(settings: KafkaSettings, what: str) -> None:
    """Its claim was removed while it slept. Whoever only looks has none, and may remove."""
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        await first.append(journal, [record(0, 1), record(1, 2)])
        entry = Entry(journal, [record(2, 3)]) if what == "records" else Entry(journal, (), 0)
        value = pack_batch([pack_entry(entry)])
        await asyncio.to_thread(send, settings, 0, pack_key(BatchKey("0" * 32, 1)), value)
        again = await opened(settings)
        await again.rebuild()
        assert indexes(await again.scan(journal)) == [1, 2]
        looking = KafkaStore(settings)
        await looking.open(None)
        await looking.prune(journal, 0)
        await looking.close()
        assert indexes(await again.scan(journal)) == [2]
        last = await opened(settings)
        await last.rebuild()
        assert indexes(await last.scan(journal)) == [2]
        for store in (first, again, last):
            await store.close()

    run(body())


def test_a_plan_costs_no_reading(settings: KafkaSettings) -> None:
    async def body() -> None:
        first = await opened(settings)
        await first.remember_plan("plan", b"parts")
        for number in range(20):
            await first.append(journal_in(settings, number % settings.partitions), [record()])
        again = await opened(settings)
        await again.remember_plan("plan", b"other")
        await again.remember_plan("new", b"new parts")
        assert await again.recall_plan("plan") == b"parts"
        assert again.metrics()["rebuild_records"] == 0
        assert all(info.journal.journal_id != PLANS for info in await again.journals())
        last = await opened(settings)
        assert await last.recall_plan("new") == b"new parts"
        assert last.metrics()["rebuild_records"] == 0
        for store in (first, again, last):
            await store.close()

    run(body())


# -- threads that meet what nobody expects ------------------------------------------------


class UnexpectedError(Exception):
    """What no code of the store raises."""


def fail(*_: Any, **__: Any) -> Any:
    raise UnexpectedError("of no kind that is known")


@pytest.mark.parametrize("of", ["_send_batches", "_await_acknowledgements", "_check_sent"])
def test_a_writer_that_fails_ends_the_attempt(
    settings: KafkaSettings, of: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those who wait behind it are told, and whoever comes later, with the reason."""
    journals = [journal_in(settings, number % settings.partitions, number) for number in range(40)]

    async def body() -> None:
        store = await opened(settings)
        await store.append(journals[0], [record()])
        monkeypatch.setattr(store._writer, of, fail)
        errors = await asyncio.gather(
            *(store.append(journal, [record(1)]) for journal in journals), return_exceptions=True
        )
        assert {type(error) for error in errors} <= {AppendOutcomeUnknownError, StoreClosedError}
        assert any("of no kind that is known" in str(error) for error in errors)
        wait_until(lambda: not store._writer._thread.is_alive())  # type: ignore[union-attr]
        while True:
            try:
                store.may_have(journals[0])
            except StoreClosedError as error:
                assert "of no kind that is known" in str(error)
                break
            await asyncio.sleep(0)
        with pytest.raises(StoreClosedError, match="of no kind that is known"):
            await store.append(journals[0], [record(2)])
        await store.close()

    with caplog.at_level(logging.ERROR, "flink_agents.store"):
        run(body())
    assert "of no kind that is known" in caplog.text


@pytest.mark.parametrize("of", ["read_from", "log_ends", "_decode_batches", "_apply_records"])
def test_a_reader_that_fails_is_named(
    settings: KafkaSettings, of: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = journal_in(settings, 0)

    async def body() -> None:
        first = await opened(settings)
        await first.append(journal, [record()])
        store = await opened(settings)
        with monkeypatch.context() as patch:
            patch.setattr(store._scanner, of, fail)
            for use in (store.rebuild(), store.rebuild(journal), store.scan(journal), store.journals()):
                with pytest.raises(StoreUnavailableError, match="of no kind that is known"):
                    await use
        assert indexes(await store.scan(journal)) == [0]
        await first.close()
        await store.close()

    with caplog.at_level(logging.ERROR, "flink_agents.store"):
        run(body())
    assert "of no kind that is known" in caplog.text


def test_owners_of_another_job_are_left_alone(settings: KafkaSettings) -> None:
    async def body() -> None:
        other_store = KafkaStore(settings)
        await other_store.open(Owner.create("job-9", "bills/agent"))
        await other_store.append(JournalKey("bills/agent", "s1"), [record()])
        for _ in range(3):
            store = await opened(settings)
            await store.rebuild()
            store.kill()
        await other_store.append(JournalKey("bills/agent", "s1"), [record(1)])
        assert len(await other_store.scan(JournalKey("bills/agent", "s1"))) == 2
        await other_store.close()

    run(body())
