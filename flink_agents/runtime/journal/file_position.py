"""The position of the journals in a file, for a comparison with the expected one.

A store ``sqlite`` counts the transactions that append records. The number is stored in the file,
and never decreases; so a copy with a lower number than was seen lacks records.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

POSITION = "position"
"""The name of the position in the store's table of values."""


@dataclass(frozen=True)
class JournalPosition:
    """The position of the journals of a store.

    Attributes:
        store_id: Id of the store.
        number: Number of transactions that have appended records.
    """

    store_id: str
    number: int


def journal_position(path: Path) -> JournalPosition:
    """Return the position of the journals in the file ``path``.

    Raises:
        sqlite3.Error: There is no such file, or it cannot be read.
    """
    with closing(_connected(path)) as connection:
        metadata = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    return JournalPosition(str(metadata.get("store_id", "")), int(metadata.get(POSITION, 0)))


def raise_position(path: Path, number: int) -> None:
    """Let an older copy of a file count as up to date, after you have accepted its missing records.

    Raises:
        sqlite3.Error: The file cannot be written.
    """
    with closing(_connected(path)) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (POSITION, str(number)))


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5.0)
