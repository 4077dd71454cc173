"""The file of the vector store ``sqlite``, and the host that owns it.

SQLite's log is shared memory, which only processes of one kernel share.

The file names its host with a lease, which operations renew. Each operation checks it in its own transaction.
Another host may open the file over a network file system, or through a copy that was made too early. It waits
until the lease expires; if the lease is renewed, it raises an error. A host that lost the file also raises
errors from then on, so that two hosts never write.

Hosts that each have a file at the same path cannot detect each other. So a job for a cluster names the host,
and all other hosts raise an error.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flink_agents.api.errors import (
    RetrievalError,
    VectorStoreFormatError,
    VectorStoreInUseError,
    VectorStoreUnavailableError,
)
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

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)

    return FileKind(
        name="vector store",
        other_name="no vector store",
        application_id=APPLICATION_ID,
        version=VERSION,
        schema=_SCHEMA,
        connect=connect,
        format_error=VectorStoreFormatError,
        unavailable_error=VectorStoreUnavailableError,
        fix_corrupt="restore the file from a copy, or configure another path and add the documents again",
    )


POLLS_PER_LEASE = 10
"""Number of checks of another host's lease while it can expire."""

LONGEST_PAUSE = 0.5
"""Maximum number of seconds between two checks of a lease."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Host:
    """A running kernel.

    Attributes:
        boot: Unique id of the kernel; a restart changes it.
        name: Host name. Containers of one kernel have several.
    """

    boot: str
    name: str


@cache
def this_host() -> Host:
    """Return the host of this process."""
    name = socket.gethostname()
    return Host(_BOOT_ID.read_text().strip() if _BOOT_ID.exists() else name, name)


def check_host(connection: sqlite3.Connection, host: Host, path: Path) -> float:
    """Check that the file belongs to ``host``, and return the end of its lease. Called in a transaction.

    Returns:
        The end of the lease, in seconds since the epoch.

    Raises:
        VectorStoreInUseError: Another host has taken it.
    """
    owner, until = _read_host(connection)
    if owner is None or owner.boot != host.boot:
        raise _other_host_error(path, host, owner)
    return until


def renew_host(connection: sqlite3.Connection, host: Host, seconds: float) -> None:
    """Give ``host`` a new lease of some seconds. Called in a transaction that writes."""
    lease = json.dumps([host.boot, host.name, time.time() + seconds])
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('host', ?)", (lease,))


def claim_file(connection: sqlite3.Connection, host: Host, path: Path, seconds: float) -> None:
    """Assign the file to ``host``; wait until the lease of another host that is gone expires.

    Args:
        connection: A connection to the file, without a transaction.
        host: The host of this process.
        path: The file, for the error.
        seconds: Length of a lease, and the longest wait.

    Raises:
        VectorStoreInUseError: Another host renewed its lease.
    """
    first_lease: tuple[Host | None, float] | None = None
    started_at = time.monotonic()
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            owner, until = _read_host(connection)
            # The clocks of hosts may differ, so a lease also ends after its length.
            has_waited = time.monotonic() - started_at >= seconds
            if owner is None or owner.boot == host.boot or until < time.time() or has_waited:
                renew_host(connection, host, seconds)
                connection.execute("COMMIT")
                # A host that does not share the log's memory reads this from the file itself.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                return
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        first_lease = first_lease or (owner, until)
        if first_lease != (owner, until):
            raise _other_host_error(path, host, owner)
        time.sleep(min(seconds / POLLS_PER_LEASE, LONGEST_PAUSE))


def check_name(host: Host, wanted: str | None, path: Path) -> None:
    """Reject a host that the description does not name: it has its own file at that path.

    Args:
        host: The host of this process.
        wanted: Name of the host in the description; None for any host.
        path: The file, for the error.

    Raises:
        VectorStoreInUseError: This host is not the named one.
    """
    if wanted not in (None, host.name):
        raise _other_host_error(path, host, Host("", wanted or ""))


def unnamed_host(name: str) -> VectorStoreInUseError:
    """Return the error about a job for a cluster, in which each host would have its own file."""
    return VectorStoreInUseError(
        f"the vector store {name!r} is a file on one host, and the job runs on a cluster",
        expected="host=... in its description: the host of all TaskManagers, as their command hostname "
        "prints it",
        found="no host",
        fix="name it, or use the store 'chroma' with the address of a server",
    )


def _read_host(connection: sqlite3.Connection) -> tuple[Host | None, float]:
    """Return the host that owns the file, or None, and the end of its lease in seconds since the epoch."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'host'").fetchone()
    if row is None:
        return None, 0.0
    boot, name, until = json.loads(row[0])
    return Host(boot, name), until


def _other_host_error(path: Path, host: Host, owner: Host | None) -> VectorStoreInUseError:
    """Return the error about a file that ``host`` uses, although it belongs to another host."""
    return VectorStoreInUseError(
        f"the vector store {path} is used by several hosts; the store 'sqlite' serves one",
        expected=f"all subtasks on {owner.name if owner else 'the host that has the file'}",
        found=f"a subtask on {host.name}",
        fix="use the store 'chroma' with the address of a server, or run the job on one host",
    )
