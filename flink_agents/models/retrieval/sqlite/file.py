"""The file of the vector store ``sqlite``: its schema, connections to it, and what errors of SQLite mean.

The file is in WAL mode with ``synchronous=FULL``: a write is on the disk when it returns. Each document has
one row, with its vector as float32 numbers, and one row of ``fields`` for each entry of its metadata, which
filters search by an index. A collection counts its changes, and each document has the number of its last
one, so that a process reads only what changed since it looked last.

A new file is for its owner only, as the documents may be private. SQLite gives the files beside it the
same mode.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
import uuid
from pathlib import Path

from flink_agents.api.errors import RetrievalError, VectorStoreFormatError, VectorStoreUnavailableError

APPLICATION_ID = 0x46414456
"""What SQLite's header has to say: this file is a vector store."""

VERSION = 1
"""Version of the schema, SQLite's ``user_version``."""

SMALLEST_BYTES = 512
"""A database has a page, at least, and this is the smallest one."""

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

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NOT_A_STORE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_busy(error: BaseException) -> bool:
    """Whether another connection holds a lock, so that trying again may help."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _BUSY


def translate(error: BaseException, path: Path) -> RetrievalError:
    """The store's error for one of SQLite's, or of the file system."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    text = str(error)
    if code & 0xFF in _NOT_A_STORE or "malformed" in text or "not a database" in text:
        return damaged(path, text)
    return VectorStoreUnavailableError(
        f"the vector store {path} cannot be used: {text}",
        found=type(error).__name__,
        fix="look at the disk's free space, the file's permissions, and who else writes to it",
    )


def damaged(path: Path, found: str) -> VectorStoreFormatError:
    """The error about a file that is not as this module writes it."""
    return VectorStoreFormatError(
        f"the file {path} is corrupt, or no vector store",
        found=found,
        fix="restore the file from a copy, or configure another path and add the documents again",
    )


def open_file(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A connection to the store at ``path``, which is made where it is missing.

    Several processes may make the file at once.

    Raises:
        VectorStoreFormatError: The file is no vector store, or of a newer version.
        VectorStoreUnavailableError: It cannot be opened.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            _make_private(path)
            return _connect(path, busy_seconds)
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise translate(error, path) from error
            time.sleep(random.uniform(0.005, 0.02))


def _make_private(path: Path) -> None:
    """Make an empty file that only its owner can read, with its directories, unless it is there."""
    for directory in [each for each in reversed(path.parents) if not each.exists()]:
        directory.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_file() and 0 < path.stat().st_size < SMALLEST_BYTES:
            # SQLite would take it for an empty database, and overwrite it.
            raise sqlite3.DatabaseError("file is not a database") from None


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        if _is_new(connection, path):
            _create(connection)
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise VectorStoreUnavailableError(
                f"the file system of {path} does not support SQLite's log",
                expected="a local disk",
                found=f"journal mode {mode}",
                fix="put the vector store on a local disk; network file systems are not supported",
            )
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is empty; what is neither that nor ours is refused before anything is changed."""
    connection.execute("BEGIN")
    application_id, version, tables = _identity(connection)
    connection.execute("COMMIT")
    if (application_id, version, tables) == (0, 0, 0):
        return True
    if application_id != APPLICATION_ID:
        raise VectorStoreFormatError(
            f"the file {path} is a database of something else",
            found=f"application id {application_id}, {tables} tables",
            fix="configure another path",
        )
    if version > VERSION:
        raise VectorStoreFormatError(
            f"the vector store {path} was written by a newer version of this package",
            expected=f"version {VERSION} or lower",
            found=f"version {version}",
            fix="update the package on this machine",
        )
    return False


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Application, version and number of tables; for a moment in which nobody makes them."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0],
    )


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _identity(connection)[2] == 0:  # otherwise another process was faster
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('store_id', ?)", (str(uuid.uuid4()),))
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
