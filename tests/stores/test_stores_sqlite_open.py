"""Opening the store ``sqlite`` is given up half way."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlite_tools import run, until

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import StoreClosedError
from flink_agents.connectors.action_state.sqlite import store as sqlite_module
from flink_agents.connectors.action_state.sqlite.file import open_file
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


@pytest.mark.parametrize("number", [1, 2])
def test_what_is_opened_while_the_caller_goes_away_is_closed(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The thread goes on with what it has begun when the coroutine is cancelled."""
    opening, go_on = threading.Event(), threading.Event()
    connections: list[sqlite3.Connection] = []

    def slow(*arguments: Any) -> sqlite3.Connection:
        if len(connections) == number - 1:
            opening.set()
            assert go_on.wait(30)
        connections.append(open_file(*arguments))
        return connections[-1]

    monkeypatch.setattr(sqlite_module, "open_file", slow)

    async def body() -> None:
        store = SQLiteStore(file)
        task = asyncio.ensure_future(store.open(Owner.create("job", "orders/agent")))
        await until(opening.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await until(lambda: len(connections) == number and all(map(is_closed, connections)))
        with pytest.raises(StoreClosedError):
            await store.open(Owner.create("job", "orders/agent"))

    run(body)


def test_a_store_without_resources_of_its_reader_is_closed(file: Path) -> None:
    """A store that reads from memory has nothing to close in its reader thread."""

    class ReadsFromMemory(SQLiteStore):
        async def _connect(self, owner: Any, opened: Any) -> Any:
            make, self.closers = await super()._connect(owner, opened)
            return make, []

    async def opened_and_closed() -> None:
        store = ReadsFromMemory(file)
        await store.open(Owner.create("job-1", "orders/agent"))
        await store.close()
        [close] = store.closers
        await asyncio.to_thread(close)

    run(opened_and_closed)
