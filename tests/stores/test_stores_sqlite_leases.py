"""Leases of the store ``sqlite``, and its end."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from pathlib import Path

import pytest
from sqlite_tools import JOURNAL, direct, opened, record, run, until, writer_of

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import JobIdentifierInUseError, StoreClosedError
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore


def leases(file: Path) -> list[float]:
    connection = direct(file)
    lease_ends = [row[0] for row in connection.execute("SELECT lease_until FROM owners ORDER BY subtask")]
    connection.close()
    return lease_ends


def test_a_lease_is_renewed_with_and_without_appends(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, lease_seconds=0.4)
        for append in (False, True):
            previous_leases = leases(file)
            while leases(file) <= previous_leases:
                if append:
                    await store.append(JOURNAL, [record()])
                await asyncio.sleep(0.01)
        await store.close()
        assert leases(file) == []

    run(body)


def test_a_lease_is_not_renewed_by_each_append(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, lease_seconds=3600)
        previous_leases = leases(file)
        for _ in range(10):
            await store.append(JOURNAL, [record()])
        assert leases(file) == previous_leases
        await store.close()

    run(body)


def test_the_lease_of_a_job_that_died_long_ago_is_not_awaited(file: Path) -> None:
    async def body() -> None:
        first = await opened(file, lease_seconds=3600)
        first.kill()
        connection = direct(file)
        connection.execute("UPDATE owners SET lease_until = ?", (time.time() - 1,))
        connection.close()
        second = await opened(file, "job-2", lease_seconds=3600)
        await second.append(JOURNAL, [record()])
        await second.close()

    run(body)


def test_only_the_lease_of_a_job_that_is_known_to_be_dead_is_not_awaited(file: Path) -> None:
    async def body() -> None:
        first = await opened(file, lease_seconds=3600)
        first.kill()
        second = SQLiteStore(file, lease_seconds=0.3)
        await second.open(Owner.create("job-2", "orders/agent", ended_jobs=["job-1"]))
        await second.append(JOURNAL, [record()])
        third = SQLiteStore(file, lease_seconds=0.3)
        with pytest.raises(JobIdentifierInUseError):
            await third.open(Owner.create("job-3", "orders/agent", ended_jobs=["job-1"]))
        await second.close()

    run(body)


def test_a_clock_that_was_set_back_does_not_keep_a_lease(file: Path) -> None:
    async def body() -> None:
        first = await opened(file, lease_seconds=0.3)
        first.kill()
        connection = direct(file)
        connection.execute("UPDATE owners SET lease_until = ?", (time.time() + 10**6,))
        connection.close()
        second = await opened(file, "job-2", lease_seconds=0.3)
        await second.append(JOURNAL, [record()])
        await second.close()

    run(body)


def test_a_job_that_waits_does_not_take_a_lease_that_is_renewed(file: Path) -> None:
    async def body() -> None:
        first = await opened(file, lease_seconds=0.3)
        for _ in range(3):
            with pytest.raises(JobIdentifierInUseError):
                await opened(file, "job-2", lease_seconds=0.1)
        await first.append(JOURNAL, [record()])
        await first.close()

    run(body)


def test_a_store_that_nobody_holds_any_more_lets_its_lease_run_out(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, lease_seconds=0.3)
        thread, store_reference = writer_of(store)._thread, weakref.ref(store)
        del store
        gc.collect()
        assert store_reference() is None
        await until(lambda: not thread.is_alive())
        second = await opened(file, "job-2", lease_seconds=0.3)
        await second.close()

    run(body)


def test_a_store_is_opened_once(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        with pytest.raises(StoreClosedError, match="once"):
            await store.open(None)
        await store.append(JOURNAL, [record()])
        await store.close()
        with pytest.raises(StoreClosedError, match="once"):
            await store.open(None)

    run(body)
