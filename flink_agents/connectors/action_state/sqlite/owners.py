"""The owners of a store ``sqlite``: the file has one row for each subtask of a group.

Each append checks its row in its own transaction, so no takeover can come in between. A lease only
decides which job has to wait for which. It uses this machine's clock; if the clock
is set back, the waiting job watches whether the lease is still renewed.
"""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

from flink_agents.api.action_state import Owner, decode_text, encode_text
from flink_agents.connectors.action_state.sqlite.file import begin


class Lease(NamedTuple):
    """The lease of another job that has the group."""

    token: str
    job_id: str
    until: float
    seconds: float


def claim(
    connection: sqlite3.Connection,
    owner: Owner,
    lease_seconds: float,
    busy_seconds: float,
    ended: frozenset[Lease] = frozenset(),
) -> frozenset[Lease]:
    """Make ``owner`` the one that may append, unless another job holds a lease.

    Args:
        connection: A connection to the store.
        owner: The owner that wants to append.
        lease_seconds: Length of the lease.
        busy_seconds: How long to wait for the file's lock.
        ended: Leases that are known not to be renewed any more.

    Returns:
        The leases to wait for. If there are none, ``owner`` may append now.
    """
    begin(connection, busy_seconds)
    try:
        now = time.time()
        rows = connection.execute(
            "SELECT token, job_id, lease_until, lease_seconds FROM owners WHERE grp = ? AND job_id <> ?",
            (encode_text(owner.group), encode_text(owner.job_id)),
        )
        others = frozenset(Lease(row[0], decode_text(row[1]), row[2], row[3]) for row in rows)
        alive = frozenset(lease for lease in others - ended if lease.until > now)
        if not alive:
            _take(connection, owner, now + lease_seconds, lease_seconds)
        connection.execute("COMMIT")
        return alive
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _take(connection: sqlite3.Connection, owner: Owner, until: float, seconds: float) -> None:
    """Remove all owners that ``owner`` outranks, and add ``owner``."""
    group, job_id = encode_text(owner.group), encode_text(owner.job_id)
    connection.execute(
        "DELETE FROM owners WHERE grp = ? AND (job_id <> ? OR parallelism <> ? OR subtask = ?)",
        (group, job_id, owner.parallelism, owner.subtask),
    )
    connection.execute(
        "INSERT INTO owners VALUES (?, ?, ?, ?, ?, ?, ?)",
        (group, owner.subtask, owner.parallelism, job_id, owner.token, until, seconds),
    )


def owns(connection: sqlite3.Connection, owner: Owner) -> bool:
    """Return True if ``owner`` may append. Only an answer within the transaction of the append counts."""
    row = connection.execute(
        "SELECT token FROM owners WHERE grp = ? AND subtask = ?", (encode_text(owner.group), owner.subtask)
    ).fetchone()
    return row is not None and row[0] == owner.token


def renew(connection: sqlite3.Connection, owner: Owner, lease_seconds: float) -> None:
    """Renew the lease of ``owner``, if it has one."""
    connection.execute(
        "UPDATE owners SET lease_until = ? WHERE grp = ? AND subtask = ? AND token = ?",
        (time.time() + lease_seconds, encode_text(owner.group), owner.subtask, owner.token),
    )


def release(connection: sqlite3.Connection, owner: Owner) -> None:
    """Release the lease."""
    connection.execute(
        "DELETE FROM owners WHERE grp = ? AND subtask = ? AND token = ?",
        (encode_text(owner.group), owner.subtask, owner.token),
    )


def all_owners(connection: sqlite3.Connection) -> tuple[Owner, ...]:
    """Return all owners that may append at present."""
    rows = connection.execute(
        "SELECT job_id, grp, subtask, parallelism, token FROM owners ORDER BY grp, subtask"
    )
    return tuple(Owner(decode_text(row[0]), decode_text(row[1]), *row[2:]) for row in rows)
