"""The file of the vector store ``sqlite``: its schema, and what kind of file it is.

Each document has one row, with its vector as float32 numbers, and one row of ``fields`` for each entry of its
metadata, which filters search by an index. A collection counts its changes, and each document has the number
of its last one, so that a process reads only what changed since it looked last.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flink_agents.api.errors import RetrievalError, VectorStoreFormatError, VectorStoreUnavailableError
from flink_agents.sqlite_files import FileKind

APPLICATION_ID = 0x46414456
"""What SQLite's header has to say: this file is a vector store."""

VERSION = 1
"""Version of the schema, SQLite's ``user_version``."""

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE collections (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL,
        model TEXT NOT NULL, changes INTEGER NOT NULL, removed INTEGER NOT NULL)""",
    """CREATE TABLE documents (
        row INTEGER PRIMARY KEY AUTOINCREMENT, collection INTEGER NOT NULL, id TEXT NOT NULL,
        text TEXT NOT NULL, metadata TEXT NOT NULL, vector BLOB NOT NULL, change INTEGER NOT NULL,
        UNIQUE (collection, id))""",
    "CREATE INDEX documents_by_change ON documents (collection, change)",
    """CREATE TABLE fields (
        collection INTEGER NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, value NOT NULL,
        row INTEGER NOT NULL, PRIMARY KEY (collection, name, kind, value, row)) WITHOUT ROWID""",
)


def kind_of(busy_seconds: float) -> FileKind[RetrievalError]:
    """The kind of file that a vector store is.

    Args:
        busy_seconds: How long a statement waits for other processes that write.
    """

    def connected(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)

    return FileKind(
        name="vector store",
        other_name="no vector store",
        application_id=APPLICATION_ID,
        version=VERSION,
        schema=_SCHEMA,
        connect=connected,
        format_error=VectorStoreFormatError,
        unavailable_error=VectorStoreUnavailableError,
        fix_corrupt="restore the file from a copy, or configure another path and add the documents again",
    )
