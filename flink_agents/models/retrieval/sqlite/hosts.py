"""Which host a file belongs to: SQLite's log is shared memory, and processes of one kernel alone share it.

The file names its host with a lease, which operations renew. Each operation looks at it in its own
transaction. Another host that opens the file, over a network file system or by a copy that came too early,
waits until the lease has ended without being renewed; where it is renewed, that host is refused. A host
that lost the file in this way is refused from then on as well: nothing is written by two.

Hosts with a file each at the same path know nothing of each other. So a job for a cluster names the host, and
every other one is refused.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flink_agents.api.errors import VectorStoreInUseError

POLLS_PER_LEASE = 10
LONGEST_PAUSE = 0.5
"""Seconds between two looks at a lease, at most."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Host:
    """A kernel that runs.

    Attributes:
        boot: What no other kernel has, and this one not after its next start.
        name: How people call it. Containers of one kernel have several.
    """

    boot: str
    name: str


@cache
def this_host() -> Host:
    """The host of this process."""
    name = socket.gethostname()
    return Host(_BOOT_ID.read_text().strip() if _BOOT_ID.exists() else name, name)


def check_host(connection: sqlite3.Connection, host: Host, path: Path) -> float:
    """See that the file belongs to ``host``; returns when its lease ends. Called in a transaction.

    Raises:
        VectorStoreInUseError: Another host has taken it.
    """
    found, until = _read(connection)
    if found is None or found.boot != host.boot:
        raise _refused(path, host, found)
    return until


def renew(connection: sqlite3.Connection, host: Host, seconds: float) -> None:
    """Begin a new lease. Called in a transaction that writes."""
    value = json.dumps([host.boot, host.name, time.time() + seconds])
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('host', ?)", (value,))


def claim(connection: sqlite3.Connection, host: Host, path: Path, seconds: float) -> None:
    """Make the file that of ``host``; waits for the lease of another host that has gone.

    Raises:
        VectorStoreInUseError: Another host uses it.
    """
    first: tuple[Host | None, float] | None = None
    begun = time.monotonic()
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            found, until = _read(connection)
            waited = time.monotonic() - begun >= seconds
            if found is None or found.boot == host.boot or until < time.time() or waited:
                renew(connection, host, seconds)
                connection.execute("COMMIT")
                # A host that does not share the log's memory finds this in the file itself.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                return
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        first = first or (found, until)
        if first != (found, until):
            raise _refused(path, host, found)
        time.sleep(min(seconds / POLLS_PER_LEASE, LONGEST_PAUSE))


def check_name(host: Host, wanted: str | None, path: Path) -> None:
    """Refuse another host than the one that the description names: it has a file of its own at that path.

    Raises:
        VectorStoreInUseError: This is another one.
    """
    if wanted not in (None, host.name):
        raise _refused(path, host, Host("", wanted or ""))


def unnamed_host(name: str) -> VectorStoreInUseError:
    """The error about a job for a cluster, whose hosts would have a file each."""
    return VectorStoreInUseError(
        f"the vector store {name!r} is a file on one host, and the job runs on a cluster",
        expected="host=... in its description: that of all TaskManagers, as the command hostname says there",
        found="no host",
        fix="name it, or use the store 'chroma' with the address of a server",
    )


def _read(connection: sqlite3.Connection) -> tuple[Host | None, float]:
    row = connection.execute("SELECT value FROM meta WHERE name = 'host'").fetchone()
    if row is None:
        return None, 0.0
    boot, name, until = json.loads(row[0])
    return Host(boot, name), until


def _refused(path: Path, host: Host, found: Host | None) -> VectorStoreInUseError:
    return VectorStoreInUseError(
        f"the vector store {path} is used by several hosts; the store 'sqlite' serves one",
        expected=f"all subtasks on {found.name if found else 'the host that has the file'}",
        found=f"a subtask on {host.name}",
        fix="use the store 'chroma' with the address of a server, or run the job on one host",
    )
