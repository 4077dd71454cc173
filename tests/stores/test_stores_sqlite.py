"""The file of the store ``sqlite``: whose it is, how it is made, what it costs."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from sqlite_tools import JOURNAL, direct, opened, record, run, until, writer_of

from flink_agents.api.action_state import (
    JournalKey,
    Owner,
)
from flink_agents.api.errors import (
    JournalOutdatedError,
    StoreFormatError,
    StoreMismatchError,
    StoreUnavailableError,
)
from flink_agents.connectors.action_state.sqlite import (
    file as sqlite_file,
    reader as sqlite_reader,
    writer as sqlite_writer,
)
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore


@pytest.mark.parametrize(
    "content", [b"no database at all, but a text that somebody wrote\n" * 50, b"\x00" * 5000, b"x"]
)
def test_a_file_that_is_no_database(file: Path, content: bytes) -> None:
    file.write_bytes(content)

    async def body() -> None:
        with pytest.raises(StoreFormatError, match="store.db"):
            await opened(file)

    run(body)
    assert file.read_bytes() == content


def test_a_database_of_something_else_is_not_touched(file: Path) -> None:
    connection = direct(file)
    connection.execute("CREATE TABLE things (name TEXT)")
    connection.close()
    previous_content = file.read_bytes()

    async def body() -> None:
        with pytest.raises(StoreFormatError, match="another program"):
            await opened(file)

    run(body)
    assert file.read_bytes() == previous_content


def test_a_newer_version_is_refused(file: Path) -> None:
    async def body() -> None:
        await (await opened(file)).close()
        connection = direct(file)
        connection.execute(f"PRAGMA user_version={sqlite_file.VERSION + 1}")
        connection.close()
        with pytest.raises(StoreFormatError, match=r"(?s)newer.*version 2"):
            await opened(file)

    run(body)


def test_a_file_whose_rows_were_deleted(file: Path) -> None:
    async def body() -> None:
        await (await opened(file)).close()
        connection = direct(file)
        connection.execute("DELETE FROM meta")
        connection.close()
        with pytest.raises(StoreFormatError, match=r"(?s)store\.db.*rows were deleted"):
            await opened(file)

    run(body)


def test_a_file_that_was_damaged(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        for seq in range(50):
            await store.append(JOURNAL, [record(seq, data=b"x" * 5000)])
        await store.close()
        content = bytearray(file.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        file.write_bytes(content)
        with pytest.raises(StoreFormatError, match="corrupt"):
            again = await opened(file)
            await again.scan(JOURNAL)

    run(body)


def test_a_path_that_cannot_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")

    async def body() -> None:
        for path in (tmp_path, tmp_path / "text" / "store.db"):
            with pytest.raises(StoreUnavailableError):
                await opened(path)

    run(body)


def test_who_only_looks_makes_no_file(file: Path) -> None:
    async def body() -> None:
        with pytest.raises(StoreUnavailableError, match="does not exist"):
            await SQLiteStore(file).open(None)

    run(body)
    assert not file.exists()


def test_many_make_the_file_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        for attempt in range(5):
            stores = [SQLiteStore(tmp_path / f"deep/er/{attempt}.db") for _ in range(8)]
            await asyncio.gather(
                *(store.open(Owner.create("job", f"g{n}")) for n, store in enumerate(stores))
            )
            assert len({store.store_id for store in stores}) == 1
            await asyncio.gather(*(store.append(JOURNAL, [record()]) for store in stores))
            assert len(await stores[0].read(JOURNAL, 0)) == 8
            for store in stores:
                await store.close()

    run(body)


def test_each_commit_is_flushed_to_the_disk(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        connection = writer_of(store)._connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        await store.close()

    run(body)


def test_a_run_is_found_by_an_index(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        plan = direct(file).execute(
            "EXPLAIN QUERY PLAN SELECT kind, seq, step, idx, data FROM records "
            "WHERE journal = ? AND seq BETWEEN ? AND ? ORDER BY seq, id",
            (1, 2, 3),
        )
        steps = [row[3] for row in plan]
        assert len(steps) == 1 and "records_of_run (journal=? AND seq>? AND seq<?)" in steps[0]
        await store.close()

    run(body)


def test_a_store_of_another_file_does_not_know_the_marker(tmp_path: Path) -> None:
    async def body() -> None:
        first, second = await opened(tmp_path / "a.db"), await opened(tmp_path / "b.db")
        await first.rebuild(JOURNAL, first.recovery_marker(JOURNAL))
        with pytest.raises(StoreMismatchError, match=f"(?s){second.store_id}.*{first.store_id}"):
            await second.rebuild(JOURNAL, first.recovery_marker(JOURNAL))
        for store in (first, second):
            await store.close()

    run(body)


def test_an_older_copy_of_the_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    copied = tmp_path / "copied.db"

    async def body() -> None:
        store = await opened(file)
        await store.append(JOURNAL, [record(0)])
        previous_marker = store.recovery_marker(JOURNAL)
        await store.close()
        shutil.copy(file, copied)
        store = await opened(file)
        assert store.recovery_marker(JOURNAL) == previous_marker
        await store.append(JOURNAL, [record(1)])
        after = store.recovery_marker(JOURNAL)
        await store.rebuild(JOURNAL, after)
        await store.close()
        older = await opened(copied)
        await older.rebuild(JOURNAL, previous_marker)
        with pytest.raises(JournalOutdatedError, match="older copy"):
            await older.rebuild(JOURNAL, after)
        await older.close()

    run(body)


def test_freed_pages_are_given_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "FREE_PAGES", 100)

    def pages() -> int:
        with direct(file) as connection:
            count = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.close()
        return count

    async def body() -> None:
        store = await opened(file, lease_seconds=0.2)
        for seq in range(4):
            await store.append(JOURNAL, [record(seq, data=b"x" * 2**20)])
        full = pages()
        assert full > 1000
        await store.prune(JOURNAL, 3)
        await until(lambda: pages() < 200)
        await store.close()

    run(body)


def test_with_many_journals_each_may_have_records(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        store = await opened(file)
        for number in range(5):
            await store.append(JournalKey("job", f"i{number}"), [record()])
        again = await opened(file)
        assert not again.may_have(JOURNAL)
        connection = direct(file)
        assert sqlite_reader.known_journals(connection, 4) is None
        journals = sqlite_reader.known_journals(connection, 5)
        assert journals is not None and len(journals) == 5
        monkeypatch.setattr(sqlite_reader, "known_journals", lambda _: None)
        assert (await opened(file)).may_have(JOURNAL)

    run(body)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_new_files_are_for_their_owner_only(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "made" / "deep" / "store.db"
    previous_umask = os.umask(umask)
    try:

        async def body() -> None:
            store = await opened(file)
            await store.append(JOURNAL, [record()])
            modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
            assert modes == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)
            for directory in (file.parent, file.parent.parent):
                assert directory.stat().st_mode & 0o777 == 0o700
            await store.close()

        run(body)
    finally:
        os.umask(previous_umask)


def test_files_and_directories_that_are_there_keep_their_modes(file: Path) -> None:
    async def body() -> None:
        await (await opened(file)).close()
        file.chmod(0o640)
        file.parent.chmod(0o750)
        store = await opened(file)
        await store.append(JOURNAL, [record()])
        assert file.stat().st_mode & 0o777 == 0o640
        assert file.parent.stat().st_mode & 0o777 == 0o750
        await store.close()

    run(body)
