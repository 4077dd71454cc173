"""Cases about a store's life: reopening, cancelled calls, closing, markers and listings."""

# ruff: noqa: D102 - the names of cases describe them.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from flink_agents.api.action_state import (
    MAX_MARKER_BYTES,
    ActionStateStore,
    JournalInfo,
    JournalKey,
    Owner,
    encode_text,
)
from flink_agents.api.errors import StoreClosedError
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


async def _refuses_all(store: ActionStateStore) -> None:
    """Check that each use of ``store`` raises that it is not open."""
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: store.append(JOURNAL, [record()]),
        lambda: store.append(JOURNAL, []),
        lambda: store.read(JOURNAL, 0),
        lambda: store.scan(JOURNAL),
        lambda: store.prune(JOURNAL, 0),
        lambda: store.forget("job"),
        lambda: store.pruned_through(JOURNAL),
        lambda: store.rebuild(),
        lambda: store.journals(),
        lambda: store.stats(),
        lambda: store.remember_plan("plan", b"data"),
        lambda: store.recall_plan("plan"),
    ]
    for use in uses:
        with pytest.raises(StoreClosedError):
            await use()
    sync_uses: list[Callable[[], object]] = [
        lambda: store.store_id,
        lambda: store.may_have(JOURNAL),
        lambda: store.recovery_marker(JOURNAL),
    ]
    for ask in sync_uses:
        with pytest.raises(StoreClosedError):
            ask()


class LifecycleCases(SuiteBase):
    """Cases: a store is opened, closed, cancelled and listed, and its markers find all records."""

    @case
    async def test_what_is_kept_of_a_plan_stays(self, stores: Stores) -> None:
        first = await stores.open()
        assert await first.recall_plan("one") is None
        await first.remember_plan("one", b"data")
        await first.remember_plan("one", b"other data")
        await first.remember_plan("two", bytes(range(256)) * 100)
        for again in (first, await stores.open(), await stores.open(group="another/agent")):
            assert await again.recall_plan("one") == b"data"
            assert await again.recall_plan("two") == bytes(range(256)) * 100
            assert await again.recall_plan("three") is None

    @case
    async def test_what_was_appended_is_there_when_the_store_is_opened_again(self, stores: Stores) -> None:
        for attempt in range(3):
            store = await stores.open()
            assert indexes(await store.scan(JOURNAL)) == list(range(attempt))
            await store.append(JOURNAL, [record(attempt, attempt)])
            await store.close()

    @case
    async def test_acknowledged_records_survive_a_killed_process(self, stores: Stores) -> None:
        for attempt in range(3):
            store = await stores.open()
            assert indexes(await store.scan(JOURNAL)) == list(range(attempt))
            await store.append(JOURNAL, [record(attempt, attempt)])
            await self.kill(store)

    @case
    async def test_a_store_keeps_its_id(self, stores: Stores) -> None:
        first = await stores.open()
        second = await stores.open()
        assert str(UUID(first.store_id)) == first.store_id == second.store_id
        await second.close()
        assert (await stores.open_for(None)).store_id == first.store_id

    @case
    async def test_before_it_is_open_a_store_refuses_all(self, stores: Stores) -> None:
        await _refuses_all(stores.make())

    @case
    async def test_after_it_was_closed_a_store_refuses_all(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record()])
        await store.close()
        await _refuses_all(store)
        assert len(await (await stores.open()).scan(JOURNAL)) == 1

    @case
    async def test_a_store_is_closed_twice(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record()])
        await store.close()
        await store.close()
        never_opened = stores.make()
        await never_opened.close()

    @case
    async def test_a_store_is_closed_with_appends_on_their_way(self, stores: Stores) -> None:
        store = await stores.open()
        appending = [asyncio.ensure_future(outcome(store.append(JOURNAL, [record(0, n)]))) for n in range(50)]
        await asyncio.sleep(0)
        late = [asyncio.ensure_future(outcome(store.append(OTHER, [record(0, n)]))) for n in range(50)]
        await store.close()
        errors = await asyncio.gather(*appending)
        late_errors = await asyncio.gather(*late)
        again = await stores.open()
        for journal, journal_errors in ((JOURNAL, errors), (OTHER, late_errors)):
            assert {type(error) for error in journal_errors} <= {type(None), StoreClosedError}
            stored = indexes(await again.read(journal, 0))
            assert stored == [n for n, error in enumerate(journal_errors) if error is None]

    @case
    async def test_a_cancelled_append_is_stored_once(self, stores: Stores) -> None:
        store = await stores.open()
        for n in range(20):
            appending = asyncio.ensure_future(store.append(JOURNAL, [record(n, 1), record(n, 2)]))
            await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait({appending})
            await store.append(JOURNAL, [record(n, 3)])
            assert indexes(await store.read(JOURNAL, n)) == [1, 2, 3]

    @case
    async def test_a_cancelled_append_does_no_harm_to_others(self, stores: Stores) -> None:
        store = await stores.open()
        appending = [asyncio.ensure_future(store.append(JOURNAL, [record(0, n)])) for n in range(30)]
        await asyncio.sleep(0)
        for task in appending[::3]:
            task.cancel()
        await asyncio.wait(appending)
        assert all(task.exception() is None for task in appending if not task.cancelled())
        await store.append(OTHER, [record()])
        assert indexes(await store.read(JOURNAL, 0)) == list(range(30))

    @case
    async def test_what_was_there_before_may_have_records(self, stores: Stores) -> None:
        journals = [JournalKey("job", text) for text in ("s1", "i1", "", "\x00", "\udcff", "é", "x" * 10_000)]
        first = await stores.open()
        for journal in journals:
            await first.append(journal, [record()])
        second = await stores.open()
        assert [second.may_have(journal) for journal in journals] == [True] * len(journals)
        assert {type(second.may_have(journal)) for journal in journals} == {bool}

    @case
    async def test_what_was_pruned_may_have_records(self, stores: Stores) -> None:
        first = await stores.open()
        await first.append(JOURNAL, [record(0)])
        await first.prune(JOURNAL, 0)
        second = await stores.open()
        assert second.may_have(JOURNAL)

    @case
    async def test_a_marker_is_small(self, stores: Stores) -> None:
        store = await stores.open()
        for seq in range(20):
            marker = store.recovery_marker(JOURNAL)
            assert isinstance(marker, bytes)
            assert len(marker) <= MAX_MARKER_BYTES
            await store.append(JOURNAL, [record(seq)])

    @case
    async def test_what_was_recorded_after_a_marker_is_found(self, stores: Stores) -> None:
        first = await stores.open()
        await first.append(OTHER, [record(0)])
        marker = first.recovery_marker(JOURNAL)
        await first.append(JOURNAL, [record(0, 1)])
        later = first.recovery_marker(JOURNAL)
        await first.append(JOURNAL, [record(1, 2)])
        for markers in ([marker], [later, marker], [marker, later], [later, None]):
            again = stores.make()
            await again.open(Owner.create("job-1", "orders/agent"))
            for restored_marker in markers:
                await again.rebuild(JOURNAL, restored_marker)
                assert again.may_have(JOURNAL, restored_marker)
                assert indexes(await again.scan(JOURNAL, 1)) == [2]
            assert indexes(await again.scan(JOURNAL)) == [1, 2]
            await again.close()

    @case
    async def test_a_marker_behind_all_records_finds_nothing_or_more(self, stores: Stores) -> None:
        first = await stores.open()
        await first.append(JOURNAL, [record(0, 1)])
        marker = first.recovery_marker(JOURNAL)
        again = stores.make()
        await again.open(Owner.create("job-1", "orders/agent"))
        await again.rebuild(JOURNAL, marker, pending=False)
        await again.append(JOURNAL, [record(1, 2)])
        assert indexes(await again.scan(JOURNAL, 1)) == [2]
        await again.close()

    @case
    async def test_what_a_marker_of_another_subtask_leaves_out(self, stores: Stores) -> None:
        """A marker of another subtask hides no records of a key that is not in state."""
        first = await stores.open(subtask=0, parallelism=2)
        second_store = await stores.open(subtask=1, parallelism=2)
        await second_store.append(JOURNAL, [record(0, 1)])
        marker = first.recovery_marker(OTHER)
        again = stores.make()
        await again.open(Owner.create("job-1", "orders/agent", 1, 2))
        await again.rebuild(OTHER, marker, pending=False)
        await again.rebuild(JOURNAL, None, pending=False)
        assert again.may_have(JOURNAL, None, pending=False)
        assert indexes(await again.scan(JOURNAL)) == [1]
        await again.close()

    @case
    async def test_without_markers_all_is_found(self, stores: Stores) -> None:
        first = await stores.open()
        for n in range(5):
            await first.append(JOURNAL, [record(n, n)])
        assert indexes(await (await stores.open()).scan(JOURNAL)) == [0, 1, 2, 3, 4]

    @case
    async def test_journals_are_described(self, stores: Stores) -> None:
        store = await stores.open()
        await store.append(JOURNAL, [record(2, data=b"123"), record(2, data=b""), record(5, data=b"4567")])
        await store.append(OTHER, [record(0)])
        await store.append(OTHER, [record(1, data=b"1")])
        await store.prune(OTHER, 0)
        assert await store.journals() == [
            JournalInfo(JOURNAL, 2, 3, 7, 2, 5, -1),
            JournalInfo(OTHER, 1, 1, 1, 1, 1, 0),
        ]
        await store.prune(OTHER, 1)
        assert (await store.journals())[1] == JournalInfo(OTHER, 0, 0, 0, None, None, 1)

    @case
    async def test_journals_come_page_by_page(self, stores: Stores) -> None:
        store = await stores.open()
        names = [("job", "b"), ("job", "a"), ("job-2", "a"), ("", "z"), ("job", "é"), ("job", "\U0001f600")]
        names += [("job", "\uffff"), ("job", ""), ("job", "a\x00")]
        for name in names:
            await store.append(JournalKey(*name), [record()])
        expected = sorted(names, key=lambda name: (encode_text(name[0]), encode_text(name[1])))
        assert [info.journal for info in await store.journals()] == expected
        journals: list[JournalKey] = []
        while page := await store.journals(after=journals[-1] if journals else None, limit=2):
            assert len(page) <= 2
            journals += [info.journal for info in page]
        assert journals == expected

    @case
    async def test_journals_of_one_job(self, stores: Stores) -> None:
        store = await stores.open()
        for name in (("job", "a"), ("job", "b"), ("job-2", "a"), ("jo", "b")):
            await store.append(JournalKey(*name), [record()])
        assert [info.journal for info in await store.journals("job")] == [("job", "a"), ("job", "b")]
        after = await store.journals("job", after=JournalKey("job", "a"))
        assert [info.journal for info in after] == [("job", "b")]
        assert await store.journals("j") == []

    @case
    async def test_totals(self, stores: Stores) -> None:
        store = await stores.open()
        empty = await store.stats()
        assert (empty.journals, empty.records, empty.data_bytes) == (0, 0, 0)
        await store.append(JOURNAL, [record(0, data=b"123"), record(1, data=b"45")])
        await store.append(OTHER, [record(0, data=b"6")])
        await store.prune(JOURNAL, 0)
        stats = await store.stats()
        assert (stats.journals, stats.records, stats.data_bytes) == (2, 2, 3)
        assert stats.stored_bytes is None or stats.stored_bytes > 0
