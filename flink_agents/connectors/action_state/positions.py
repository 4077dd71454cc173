"""How far the journals in a file have come, for whoever compares the file with what it should have.

A store ``sqlite`` counts the transactions in which records were appended. The number stands in the file,
and never falls; so a copy that has a lower one than was seen lacks records.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

POSITION = "position"
"""The name of the number among the store's own values."""


@dataclass(frozen=True)
class JournalPosition:
    """How far the journals of a store have come.

    Attributes:
        store_id: Id of the store.
        number: How many transactions have appended records.
    """

    store_id: str
    number: int


def journal_position(path: Path) -> JournalPosition:
    """Return how far the journals in the file ``path`` have come.

    Raises:
        sqlite3.Error: There is no such file, or it cannot be read.
    """
    with closing(_connected(path)) as connection:
        found = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    return JournalPosition(str(found.get("store_id", "")), int(found.get(POSITION, 0)))


def raise_position(path: Path, number: int) -> None:
    """Let an older copy of a file count as up to date, because somebody has accepted what it lacks.

    Raises:
        sqlite3.Error: The file cannot be written.
    """
    with closing(_connected(path)) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (POSITION, str(number)))


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5.0)
