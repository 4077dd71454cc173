"""The file of the vector store ``sqlite``: its schema and its kind of file.

Each document has one row, with its vector as float32 numbers, and one row of ``fields`` for each entry of its
metadata, which filters search by an index. A collection counts its changes, and each document has the number
of its last one, so that a process reads only what changed since its last read.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flink_agents.api.errors import RetrievalError, VectorStoreFormatError, VectorStoreUnavailableError
from flink_agents.sqlite_files import FileKind

APPLICATION_ID = 0x46414456
"""Application id in SQLite's header that marks a file as a vector store."""

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
    """Return the file kind of vector stores.

    Args:
        busy_seconds: Seconds that a statement waits for other writing processes.
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
