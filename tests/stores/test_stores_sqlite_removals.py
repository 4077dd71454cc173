"""What the store ``sqlite`` remembers of journals whose records were pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlite_tools import JOURNAL, direct, opened, record, run, until, writer_of

from flink_agents.api.action_state import NOTHING_PRUNED, JournalKey, Owner
from flink_agents.api.errors import RecordsPrunedError
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.action_state.sqlite import removals as sqlite_removals
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore


def names(number: int, first: int = 0) -> list[JournalKey]:
    return [JournalKey("job", f"i{index:06}") for index in range(first, first + number)]


async def use_up(store: SQLiteStore, journals: Sequence[JournalKey]) -> None:
    await asyncio.gather(*(store.append(journal, [record(0)]) for journal in journals))
    await asyncio.gather(*(store.prune(journal, 0) for journal in journals))


def rows(file: Path, table: str) -> int:
    connection = direct(file)
    (number,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return number


def test_the_file_does_not_grow_with_keys_that_were_pruned(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, removals=500)
        for turn in range(8):
            await use_up(store, names(2000, turn * 2000))
            assert rows(file, "journals") <= 500 + 2000
        await store.close()
        assert file.stat().st_size < 8 * 2000 * 99, "as much as a row for each key would take"

    run(body)


def test_a_file_shrinks_to_a_lower_limit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_removals, "AT_ONCE", 10)

    async def body() -> None:
        store = await opened(file)
        for journal in names(60):
            await use_up(store, [journal])
        await store.append(JOURNAL, [record(0), record(1, 1)])
        await store.prune(JOURNAL, 0)
        await store.append(names(1)[0], [record(1, 1)])
        await store.close()
        again = await opened(file, removals=20, lease_seconds=0.2)
        assert again.may_have(names(60)[5])
        await again.append(JOURNAL, [record(2, 2)])
        await until(lambda: rows(file, "removals") == 20)
        assert rows(file, "journals") == 22
        for journal, through in ((JOURNAL, 0), (names(1)[0], 0), (names(60)[-1], 0)):
            assert await again.pruned_through(journal) == through
        assert await again.pruned_through(names(60)[5]) == NOTHING_PRUNED
        with pytest.raises(RecordsPrunedError):
            await again.scan(names(60)[-1], 0)
        await again.close()

    run(body)


def test_who_looks_at_a_file_can_prune(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        await store.append(JOURNAL, [record(0), record(1)])
        await store.close()
        looking = SQLiteStore(file)
        await looking.open(None)
        await looking.prune(JOURNAL, 1)
        assert await looking.pruned_through(JOURNAL) == 1
        await looking.close()
        assert rows(file, "removals") == 1

    run(body)


@pytest.mark.parametrize("removals", [0, 1, 7])
def test_removals_can_be_few(file: Path, removals: int) -> None:
    async def body() -> None:
        store = await opened(file, removals=removals)
        for journal in names(10):
            await store.append(journal, [record(0)])
            await store.prune(journal, 0)
        assert rows(file, "journals") == removals
        await store.close()

    run(body)


def test_an_option_says_how_many(file: Path) -> None:
    async def body() -> None:
        store = open_store("sqlite", {"path": str(file), "max-tombstones": "3"})
        assert isinstance(store, SQLiteStore)
        await store.open(Owner.create("job-1", "orders/agent"))
        for journal in names(10):
            await use_up(store, [journal])
        assert rows(file, "journals") == 3
        await store.close()

    run(body)


def test_a_transaction_that_fails_forgets_nothing(file: Path) -> None:
    async def body() -> None:
        store = await opened(file, removals=2)
        await use_up(store, names(2))
        writer = writer_of(store)
        plain, writer._renew_lease = writer._renew_lease, lambda: (_ for _ in ()).throw(OSError("no"))  # pyright: ignore[reportAttributeAccessIssue]
        errors = await asyncio.gather(store.prune(names(1)[0], 5), return_exceptions=True)
        assert errors[0] is not None
        writer._renew_lease = plain  # pyright: ignore[reportAttributeAccessIssue]
        assert await store.pruned_through(names(1)[0]) == 0
        await use_up(store, names(2, 2))
        assert rows(file, "journals") == 2
        await store.close()

    run(body)
