"""The store ``sqlite`` writes: in few transactions, and when the disk does not obey."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlite_tools import JOURNAL, direct, opened, record, run, until, wrap, writer_of

from flink_agents.api.action_state import (
    Record,
    RecordKind,
)
from flink_agents.api.errors import AppendOutcomeUnknownError, StoreClosedError, StoreUnavailableError
from flink_agents.connectors.action_state.sqlite import store as sqlite_module, writer as sqlite_writer
from flink_agents.connectors.action_state.sqlite.writer import SQLiteWriter
from flink_agents.sqlite_files import is_busy


def commits_of(file: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> int:
    """Number of transactions of 100 appends that wait at the same time."""
    commits: list[None] = []
    commit = SQLiteWriter._commit_transaction

    def counting(self: SQLiteWriter) -> None:
        commits.append(None)
        commit(self)

    monkeypatch.setattr(SQLiteWriter, "_commit_transaction", counting)

    async def body() -> None:
        store = await opened(file)
        with writer_of(store)._lock:
            appending = [
                asyncio.ensure_future(store.append(JOURNAL, [record(0, n, data)])) for n in range(100)
            ]
            await asyncio.sleep(0)
        await asyncio.gather(*appending)
        assert [stored_record.index for stored_record in await store.read(JOURNAL, 0)] == list(range(100))
        await store.close()

    run(body)
    return len(commits)


def test_appends_that_wait_become_one_transaction(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commits_of(file, monkeypatch, b"") <= 2


@pytest.mark.parametrize(("limit", "value"), [("writes", 10), ("size", 1000)])
def test_a_transaction_is_bounded(
    file: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(sqlite_writer, "LIMITS", sqlite_writer.LIMITS._replace(**{limit: value}))
    assert commits_of(file, monkeypatch, b"x" * 100) >= 10


@pytest.mark.parametrize("stored", [True, False])
def test_a_commit_of_unknown_outcome_ends_the_store(file: Path, stored: bool) -> None:
    def fail(statement: str, execute: Callable[[], Any]) -> Any:
        if statement != "COMMIT":
            return execute()
        if stored:
            execute()
        raise sqlite3.OperationalError("disk I/O error")

    async def body() -> None:
        store = await opened(file)
        await store.append(JOURNAL, [record(0)])
        wrap(store, fail)
        with writer_of(store)._lock:
            appending = [asyncio.ensure_future(store.append(JOURNAL, [record(1, n)])) for n in range(3)]
            await asyncio.sleep(0)
        errors = await asyncio.gather(*appending, return_exceptions=True)
        unknown = [error for error in errors if isinstance(error, AppendOutcomeUnknownError)]
        assert unknown and len(set(map(id, unknown))) == len(unknown)
        assert {type(error) for error in errors} <= {AppendOutcomeUnknownError, StoreClosedError}
        for _ in range(2):
            with pytest.raises(StoreClosedError, match="unknown outcome"):
                await store.append(JOURNAL, [record(2)])
        await store.close()
        again = await opened(file)
        indices = [stored_record.index for stored_record in await again.read(JOURNAL, 1)]
        assert indices == [n for n, error in enumerate(errors) if stored and error in unknown]
        assert await again.read(JOURNAL, 2) == []
        await again.close()

    run(body)


def test_a_full_disk_refuses_what_does_not_fit_and_stores_the_rest(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        connection = writer_of(store)._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 20}")
        with writer_of(store)._lock:
            sizes = [10, 10, 2**20, 10]
            appending = [
                asyncio.ensure_future(store.append(JOURNAL, [record(0, n), record(0, n, b"x" * size)]))
                for n, size in enumerate(sizes)
            ]
            await asyncio.sleep(0)
        errors = await asyncio.gather(*appending, return_exceptions=True)
        assert [type(error) for error in errors] == [
            type(None),
            type(None),
            StoreUnavailableError,
            type(None),
        ]
        assert "full" in str(errors[2])
        assert [stored_record.index for stored_record in await store.read(JOURNAL, 0)] == [0, 0, 1, 1, 3, 3]
        await store.close()

    run(body)


def test_one_bad_append_does_no_harm_to_the_others(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        bad: Any = 0.5j  # no number that SQLite can hold
        with writer_of(store)._lock:
            good = [asyncio.ensure_future(store.append(JOURNAL, [record(0, n)])) for n in range(3)]
            wrong = Record(RecordKind.CALL, 0, bad, 0, b"")
            appending = asyncio.ensure_future(store.append(JOURNAL, [record(0, 7), wrong]))
            good += [asyncio.ensure_future(store.append(JOURNAL, [record(0, n)])) for n in range(3, 5)]
            await asyncio.sleep(0)
        await asyncio.gather(*good)
        with pytest.raises(StoreUnavailableError, match="AttributeError"):
            await appending
        assert [stored_record.index for stored_record in await store.read(JOURNAL, 0)] == [0, 1, 2, 3, 4]
        await store.close()

    run(body)


def test_an_append_waits_for_another_process_that_writes(file: Path) -> None:
    refused = threading.Event()

    def note(statement: str, execute: Callable[[], Any]) -> Any:
        try:
            return execute()
        except sqlite3.OperationalError:
            refused.set()
            raise

    async def body() -> None:
        store = await opened(file)
        wrap(store, note)
        other_connection = direct(file)
        other_connection.execute("BEGIN IMMEDIATE")
        appending = asyncio.ensure_future(store.append(JOURNAL, [record()]))
        await until(refused.is_set)
        assert not appending.done()
        assert await store.read(JOURNAL, 0) == []
        other_connection.execute("ROLLBACK")
        await appending
        assert len(await store.read(JOURNAL, 0)) == 1
        await store.close()

    run(body)


def test_an_append_does_not_wait_for_ever(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, busy_seconds=0.1)
        other_connection = direct(file)
        other_connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            await store.append(JOURNAL, [record(0)])
        other_connection.execute("ROLLBACK")
        await store.append(JOURNAL, [record(1)])
        assert [stored_record.seq for stored_record in await store.scan(JOURNAL)] == [1]
        await store.close()

    run(body)


def test_where_nothing_can_begin_it_is_tried_once_for_all(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[None] = []

    def locked(*_: Any) -> None:
        attempts.append(None)
        raise sqlite3.OperationalError("database is locked")

    async def body() -> None:
        store = await opened(file)
        other_connection = direct(file)
        other_connection.execute("BEGIN IMMEDIATE")
        with writer_of(store)._lock:
            appending = [asyncio.ensure_future(store.append(JOURNAL, [record(0, n)])) for n in range(20)]
            await asyncio.sleep(0)
            monkeypatch.setattr(sqlite_writer, "begin_transaction", locked)
        errors = await asyncio.gather(*appending, return_exceptions=True)
        monkeypatch.undo()
        other_connection.execute("ROLLBACK")
        assert {type(error) for error in errors} == {StoreUnavailableError}
        assert len(attempts) <= 2
        assert await store.read(JOURNAL, 0) == []
        await store.close()

    run(body)


def test_a_file_that_was_taken_away_acknowledges_nothing(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        await store.append(JOURNAL, [record(0)])
        file.rename(file.with_name("elsewhere.db"))
        with pytest.raises(StoreUnavailableError, match="removed or replaced"):
            await store.append(JOURNAL, [record(1)])
        file.with_name("elsewhere.db").rename(file)
        await store.append(JOURNAL, [record(2)])
        assert [stored_record.seq for stored_record in await store.scan(JOURNAL)] == [0, 2]
        await store.close()

    run(body)


def test_a_disk_that_does_not_answer_does_not_hold_up_the_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "CLOSE_SECONDS", 0.05)
    answer = threading.Event()

    def hang(statement: str, execute: Callable[[], Any]) -> Any:
        if statement == "COMMIT":
            answer.wait()
        return execute()

    async def body() -> None:
        store = await opened(file)
        wrap(store, hang)
        appending = asyncio.ensure_future(store.append(JOURNAL, [record()]))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(AppendOutcomeUnknownError, match="did not answer"):
            await appending
        answer.set()
        await until(lambda: not writer_of(store)._thread.is_alive())

    run(body)


def test_what_waits_when_a_store_is_killed_is_not_stored(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        with writer_of(store)._lock:
            held = asyncio.ensure_future(store.append(JOURNAL, [record(0)]))
            await asyncio.sleep(0)
            await until(lambda: writer_of(store)._queue.empty())
            remaining_appends = [asyncio.ensure_future(store.append(JOURNAL, [record(n)])) for n in (1, 2)]
            await asyncio.sleep(0)
            store.kill()
        await held
        errors = await asyncio.gather(*remaining_appends, return_exceptions=True)
        assert [type(error) for error in errors] == [StoreClosedError, StoreClosedError]
        again = await opened(file)
        assert [stored_record.seq for stored_record in await again.scan(JOURNAL)] == [0]
        await again.close()

    run(body)


def test_a_writer_that_breaks_leaves_nobody_waiting(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks(BaseException):
        pass

    def broken(*_: Any) -> None:
        raise Breaks

    async def body() -> None:
        store = await opened(file)
        monkeypatch.setattr(SQLiteWriter, "_write_batch", broken)
        with pytest.raises(AppendOutcomeUnknownError):
            await store.append(JOURNAL, [record()])
        with pytest.raises(StoreClosedError, match="thread"):
            await store.append(JOURNAL, [record()])
        await store.close()

    run(body)


def test_a_busy_database_is_told_from_its_text_where_there_is_no_code() -> None:
    assert is_busy(sqlite3.OperationalError("database is locked"))
    assert is_busy(sqlite3.OperationalError("database table is locked"))
    assert not is_busy(sqlite3.OperationalError("disk I/O error"))
    assert not is_busy(sqlite3.DatabaseError("database disk image is malformed"))
    assert not is_busy(OSError("locked"))
