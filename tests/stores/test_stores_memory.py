"""The store ``memory``: what shares its records, and use by several threads."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from flink_agents.api.action_state import (
    JournalKey,
    Owner,
    Record,
    RecordKind,
)
from flink_agents.api.errors import RecordTooLargeError, StoreMismatchError
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore

JOURNAL = JournalKey("job", "skey")
RECORD = Record(RecordKind.CALL, 0, "step", 0, b"data")


async def opened(store: MemoryStore, job_id: str = "job-1", subtask: int = 0) -> MemoryStore:
    await store.open(Owner.create(job_id, "orders/agent", subtask, 4))
    return store


def memory(place: str) -> MemoryStore:
    store = open_store("memory", {"place": place})
    assert isinstance(store, MemoryStore)
    return store


def test_stores_of_one_place_share_their_records() -> None:
    async def body() -> None:
        first = await opened(memory("one"))
        await first.append(JOURNAL, [RECORD])
        assert await (await opened(memory("one"))).scan(JOURNAL) == [RECORD]
        assert await (await opened(memory("two"))).scan(JOURNAL) == []
        assert await (await opened(MemoryStore())).scan(JOURNAL) == []

    asyncio.run(body())


def test_a_marker_of_another_place_is_refused() -> None:
    async def body() -> None:
        first, second = await opened(MemoryStore()), await opened(MemoryStore())
        with pytest.raises(StoreMismatchError):
            await second.rebuild(JOURNAL, first.recovery_marker(JOURNAL))

    asyncio.run(body())


def test_a_store_that_nobody_holds_any_more_has_no_lease() -> None:
    async def body() -> None:
        place = MemoryPlace()
        first = await opened(MemoryStore(place))
        await first.append(JOURNAL, [RECORD])
        del first
        gc.collect()
        second = await opened(MemoryStore(place), "job-2")
        assert await second.scan(JOURNAL) == [RECORD]

    asyncio.run(body())


def test_the_limit_can_be_set() -> None:
    async def body() -> None:
        store = await opened(MemoryStore(max_record_bytes=3))
        assert store.max_record_bytes == 3
        with pytest.raises(RecordTooLargeError):
            await store.append(JOURNAL, [RECORD])

    asyncio.run(body())


def test_subtasks_append_in_threads_of_their_own() -> None:
    place = MemoryPlace()

    async def subtask(number: int) -> None:
        store = await opened(MemoryStore(place), subtask=number)
        for _ in range(500):
            await store.append(JOURNAL, [RECORD])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: asyncio.run(subtask(number)), range(4)))

    async def count() -> int:
        return len(await (await opened(MemoryStore(place))).scan(JOURNAL))

    assert asyncio.run(count()) == 2000
