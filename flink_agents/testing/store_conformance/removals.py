"""Cases about fully pruned journals: the ones that a store remembers, and the ones that it forgets."""

# ruff: noqa: D102 - the names of cases say what they are about.

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

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

AT_ONCE = 10
MANY = 100
"""Number of journals that are pruned if the suite sets no bound."""


def _names(number: int, prefix: str = "i") -> list[JournalKey]:
    return [JournalKey("job", f"{prefix}{each}") for each in range(number)]


async def _in_turn(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return the results of some calls, a few of which are in flight at a time."""
    found: list[Any] = []
    for start in range(0, len(calls), AT_ONCE):
        found += await asyncio.gather(*calls[start : start + AT_ONCE])
    return found


async def _use_up(store: ActionStateStore, journals: Sequence[JournalKey]) -> None:
    """Append to journals, and prune everything again."""
    await _in_turn([store.append(journal, [record(0)]) for journal in journals])
    await _in_turn([store.prune(journal, 0) for journal in journals])


class RemovalCases(SuiteBase):
    """Cases about fully pruned journals."""

    def _some(self) -> int:
        return MANY if self.removals is None else self.removals

    @case
    async def test_the_last_journals_that_were_pruned_are_known(self, stores: Stores) -> None:
        store = await stores.open()
        journals = _names(3 * self._some())
        await _use_up(store, journals)
        for again in (store, await stores.open()):
            for journal in journals[-self._some() :]:
                assert await again.pruned_through(journal) == 0
                assert again is store or again.may_have(journal)
                with pytest.raises(RecordsPrunedError):
                    await again.read(journal, 0)
        errors = await _in_turn(
            [outcome(again.append(one, [record(0)])) for one in journals[-self._some() :]]
        )
        assert {type(error) for error in errors} == {RecordsPrunedError}

    @case
    async def test_journals_with_records_are_never_forgotten(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(0), record(1, 1)])
        await store.prune(JOURNAL, 0)
        await store.append(OTHER, [record(0, 2)])
        await _use_up(store, _names(3 * self._some()))
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
        await _use_up(store, _names(3 * self._some()))
        for again in (store, await stores.open()):
            assert await again.pruned_through(JOURNAL) == 0
            assert indexes(await again.scan(JOURNAL, 1)) == [1]

    @case
    async def test_the_last_time_counts_that_a_journal_was_pruned(self, stores: Stores) -> None:
        store = await stores.open()
        await _use_up(store, [JOURNAL])
        for turn in range(3):
            await _use_up(store, _names(self._some() - 1, f"i{turn}_"))
            await store.append(JOURNAL, [record(turn + 1)])
            await store.prune(JOURNAL, turn + 1)
            assert await store.pruned_through(JOURNAL) == turn + 1
        await _use_up(store, _names(self._some() - 1, "s"))
        assert await (await stores.open()).pruned_through(JOURNAL) == 3

    @case
    async def test_the_store_does_not_grow_with_journals_that_were_pruned(self, stores: Stores) -> None:
        if self.removals is None:
            return  # The store may remember all of them.
        store = await stores.open()
        journals = _names(6 * self.removals + 2 * AT_ONCE)
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
        """Compare the store with a model, with many operations in flight at a time."""
        store = await stores.open()
        journals = [JournalKey(job, f"i{each}") for each in range(max(4, self._some() // 2))]
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
                    runs[journal] = [one for one in runs[journal] if one > pruned[journal]]
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
