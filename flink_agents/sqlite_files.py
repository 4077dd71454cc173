"""Opens SQLite files that several processes share, creates new ones, and rejects files of other programs.

It belongs to no layer and imports nothing of the package: the store of durable calls and the vector store
each have such a file, with their own schema and errors.

A file is in WAL mode with ``synchronous=FULL``: a commit is on the disk when it returns. Only the owner can
access a new file; SQLite gives the files next to it the same mode.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

E = TypeVar("E", bound=Exception)

SMALLEST_BYTES = 512
"""A database has at least one page, and this is the smallest one."""

_making = threading.Lock()

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_DATABASE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, kw_only=True)
class FileKind(Generic[E]):
    """A kind of file.

    Attributes:
        name: What such a file is called in messages, after "the".
        other_name: What a corrupt file has in place of it, for messages: "no" and a noun.
        application_id: The application id in the header of SQLite's file format.
        version: Version of the schema, SQLite's ``user_version``.
        schema: Statements that create the tables, ``meta`` among them.
        connect: Connects to a file, in autocommit mode.
        at_first: Statements to execute in an empty file, before its tables are created.
        at_each: Statements to execute on each new connection.
        format_error: Returns the error for a file that is not of this kind, from message, ``expected``,
            ``found`` and ``fix``.
        unavailable_error: Returns the error for a file that cannot be used, from the same arguments.
        fix_corrupt: How to fix a corrupt file, for messages.
    """

    name: str
    other_name: str
    application_id: int
    version: int
    schema: tuple[str, ...]
    connect: Callable[[Path], sqlite3.Connection]
    at_first: tuple[str, ...] = ()
    at_each: tuple[str, ...] = ()
    format_error: Callable[..., E]
    unavailable_error: Callable[..., E]
    fix_corrupt: str

    def connect_file(self, path: Path, busy_seconds: float) -> sqlite3.Connection:
        """Connect to a file of this kind, and create it if it is missing.

        Several processes may do so at once.

        Args:
            path: The file; its directories are created.
            busy_seconds: Seconds to wait for other processes that create it.

        Raises:
            Exception: What ``format_error`` or ``unavailable_error`` returns.
        """
        deadline = time.monotonic() + busy_seconds
        while True:
            try:
                _make_private(path)
                _check_header(path)
                return self._connect_checked(path)
            except (sqlite3.Error, OSError) as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise self.translate_error(error, path) from error
                time.sleep(random.uniform(0.005, 0.02))

    def translate_error(self, error: BaseException, path: Path) -> E:
        """Return this kind's error for an error of SQLite or of the file system."""
        code = getattr(error, "sqlite_errorcode", None)
        text = str(error)
        if (
            (code is not None and code & 0xFF in _NO_DATABASE)
            or "malformed" in text
            or "not a database" in text
        ):
            return self.corrupt_file_error(path, text)
        return self.unavailable_error(
            f"the {self.name} {path} cannot be used: {text}",
            found=type(error).__name__,
            fix="check the disk's free space, the file's permissions, and other processes that write to it",
        )

    def corrupt_file_error(self, path: Path, found: str) -> E:
        """Return the error for a corrupt file; ``found`` describes its content."""
        return self.format_error(
            f"the file {path} is corrupt, or {self.other_name}", found=found, fix=self.fix_corrupt
        )

    def _connect_checked(self, path: Path) -> sqlite3.Connection:
        connection = self.connect(path)
        try:
            if self._is_new(connection, path):
                self._create_tables(connection)
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise self.unavailable_error(
                    f"the file system of {path} does not support SQLite's log",
                    expected="a local disk",
                    found=f"journal mode {mode}",
                    fix=f"put the {self.name} on a local disk; network file systems are not supported",
                )
            for statement in ("PRAGMA synchronous=FULL", *self.at_each):
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_new(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Return True if the file is empty, so that its tables have to be created.

        Raises:
            Exception: What ``format_error`` returns for a file that this version cannot use, which is not
                changed.
        """
        connection.execute("BEGIN")
        application_id, version, tables = _file_identity(connection)
        connection.execute("COMMIT")
        if (application_id, version, tables) == (0, 0, 0):
            return True
        if application_id != self.application_id:
            raise self.format_error(
                f"the file {path} is a database of another program",
                found=f"application id {application_id}, {tables} tables",
                fix="configure another path",
            )
        if version > self.version:
            raise self.format_error(
                f"the {self.name} {path} was written by a newer version of this package",
                expected=f"version {self.version} or lower",
                found=f"version {version}",
                fix="update the package on this machine",
            )
        return False

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        for statement in (*self.at_first, "PRAGMA journal_mode=WAL", "BEGIN IMMEDIATE"):
            connection.execute(statement)
        try:
            if _file_identity(connection)[2] == 0:  # Otherwise another process was faster.
                for statement in self.schema:
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES ('store_id', ?)", (str(uuid.uuid4()),))
                connection.execute(f"PRAGMA application_id={self.application_id}")
                connection.execute(f"PRAGMA user_version={self.version}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def is_busy(error: BaseException) -> bool:
    """Return True if an error means that another connection holds a lock: a retry may succeed."""
    code: Any = getattr(error, "sqlite_errorcode", None)  # Python's own errors only have a message.
    if code is None:
        return isinstance(error, sqlite3.OperationalError) and "is locked" in str(error)
    return code & 0xFF in _BUSY


def begin_transaction(connection: sqlite3.Connection, busy_seconds: float, usual_seconds: float) -> None:
    """Begin a write transaction; wait for the locks of other writers.

    SQLite itself sleeps up to 100 ms between two attempts, while a commit takes about 1 ms.

    Args:
        connection: A connection without a transaction.
        busy_seconds: Seconds to wait for other writers.
        usual_seconds: Busy timeout of the connection, which is restored afterwards.

    Raises:
        sqlite3.OperationalError: The lock was not free in time.
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
        connection.execute(f"PRAGMA busy_timeout={int(usual_seconds * 1000)}")


def _make_private(path: Path) -> None:
    """Create an empty file that only its owner can read, with its directories, unless it exists.

    Every process that connects to the file calls this first, so no connection is open when it is closed;
    :func:`_check_header` describes the consequences.
    """
    with _making:
        for directory in [parent for parent in reversed(path.parents) if not parent.exists()]:
            directory.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return


def _check_header(path: Path) -> None:
    """Reject a file that SQLite would overwrite, because it is too short to be a database.

    It must not be opened for that. Closing a file releases all POSIX locks of the process
    on it, those of SQLite's other connections included; then another process, believing to be the
    last user, removes the log that they write to (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    if path.is_file() and 0 < path.stat().st_size < SMALLEST_BYTES:
        raise sqlite3.DatabaseError("file is not a database")


def _file_identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return application id, version and number of tables, while no other connection creates tables."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0],
    )
