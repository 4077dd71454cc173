"""The file of the store ``sqlite``: its schema, its connections, and its size.

Each journal has one row, which stays for some time after its records are pruned (:mod:`removals`), so that
a pruned journal differs from one that never existed. Records are in the order of their append; an index
finds the records of a run.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flink_agents.api.errors import StoreError, StoreFormatError, StoreUnavailableError
from flink_agents.connectors.action_state.sqlite import removals
from flink_agents.connectors.action_state.sqlite.rows import STATEMENTS
from flink_agents.runtime.journal.identity import POSITION
from flink_agents.sqlite_files import FileKind

APPLICATION_ID = 0x464C4147
"""SQLite's application id that marks this file as a store of action state."""

VERSION = 1
"""Version of the schema, SQLite's ``user_version``."""

READ_BUSY_SECONDS = 5.0
WAL_PAGES = 2000
"""After this many pages of 4 KB, a commit moves the log into the file."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""A larger log is truncated after it was moved into the file."""

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE owners (
        grp BLOB NOT NULL, subtask INTEGER NOT NULL, parallelism INTEGER NOT NULL, job_id BLOB NOT NULL,
        token TEXT NOT NULL, lease_until REAL NOT NULL, lease_seconds REAL NOT NULL,
        PRIMARY KEY (grp, subtask)) WITHOUT ROWID""",
    """CREATE TABLE journals (
        id INTEGER PRIMARY KEY, journal_id BLOB NOT NULL, key BLOB NOT NULL,
        pruned_through INTEGER NOT NULL, UNIQUE (journal_id, key))""",
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY, journal INTEGER NOT NULL, seq INTEGER NOT NULL, kind INTEGER NOT NULL,
        step BLOB NOT NULL, idx INTEGER NOT NULL, data BLOB NOT NULL)""",
    "CREATE INDEX records_of_run ON records (journal, seq)",
    removals.TABLE,
    removals.INDEX,
)


def _connect_reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=READ_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS,
    )


KIND: FileKind[StoreError] = FileKind(
    name="store",
    other_name="not a SQLite file",
    application_id=APPLICATION_ID,
    version=VERSION,
    schema=_SCHEMA,
    connect=_connect_reader,
    # Allows freed pages to be returned to the file system; must be set before there are tables.
    at_first=("PRAGMA auto_vacuum=INCREMENTAL",),
    at_each=(f"PRAGMA wal_autocheckpoint={WAL_PAGES}", f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}"),
    format_error=StoreFormatError,
    unavailable_error=StoreUnavailableError,
    fix_corrupt="restore the file from a copy, or configure another path and start a new job",
)

translate = KIND.translate_error


def open_file(path: Path, create: bool, busy_seconds: float) -> sqlite3.Connection:
    """Connect to the store at ``path``; several processes may create the file at once.

    Args:
        path: The file; its directory is created.
        create: True to create the file if it is missing.
        busy_seconds: Seconds to wait for other processes that create the file.

    Raises:
        StoreFormatError: The file is not a store, or a newer version wrote it.
        StoreUnavailableError: The file cannot be opened.
    """
    if not create and not path.exists():
        raise StoreUnavailableError(f"store {path} does not exist", fix="check the path")
    return KIND.connect_file(path, busy_seconds)


def read_store_id(connection: sqlite3.Connection) -> str:
    """Return the store's UUID as text.

    Raises:
        StoreFormatError: The file has no UUID.
    """
    row = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
    if row is None:
        _, _, path = connection.execute("PRAGMA database_list").fetchone()
        raise KIND.corrupt_file_error(Path(path), "its rows were deleted: it has no id")
    return row[0]


def read_position(connection: sqlite3.Connection) -> int:
    """Return the number of committed transactions that appended records; 0 for a new file."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (POSITION,)).fetchone()
    return 0 if row is None else int(row[0])


def log_path(path: Path) -> Path:
    """Return the path of SQLite's write-ahead log for a database file: ``FILE-wal``."""
    return path.with_name(path.name + "-wal")


def stored_bytes(path: Path) -> int:
    """Return the size of the file and its log in bytes."""
    files = [path, log_path(path)]
    return sum(file.stat().st_size for file in files if file.exists())
