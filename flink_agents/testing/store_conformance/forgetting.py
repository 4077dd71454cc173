"""Cases about deleting all journals of a job."""

# ruff: noqa: D102 - the names of cases say what they are about.

from __future__ import annotations

import asyncio

import pytest

from flink_agents.api.action_state import NOTHING_PRUNED, ActionStateStore, JournalKey, Owner
from flink_agents.api.errors import FencedOwnerError, StoreClosedError
from flink_agents.testing.store_conformance.base import (
    JOURNAL,
    OTHER,
    Stores,
    SuiteBase,
    case,
    indexes,
    record,
)

MANY = 1200
"""More than a listing returns at a time."""


async def _unknown(store: ActionStateStore, journal: JournalKey) -> bool:
    """Return True if there is no trace of the journal."""
    return (
        await store.scan(journal) == []
        and await store.read(journal, 0) == []
        and await store.pruned_through(journal) == NOTHING_PRUNED
        and journal not in [info.journal for info in await store.journals(limit=2 * MANY)]
    )


class ForgettingCases(SuiteBase):
    """Cases about deleting the journals of a job."""

    @case
    async def test_a_forgotten_journal_is_unknown(self, stores: Stores) -> None:
        store = await stores.open()
        for journal in (JOURNAL, OTHER):
            for seq in range(4):
                await store.append(journal, [record(seq)])
        await store.prune(OTHER, 2)
        await store.forget("job")
        for again in (store, await stores.open(), await stores.open_for(None)):
            assert await _unknown(again, JOURNAL)
            assert await _unknown(again, OTHER)
            assert (await again.stats()).records == 0

    @case
    async def test_journals_of_other_jobs_are_not_forgotten(self, stores: Stores) -> None:
        others = [JournalKey(name, "skey") for name in ("job-2", "jo", "JOB", "", "job/a", "j_b", "job\x00")]
        store = await stores.open()
        for journal in (JOURNAL, *others):
            await store.append(journal, [record(0), record(1)])
            await store.prune(journal, 0)
        await store.forget("job")
        for again in (store, await stores.open()):
            assert await _unknown(again, JOURNAL)
            for journal in others:
                assert indexes(await again.read(journal, 1)) == [0]
                assert await again.pruned_through(journal) == 0

    @case
    async def test_a_forgotten_journal_begins_anew(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(0, 1), record(5, 2), record(7, 3)])
        await store.prune(JOURNAL, 5)
        await store.forget("job")
        await store.append(JOURNAL, [record(0, 4), record(7, 5)])
        for again in (store, await stores.open()):
            assert indexes(await again.scan(JOURNAL)) == [4, 5]
        last = await stores.open()
        await last.append(JOURNAL, [record(1, 6)])
        await last.prune(JOURNAL, 0)
        assert indexes(await (await stores.open()).scan(JOURNAL)) == [6, 5]

    @case
    async def test_a_journal_is_forgotten_again(self, stores: Stores) -> None:
        for attempt in range(3):
            store = await stores.open()
            assert await _unknown(store, JOURNAL)
            await store.append(JOURNAL, [record(attempt)])
            await store.prune(JOURNAL, attempt)
            await store.append(JOURNAL, [record(attempt + 1)])
            await store.forget("job")
        assert await _unknown(await stores.open(), JOURNAL)

    @case
    async def test_what_was_forgotten_stays_so_behind_markers(self, stores: Stores) -> None:
        first = await stores.open()
        markers = [first.recovery_marker(JOURNAL)]
        await first.append(JOURNAL, [record(0, 1)])
        await first.prune(JOURNAL, 0)
        await first.append(JOURNAL, [record(1, 2)])
        markers.append(first.recovery_marker(JOURNAL))
        await first.forget("job")
        await first.append(JOURNAL, [record(0, 3)])
        for order in (markers, markers[::-1], [*markers, None]):
            again = stores.make()
            await again.open(Owner.create("job-1", "orders/agent"))
            for marker in order:
                await again.rebuild(JOURNAL, marker)
                assert indexes(await again.scan(JOURNAL)) == [3]
                assert await again.pruned_through(JOURNAL) == NOTHING_PRUNED
            await again.append(OTHER, [record()])
            await again.close()

    @case
    async def test_many_journals_are_forgotten(self, stores: Stores) -> None:
        store = await stores.open()
        journals = [JournalKey("job", f"s{number}") for number in range(MANY)]
        await asyncio.gather(*(store.append(journal, [record()]) for journal in journals))
        await store.append(JournalKey("job-2", "skey"), [record()])
        await store.forget("job")
        again = await stores.open()
        assert [info.journal.journal_id for info in await again.journals(limit=2 * MANY)] == ["job-2"]

    @case
    async def test_a_job_without_journals_is_forgotten(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record()])
        await store.forget("nobody")
        assert indexes(await store.scan(JOURNAL)) == [0]

    @case
    async def test_a_stale_owner_forgets_nothing(self, stores: Stores) -> None:
        old = await stores.open()
        await old.append(JOURNAL, [record()])
        new = await stores.open()
        with pytest.raises(FencedOwnerError):
            await old.forget("job")
        for store in (new, await stores.open()):
            assert indexes(await store.scan(JOURNAL)) == [0]

    @case
    async def test_without_an_owner_nothing_is_forgotten(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record()])
        with pytest.raises(StoreClosedError):
            await (await stores.open_for(None)).forget("job")
        assert indexes(await store.scan(JOURNAL)) == [0]
