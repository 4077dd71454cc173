"""Helpers for tests of the store ``sqlite``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from flink_agents.api.action_state import (
    JournalKey,
    Owner,
    Record,
    RecordKind,
)
from flink_agents.connectors.action_state.sqlite.rows import Rows
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.connectors.action_state.sqlite.writer import SQLiteWriter

JOURNAL = JournalKey("job", "skey")
DEADLINE_SECONDS = 60


def record(seq: int = 0, index: int = 0, data: bytes = b"data") -> Record:
    return Record(RecordKind.CALL, seq, "step", index, data)


async def opened(file: Path, job_id: str = "job-1", subtask: int = 0, **options: Any) -> SQLiteStore:
    store = SQLiteStore(file, **options)
    await store.open(Owner.create(job_id, "orders/agent", subtask, 2))
    return store


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), DEADLINE_SECONDS)

    asyncio.run(bounded())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def writer_of(store: SQLiteStore) -> SQLiteWriter:
    assert isinstance(store._writer, SQLiteWriter)
    return store._writer


def direct(file: Path) -> sqlite3.Connection:
    """A connection of somebody else."""
    return sqlite3.connect(file, isolation_level=None)


class Wrapped:
    """A connection of which some statements do something else.

    Args:
        connection: The connection.
        around: Called with a statement and a function that executes it.
    """

    def __init__(self, connection: Any, around: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._wrapped = connection
        self._around = around

    def execute(self, statement: str, *arguments: Any) -> Any:
        return self._around(statement, lambda: self._wrapped.execute(statement, *arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def wrap(store: SQLiteStore, around: Callable[[str, Callable[[], Any]], Any]) -> None:
    writer = writer_of(store)
    wrapped: Any = Wrapped(writer._connection, around)
    writer._connection = wrapped
    writer._rows = Rows(wrapped)
