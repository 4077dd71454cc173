"""The file of the store ``sqlite``: its schema, connections to it, and what errors of SQLite mean.

The file is in WAL mode with ``synchronous=FULL``: a commit is on the disk when it returns. Each
journal has one row, which stays for some time when its records are pruned (:mod:`removals`), so that
what was pruned differs from what never was. Records are in the order of their append; an index leads
to those of a run.

A new file is for its owner only: what it records are requests and answers. SQLite gives the files beside
it the same mode.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import uuid
from pathlib import Path

from flink_agents.api.errors import StoreError, StoreFormatError, StoreUnavailableError
from flink_agents.connectors.action_state.sqlite import removals
from flink_agents.connectors.action_state.sqlite.rows import STATEMENTS

APPLICATION_ID = 0x464C4147
"""What SQLite's header has to say: this file is a store of action state."""

VERSION = 1
"""Version of the schema, SQLite's ``user_version``."""

READ_BUSY_SECONDS = 5.0
WAL_PAGES = 2000
"""After so many pages of 4 KB a commit moves the log into the file."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""A log that grew beyond this is cut when it was moved."""

SMALLEST_BYTES = 512
"""A database has a page, at least, and this is the smallest one."""

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

_making = threading.Lock()

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NOT_A_STORE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_busy(error: BaseException) -> bool:
    """Tell whether another connection holds a lock, so that trying again may help."""
    code = getattr(error, "sqlite_errorcode", None)  # What Python itself raises has only the text.
    if code is None:
        return isinstance(error, sqlite3.OperationalError) and "is locked" in str(error)
    return code & 0xFF in _BUSY


def translate(error: BaseException, path: Path) -> StoreError:
    """Return the store's error for one of SQLite's, or of the file system."""
    code = getattr(error, "sqlite_errorcode", None)
    text = str(error)
    if (code is not None and code & 0xFF in _NOT_A_STORE) or "malformed" in text or "not a database" in text:
        return StoreFormatError(
            f"the file {path} is corrupt, or no SQLite file",
            found=text,
            fix="restore the file from a copy, or configure another path and start a new job",
        )
    return StoreUnavailableError(
        f"the store {path} cannot be used: {text}",
        found=type(error).__name__,
        fix="look at the disk's free space, the file's permissions, and who else writes to it",
    )


def open_file(path: Path, create: bool, busy_seconds: float) -> sqlite3.Connection:
    """Return a connection to the store at ``path``; several processes may make the file at once.

    Args:
        path: The file; its directory is made.
        create: Make the file where there is none.
        busy_seconds: How long to wait for others that make the file.

    Raises:
        StoreFormatError: The file is no store, or of a newer version.
        StoreUnavailableError: It cannot be opened.
    """
    if not create and not path.exists():
        raise StoreUnavailableError(f"there is no store {path}", fix="look at the path")
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            _make_private(path)
            _check_header(path)
            return _connect(path)
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise translate(error, path) from error
            time.sleep(random.uniform(0.005, 0.02))


def _make_private(path: Path) -> None:
    """Make an empty file that only its owner can read, with its directories, unless it is there.

    Whoever connects to the file comes through here before, so that nobody has it open when it is closed;
    :func:`_check_header` says what that would do.
    """
    with _making:
        for directory in [each for each in reversed(path.parents) if not each.exists()]:
            directory.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return


def _check_header(path: Path) -> None:
    """Refuse a file that SQLite would overwrite, because it is too short to be a database.

    It must not be opened for that. Whoever closes a file gives up all POSIX locks that the process has
    on it, those of SQLite's other connections included; then another process, believing to be the
    last user, removes the log that they write to (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    if path.is_file() and 0 < path.stat().st_size < SMALLEST_BYTES:
        raise sqlite3.DatabaseError("file is not a database")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=READ_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS,
    )
    try:
        if _is_new(connection, path):
            _create(connection)
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailableError(
                f"the file system of {path} does not support SQLite's log",
                expected="a local disk",
                found=f"journal mode {mode}",
                fix="put the store on a local disk; network file systems are not supported",
            )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    """Tell whether the file is empty; what is neither that nor ours is refused before anything is changed."""
    connection.execute("BEGIN")
    application_id, version, tables = _identity(connection)
    connection.execute("COMMIT")
    if application_id == 0 and version == 0 and tables == 0:
        return True
    if application_id != APPLICATION_ID:
        raise StoreFormatError(
            f"the file {path} is a database of something else",
            found=f"application id {application_id}, {tables} tables",
            fix="configure another path",
        )
    if version > VERSION:
        raise StoreFormatError(
            f"the store {path} was written by a newer version of this package",
            expected=f"version {VERSION} or lower",
            found=f"version {version}",
            fix="update the package on this machine",
        )
    return False


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return application, version and number of tables, while nobody makes tables."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0],
    )


def _create(connection: sqlite3.Connection) -> None:
    # Freed pages can be given back to the file system; must be said before there are tables.
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
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


def read_store_id(connection: sqlite3.Connection) -> str:
    """Return the store's UUID."""
    return connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()[0]


def begin(connection: sqlite3.Connection, busy_seconds: float) -> None:
    """Begin a transaction that writes; waits for others at most ``busy_seconds``.

    SQLite's own way of waiting sleeps up to 100 ms at a time, while a commit takes about one.
    """
    deadline = time.monotonic() + busy_seconds
    connection.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.0005, 0.004))
    finally:
        connection.execute(f"PRAGMA busy_timeout={int(READ_BUSY_SECONDS * 1000)}")


def log_path(path: Path) -> Path:
    """Return the path of SQLite's write-ahead log of the file."""
    return path.with_name(path.name + "-wal")


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes the file from another one at the same path; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def stored_bytes(path: Path) -> int:
    """Return what the file and its log take."""
    files = [path, log_path(path)]
    return sum(file.stat().st_size for file in files if file.exists())
