"""Cases about pruning."""

# ruff: noqa: D102 - the names of cases say what they are about.

from __future__ import annotations

import asyncio

import pytest

from flink_agents.api.action_state import NOTHING_PRUNED, ActionStateStore, JournalKey
from flink_agents.api.errors import RecordsPrunedError
from flink_agents.testing.store_conformance.base import (
    JOURNAL,
    OTHER,
    Stores,
    SuiteBase,
    case,
    indexes,
    outcome,
    record,
)


async def _with_runs(stores: Stores, *journals: JournalKey, runs: int = 6) -> ActionStateStore:
    """Return a store in which each journal has some runs of two records."""
    store = await stores.open()
    for journal in journals or (JOURNAL,):
        for seq in range(runs):
            await store.append(journal, [record(seq, seq), record(seq, seq + 100)])
    return store


class PruningCases(SuiteBase):
    """Cases about records that are no longer needed."""

    @case
    async def test_runs_up_to_the_given_one_go(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 3)
        for again in (store, await stores.open()):
            assert indexes(await again.scan(JOURNAL)) == [4, 104, 5, 105]
            assert indexes(await again.read(JOURNAL, 4)) == [4, 104]
            assert await again.pruned_through(JOURNAL) == 3

    @case
    async def test_other_journals_stay(self, stores: Stores) -> None:
        others = [OTHER, JournalKey("job", "ske"), JournalKey("job", "skey_1"), JournalKey("job-2", "skey")]
        store = await _with_runs(stores, JOURNAL, *others, runs=3)
        await store.prune(JOURNAL, 2)
        assert await store.scan(JOURNAL) == []
        for journal in others:
            assert len(await store.scan(journal)) == 6
            assert await store.pruned_through(journal) == NOTHING_PRUNED

    @case
    async def test_pruning_again_changes_nothing(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        for _ in range(2):
            await store.prune(JOURNAL, 3)
            assert len(await store.scan(JOURNAL)) == 4
        assert await store.pruned_through(JOURNAL) == 3

    @case
    async def test_what_was_pruned_stays_pruned(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 3)
        for lower in (2, 0, -1, -5):
            await store.prune(JOURNAL, lower)
            assert await store.pruned_through(JOURNAL) == 3
        with pytest.raises(RecordsPrunedError):
            await store.read(JOURNAL, 3)

    @case
    async def test_a_run_that_was_pruned_cannot_be_read(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 3)
        for again in (store, await stores.open()):
            for seq in range(4):
                with pytest.raises(RecordsPrunedError, match=str(seq)):
                    await again.read(JOURNAL, seq)

    @case
    async def test_a_scan_from_what_was_pruned_is_refused(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 3)
        for first, last in ((0, None), (3, None), (3, 5), (0, 2)):
            with pytest.raises(RecordsPrunedError):
                await store.scan(JOURNAL, first, last)
        assert len(await store.scan(JOURNAL, 4)) == 4

    @case
    async def test_a_scan_from_the_first_that_is_kept(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 3)
        assert indexes(await store.scan(JOURNAL, None, 4)) == [4, 104]
        assert await store.scan(JOURNAL, None, 2) == []

    @case
    async def test_nothing_is_appended_to_what_was_pruned(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 3)
        for _ in range(2):
            with pytest.raises(RecordsPrunedError):
                await store.append(JOURNAL, [record(9), record(3)])
            assert len(await store.scan(JOURNAL)) == 4
            store = await stores.open()

    @case
    async def test_later_runs_go_on(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, 100)
        assert await store.scan(JOURNAL) == []
        await store.append(JOURNAL, [record(101, 7)])
        for again in (store, await stores.open()):
            assert indexes(await again.scan(JOURNAL)) == [7]
            assert await again.pruned_through(JOURNAL) == 100

    @case
    async def test_a_journal_without_records_stays_unknown(self, stores: Stores) -> None:
        store = await stores.open()
        await store.prune(JOURNAL, 3)
        assert await store.pruned_through(JOURNAL) == NOTHING_PRUNED
        assert await store.read(JOURNAL, 3) == []
        assert await store.journals() == []
        await store.append(JOURNAL, [record(0)])
        assert len(await store.read(JOURNAL, 0)) == 1

    @case
    async def test_a_number_below_all_prunes_nothing(self, stores: Stores) -> None:
        store = await _with_runs(stores)
        await store.prune(JOURNAL, -1)
        assert await store.pruned_through(JOURNAL) == NOTHING_PRUNED
        assert len(await store.scan(JOURNAL, 0)) == 12

    @case
    async def test_many_journals_are_pruned_at_a_time(self, stores: Stores) -> None:
        journals = [JournalKey("job", f"i{number}") for number in range(50)]
        store = await _with_runs(stores, *journals, runs=3)
        await asyncio.gather(*(store.prune(journal, at % 3) for at, journal in enumerate(journals)))
        for at, journal in enumerate(journals):
            assert len(await store.scan(journal)) == 2 * (2 - at % 3)

    @case
    async def test_pruning_keeps_its_place_among_appends(self, stores: Stores) -> None:
        store = await _with_runs(stores, runs=1)
        errors = await asyncio.gather(
            outcome(store.append(JOURNAL, [record(1, 1)])),
            outcome(store.prune(JOURNAL, 1)),
            outcome(store.append(JOURNAL, [record(1, 2)])),
            outcome(store.append(JOURNAL, [record(2, 3)])),
        )
        assert [type(error) for error in errors if error] == [RecordsPrunedError]
        assert indexes(await store.scan(JOURNAL)) == [3]
