"""What a writer of the store ``sqlite`` remembers of the file holds until another connection changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_tools import JOURNAL, direct, opened, record, run, wrap, writer_of

from flink_agents.api.action_state import JournalKey, Owner
from flink_agents.api.errors import FencedOwnerError, RecordsPrunedError
from flink_agents.connectors.action_state.sqlite import rows as sqlite_rows
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore


async def opened_with_row(file: Path) -> SQLiteStore:
    """Return a store whose writer remembers the row of the journal, as from its second transaction."""
    store = await opened(file)
    for index in range(2):
        await store.append(JOURNAL, [record(0, index)])
    assert JOURNAL in writer_of(store)._rows._journals
    return store


async def prune_elsewhere(file: Path) -> None:
    store = SQLiteStore(file)
    await store.open(None)
    await store.prune(JOURNAL, 1)
    await store.close()


async def erase_elsewhere(file: Path) -> None:
    connection = direct(file)
    connection.execute("DELETE FROM records")
    connection.execute("DELETE FROM journals")
    # The row number of the erased journal belongs to another one now.
    connection.execute("INSERT INTO journals VALUES (1, CAST('other' AS BLOB), CAST('key' AS BLOB), -1)")
    connection.close()


async def append_elsewhere(file: Path) -> None:
    other = await opened(file, subtask=1)
    await other.append(JournalKey("job", "other"), [record(0)])
    await other.close()


async def take_over(file: Path) -> None:
    store = SQLiteStore(file)
    await store.open(Owner.create("job-1", "orders/agent", 0, 2))
    await store.close()


def test_a_run_that_was_pruned_elsewhere_takes_no_record(file: Path) -> None:
    async def body() -> None:
        store = await opened_with_row(file)
        await prune_elsewhere(file)
        with pytest.raises(RecordsPrunedError):
            await store.append(JOURNAL, [record(1)])
        await store.append(JOURNAL, [record(2)])
        await store.close()

    run(body)


def test_a_journal_that_was_erased_elsewhere_gets_a_row_of_its_own(file: Path) -> None:
    async def body() -> None:
        store = await opened_with_row(file)
        await erase_elsewhere(file)
        await store.append(JOURNAL, [record(1)])
        assert await store.read(JOURNAL, 1) == [record(1)]
        assert not await store.read(JournalKey("other", "key"), 1)
        await store.close()

    run(body)


def test_positions_of_two_owners_count_each_others_appends(file: Path) -> None:
    async def body() -> None:
        store = await opened_with_row(file)
        first = store.position()
        await append_elsewhere(file)
        # This transaction appends nothing, and is the first to read the file again.
        await store.prune(JournalKey("job", "nothing"), 0)
        await store.append(JOURNAL, [record(1)])
        assert int.from_bytes(store.position(), "big") == int.from_bytes(first, "big") + 2
        await store.close()
        again = await opened(file)
        assert again.position() == store_position(4)
        await again.close()

    run(body)


def store_position(count: int) -> bytes:
    return count.to_bytes(8, "big")


@pytest.mark.parametrize("appends", [0, 1])
def test_an_owner_that_was_replaced_is_fenced_at_its_next_append(file: Path, appends: int) -> None:
    async def body() -> None:
        store = await opened(file)
        for seq in range(appends):
            await store.append(JOURNAL, [record(seq)])
        await take_over(file)
        with pytest.raises(FencedOwnerError):
            await store.append(JOURNAL, [record(5)])
        await store.close()

    run(body)


def test_rows_of_a_transaction_that_was_rolled_back_are_not_remembered(file: Path) -> None:
    async def body() -> None:
        store = await opened_with_row(file)
        new_journal = JournalKey("job", "new")
        fails = True

        def around(statement: str, execute: Callable[[], object]) -> object:
            if fails and statement.startswith("INSERT INTO records"):
                raise OSError("no")
            return execute()

        wrap(store, around)
        errors = await asyncio.gather(store.append(new_journal, [record(0)]), return_exceptions=True)
        assert errors[0] is not None
        fails = False
        await store.append(JournalKey("job", "second"), [record(0)])
        await store.append(new_journal, [record(1)])
        assert await store.read(new_journal, 1) == [record(1)]
        assert not await store.read(JournalKey("job", "second"), 1)
        await store.close()

    run(body)


def test_a_journal_that_expires_gets_a_new_row(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, removals=0)
        await store.append(JOURNAL, [record(0)])
        await store.prune(JOURNAL, 0)
        await store.append(JOURNAL, [record(1)])
        assert await store.read(JOURNAL, 1) == [record(1)]
        await store.close()

    run(body)


def test_a_writer_remembers_a_limited_number_of_rows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_rows, "CACHED_JOURNALS", 5)

    async def body() -> None:
        store = await opened(file)
        for number in range(20):
            await store.append(JournalKey("job", f"key{number}"), [record(0)])
            assert len(writer_of(store)._rows._journals) <= 6
        assert await store.read(JournalKey("job", "key0"), 0) == [record(0)]
        await store.close()

    run(body)
