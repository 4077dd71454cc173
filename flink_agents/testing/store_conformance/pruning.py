"""Cases about removals: pruning, the record of it, and deleting all journals of a job."""

# ruff: noqa: D102 - the names of cases describe them.

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from flink_agents.api.action_state import NOTHING_PRUNED, ActionStateStore, JournalKey, Owner
from flink_agents.api.errors import FencedOwnerError, RecordsPrunedError, StoreClosedError
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
    """Return an open store in which each journal has ``runs`` runs of two records."""
    store = await stores.open()
    for journal in journals or (JOURNAL,):
        for seq in range(runs):
            await store.append(journal, [record(seq, seq), record(seq, seq + 100)])
    return store


class PruningCases(SuiteBase):
    """Cases: pruned runs are gone for good, and all others stay."""

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
        other_journals = [
            OTHER,
            JournalKey("job", "ske"),
            JournalKey("job", "skey_1"),
            JournalKey("job-2", "skey"),
        ]
        store = await _with_runs(stores, JOURNAL, *other_journals, runs=3)
        await store.prune(JOURNAL, 2)
        assert await store.scan(JOURNAL) == []
        for journal in other_journals:
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


AT_ONCE = 10
MANY = 100
"""Number of journals that are pruned if the suite sets no bound."""


def _journal_keys(number: int, prefix: str = "i") -> list[JournalKey]:
    return [JournalKey("job", f"{prefix}{index}") for index in range(number)]


async def _in_turn(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await calls, a few at a time, and return their results in order."""
    results: list[Any] = []
    for start in range(0, len(calls), AT_ONCE):
        results += await asyncio.gather(*calls[start : start + AT_ONCE])
    return results


async def _use_up(store: ActionStateStore, journals: Sequence[JournalKey]) -> None:
    """Append a record to each journal, and prune it."""
    await _in_turn([store.append(journal, [record(0)]) for journal in journals])
    await _in_turn([store.prune(journal, 0) for journal in journals])


class RemovalCases(SuiteBase):
    """Cases: the last fully pruned journals are remembered."""

    def _removal_count(self) -> int:
        return MANY if self.removals is None else self.removals

    @case
    async def test_the_last_journals_that_were_pruned_are_known(self, stores: Stores) -> None:
        store = await stores.open()
        journals = _journal_keys(3 * self._removal_count())
        await _use_up(store, journals)
        for again in (store, await stores.open()):
            for journal in journals[-self._removal_count() :]:
                assert await again.pruned_through(journal) == 0
                assert again is store or again.may_have(journal)
                with pytest.raises(RecordsPrunedError):
                    await again.read(journal, 0)
        errors = await _in_turn(
            [
                outcome(again.append(pruned_journal, [record(0)]))
                for pruned_journal in journals[-self._removal_count() :]
            ]
        )
        assert {type(error) for error in errors} == {RecordsPrunedError}

    @case
    async def test_journals_with_records_are_never_forgotten(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(0), record(1, 1)])
        await store.prune(JOURNAL, 0)
        await store.append(OTHER, [record(0, 2)])
        await _use_up(store, _journal_keys(3 * self._removal_count()))
        for again in (store, await stores.open()):
            assert indexes(await again.scan(JOURNAL)) == [1]
            assert indexes(await again.scan(OTHER)) == [2]
            with pytest.raises(RecordsPrunedError):
                await again.read(JOURNAL, 0)

    @case
    async def test_a_journal_that_is_used_again_is_not_forgotten(self, stores: Stores) -> None:
        store = await stores.open()
        await _use_up(store, [JOURNAL])
        await store.append(JOURNAL, [record(1, 1)])
        await _use_up(store, _journal_keys(3 * self._removal_count()))
        for again in (store, await stores.open()):
            assert await again.pruned_through(JOURNAL) == 0
            assert indexes(await again.scan(JOURNAL, 1)) == [1]

    @case
    async def test_the_last_time_counts_that_a_journal_was_pruned(self, stores: Stores) -> None:
        store = await stores.open()
        await _use_up(store, [JOURNAL])
        for turn in range(3):
            await _use_up(store, _journal_keys(self._removal_count() - 1, f"i{turn}_"))
            await store.append(JOURNAL, [record(turn + 1)])
            await store.prune(JOURNAL, turn + 1)
            assert await store.pruned_through(JOURNAL) == turn + 1
        await _use_up(store, _journal_keys(self._removal_count() - 1, "s"))
        assert await (await stores.open()).pruned_through(JOURNAL) == 3

    @case
    async def test_the_store_does_not_grow_with_journals_that_were_pruned(self, stores: Stores) -> None:
        if self.removals is None:
            return  # The store may remember all of them.
        store = await stores.open()
        journals = _journal_keys(6 * self.removals + 2 * AT_ONCE)
        await _use_up(store, journals)
        bound = 2 * self.removals + 2 * AT_ONCE
        for again in (store, await stores.open()):
            assert (await again.stats()).journals <= bound
            assert len(await again.journals(limit=len(journals))) <= bound
        oldest = journals[0]
        assert await again.pruned_through(oldest) == NOTHING_PRUNED
        assert await again.scan(oldest, 0) == []
        assert not again.may_have(oldest)
        await again.append(oldest, [record(1, 7)])
        assert indexes(await (await stores.open()).scan(oldest, 1)) == [7]

    @case
    async def test_whatever_is_appended_and_pruned(self, stores: Stores) -> None:
        for seed in range(3):
            await self._at_random(stores, random.Random(seed), f"job-{seed}")

    async def _at_random(self, stores: Stores, chance: random.Random, job: str) -> None:
        """Compare the store with a model in memory, after many random operations, a few at a time."""
        store = await stores.open()
        journals = [JournalKey(job, f"i{index}") for index in range(max(4, self._removal_count() // 2))]
        runs: dict[JournalKey, list[int]] = {journal: [] for journal in journals}
        pruned = dict.fromkeys(journals, NOTHING_PRUNED)
        for _ in range(12):
            calls: list[Coroutine[Any, Any, Any]] = []
            refused: list[bool] = []
            for _ in range(20):
                journal = chance.choice(journals)
                seq = max([*runs[journal], pruned[journal]]) + chance.choice((-1, 0, 1, 1, 2))
                if chance.random() < 0.4:
                    calls.append(outcome(store.prune(journal, seq)))
                    refused.append(False)
                    if runs[journal] or pruned[journal] >= 0:
                        pruned[journal] = max(seq, pruned[journal])
                    runs[journal] = [run_seq for run_seq in runs[journal] if run_seq > pruned[journal]]
                elif seq >= 0:
                    calls.append(outcome(store.append(journal, [record(seq, seq)])))
                    refused.append(seq <= pruned[journal])
                    if not refused[-1]:
                        runs[journal].append(seq)
            errors = await asyncio.gather(*calls)
            assert [isinstance(error, RecordsPrunedError) for error in errors] == refused
            if chance.random() < 0.3:
                store = await stores.open()
            for journal in journals:
                assert indexes(await store.scan(journal)) == sorted(runs[journal])
                assert await store.pruned_through(journal) == pruned[journal]


PAGES = 1200
"""More than a listing returns at a time."""


async def _has_no_trace(store: ActionStateStore, journal: JournalKey) -> bool:
    """Return True if the store neither lists the journal nor has records or a removal of it."""
    return (
        await store.scan(journal) == []
        and await store.read(journal, 0) == []
        and await store.pruned_through(journal) == NOTHING_PRUNED
        and journal not in [info.journal for info in await store.journals(limit=2 * PAGES)]
    )


class ForgettingCases(SuiteBase):
    """Cases: the journals of a job are deleted, and only these."""

    @case
    async def test_a_forgotten_journal_is_unknown(self, stores: Stores) -> None:
        store = await stores.open()
        for journal in (JOURNAL, OTHER):
            for seq in range(4):
                await store.append(journal, [record(seq)])
        await store.prune(OTHER, 2)
        await store.forget("job")
        for again in (store, await stores.open(), await stores.open_for(None)):
            assert await _has_no_trace(again, JOURNAL)
            assert await _has_no_trace(again, OTHER)
            assert (await again.stats()).records == 0

    @case
    async def test_journals_of_other_jobs_are_not_forgotten(self, stores: Stores) -> None:
        other_journals = [
            JournalKey(name, "skey") for name in ("job-2", "jo", "JOB", "", "job/a", "j_b", "job\x00")
        ]
        store = await stores.open()
        for journal in (JOURNAL, *other_journals):
            await store.append(journal, [record(0), record(1)])
            await store.prune(journal, 0)
        await store.forget("job")
        for again in (store, await stores.open()):
            assert await _has_no_trace(again, JOURNAL)
            for journal in other_journals:
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
            assert await _has_no_trace(store, JOURNAL)
            await store.append(JOURNAL, [record(attempt)])
            await store.prune(JOURNAL, attempt)
            await store.append(JOURNAL, [record(attempt + 1)])
            await store.forget("job")
        assert await _has_no_trace(await stores.open(), JOURNAL)

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
        journals = [JournalKey("job", f"s{number}") for number in range(PAGES)]
        await asyncio.gather(*(store.append(journal, [record()]) for journal in journals))
        await store.append(JournalKey("job-2", "skey"), [record()])
        await store.forget("job")
        again = await stores.open()
        assert [info.journal.journal_id for info in await again.journals(limit=2 * PAGES)] == ["job-2"]

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
