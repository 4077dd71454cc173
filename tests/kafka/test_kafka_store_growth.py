"""The store ``kafka`` follows what is not settled: keys that come once, attempts, plans, former topics."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from flink_agents.api.action_state import NOTHING_PRUNED, PLANS, JournalKey, Owner, Record, RecordKind
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
from flink_agents.connectors.action_state.kafka.topics import find_topics
from tests.kafka.kafka_stores import (
    GROUP,
    Raw,
    batches,
    compact,
    indexes,
    journal_in,
    opened,
    producer,
    record,
    run,
    send,
    wait_until,
)

REMOVALS = 40


async def settle(store: KafkaStore, first: int, last: int) -> None:
    """Keys that come once each: a run, which is then removed."""
    for some in range(first, last, 50):
        journals = [JournalKey(GROUP, f"s{number}") for number in range(some, min(some + 50, last))]
        await asyncio.gather(*(store.append(journal, [record()]) for journal in journals))
        await asyncio.gather(*(store.prune(journal, 0) for journal in journals))


def claims_of(settings: KafkaSettings) -> list[tuple[str, str]]:
    """The last record of each key that the topic of claims has, unless it was removed."""
    consumer: Any = settings.consumer()
    try:
        partition = TopicPartition(settings.claims_topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        found: dict[bytes, bytes | None] = {}
        while (consumer.position(partition) or 0) < end:
            for one in consumer.poll(200).get(partition, ()):
                found[one.key] = one.value
    finally:
        consumer.close()
    kept = [unpack_claim_key(key) for key, value in found.items() if value is not None]
    return [one for one in kept if one is not None]


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
        kept = await asyncio.to_thread(compact, settings, lambda found: size(found) < 30_000)
        assert kept
        await last.close()
        again = await opened(settings)
        await again.rebuild()
        # Of 2,000 keys; each of them is refused that was settled a moment ago.
        assert len(await again.journals(limit=5000)) < 4 * REMOVALS
        assert len(again._scanner.known) < 4 * REMOVALS
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
    return sum(one.size for one in found)


def test_a_key_that_was_forgotten_is_as_new(settings: KafkaSettings) -> None:
    settings = replace(settings, removals=0, partitions=1)

    async def body() -> None:
        store = await opened(settings)
        await settle(store, 0, 300)
        wait_until(lambda store=store: store.metrics()["tombstones_kept"] < 150)
        again = await opened(settings)
        await again.rebuild()
        known = {info.journal for info in await again.journals(limit=1000)}
        journal = next(one for number in range(300) if (one := JournalKey(GROUP, f"s{number}")) not in known)
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
        for each in (store, again, third):
            await each.close()

    run(body())


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


# -- topics of former versions ------------------------------------------------------------

FIRST, SECOND = "31" * 32, "32" * 32
LOOKER = "33" * 32
DATA = "00a47374657000c40464617461"
FORMER_JOURNALS: list[tuple[str, str]] = [
    # Runs 0 and 1 of sa, 0 of sb.
    (
        f"93a56261746368d920{FIRST}00",
        "019293ac6f72646572732f6167656e74a2736192950300a47374657000c40464617461950301a47374657001c40464617461"
        f"93ac6f72646572732f6167656e74a27362919503{DATA}",
    ),
    # Of sa, run 0 was pruned.
    (f"93a56261746368d920{FIRST}01", "019193ac6f72646572732f6167656e74a2736100"),
    # Run 0 of sc and of sd.
    (
        f"93a56261746368d920{FIRST}02",
        f"019293ac6f72646572732f6167656e74a27363919503{DATA}93ac6f72646572732f6167656e74a27364919503{DATA}",
    ),
    # sc was forgotten.
    (f"93a56261746368d920{FIRST}03", "019193ac6f72646572732f6167656e74a27363cf8000000000000000"),
    # A plan.
    (
        f"93a56261746368d920{FIRST}05",
        "019193a600706c616e73a8666666666666666691950100a000c40f7b22616374696f6e73223a207b7d7d",
    ),
    # Behind the fence: run 7 of sb.
    (
        f"93a56261746368d920{FIRST}04",
        "019193ac6f72646572732f6167656e74a2736291950307a47374657007c40464617461",
    ),
    # By somebody who only looked: run 0 of sd was pruned.
    (f"93a56261746368d920{LOOKER}00", "019193ac6f72646572732f6167656e74a2736400"),
]
FORMER_CLAIMS: list[tuple[str, str]] = [
    (f"92a5636c61696dd920{FIRST}", "0195a56a6f622d31ac6f72646572732f6167656e740001cb3ff0000000000000"),
    (f"92a566656e6365d920{FIRST}", "0191920000"),
    (f"92a462656174d920{FIRST}", "01cb3ff8000000000000"),
    (f"92a5636c61696dd920{SECOND}", "0195a56a6f622d31ac6f72646572732f6167656e740001cb3ff0000000000000"),
    (f"92a566656e6365d920{SECOND}", "0191920005"),
    (f"92a772656c65617365d920{SECOND}", "01c3"),
]


def write_former(settings: KafkaSettings) -> None:
    """Write to topics as version 533b2bf did; these are its bytes."""
    journals, claims = find_topics(settings, create=True)
    described = b"\x01\x82\xa2id\xc4\x10" + journals.id.bytes + b"\xaapartitions\x01"
    with producer(settings) as former:
        former.send(claims.name, key=b"\x92\xa5topic\xa0", value=described, partition=0)
        for topic, records in ((claims.name, FORMER_CLAIMS), (journals.name, FORMER_JOURNALS)):
            for key, value in records:
                former.send(topic, key=bytes.fromhex(key), value=bytes.fromhex(value), partition=0)
        former.flush()


def test_a_topic_of_a_former_version_goes_on(settings: KafkaSettings) -> None:
    settings = replace(settings, partitions=1)
    write_former(settings)
    names = {key: JournalKey(GROUP, f"s{key}") for key in "abcd"}

    async def check(store: KafkaStore, pruned: int) -> None:
        assert await store.pruned_through(names["a"]) == pruned
        assert [one.seq for one in await store.scan(names["a"])] == [1][pruned:]
        assert await store.scan(names["b"]) == [Record(RecordKind.CALL, 0, "step", 0, b"data")]
        assert names["c"] not in store._scanner.index
        assert await store.pruned_through(names["c"]) == NOTHING_PRUNED
        with pytest.raises(RecordsPrunedError):
            await store.scan(names["d"], 0)
        assert await store.recall_plan("f" * 8) == b'{"actions": {}}'
        assert await store.recall_plan("unknown") is None

    async def body() -> None:
        looking = KafkaStore(settings)
        await looking.open(None)
        await looking.rebuild()
        await check(looking, 0)
        await looking.close()
        for attempt in range(3):
            store = await opened(settings)
            if attempt:
                await store.rebuild()
            await check(store, min(attempt, 1))
            await store.prune(names["a"], 1)
            await check(store, 1)
            await store.close()
        kept = await asyncio.to_thread(batches, settings)
        assert len(kept) < len(FORMER_JOURNALS) + 2
        # The first owner has a plan, and the second one decided what counts of it.
        claims = {token for kind, token in claims_of(settings) if kind == "claim"}
        assert claims >= {"1" * 32, "2" * 32}

    run(body())


# -- threads that meet what nobody expects ------------------------------------------------


class UnexpectedError(Exception):
    """What no code of the store raises."""


def fail(*_: Any, **__: Any) -> Any:
    raise UnexpectedError("of no kind that is known")


@pytest.mark.parametrize("of", ["_send", "_wait_for", "_check"])
def test_a_writer_that_fails_ends_the_attempt(
    settings: KafkaSettings, of: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those who wait behind it are told, and whoever comes later, with the reason."""
    journals = [journal_in(settings, number % settings.partitions, number) for number in range(40)]

    async def body() -> None:
        store = await opened(settings)
        await store.append(journals[0], [record()])
        monkeypatch.setattr(store._writer, of, fail)
        told = await asyncio.gather(
            *(store.append(journal, [record(1)]) for journal in journals), return_exceptions=True
        )
        assert {type(error) for error in told} <= {AppendOutcomeUnknownError, StoreClosedError}
        assert any("of no kind that is known" in str(error) for error in told)
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


@pytest.mark.parametrize("of", ["read", "log_ends", "_look_into", "_take"])
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
        other = KafkaStore(settings)
        await other.open(Owner.create("job-9", "bills/agent"))
        await other.append(JournalKey("bills/agent", "s1"), [record()])
        for _ in range(3):
            store = await opened(settings)
            await store.rebuild()
            store.kill()
        await other.append(JournalKey("bills/agent", "s1"), [record(1)])
        assert len(await other.scan(JournalKey("bills/agent", "s1"))) == 2
        await other.close()

    run(body())
