"""The thread that writes to a store ``sqlite``, and the owners that may append.

A batch is one transaction, so that one disk flush serves many appends. The file has a row for the owner of
each subtask of a group. Each transaction checks the row of its owner, so no takeover can happen between them.
A lease only decides which job has to wait for which. It uses this machine's clock; if the clock is set back,
the waiting job watches whether the lease is still renewed.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from flink_agents.api.action_state import (
    JournalKey,
    Owner,
    Record,
    decode_text,
    encode_text,
    stale_error,
)
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import StoreError
from flink_agents.connectors.action_state.group_writer import (
    BatchLimits,
    GroupWriter,
    OnEnd,
    Outcome,
    PendingWrite,
    StoreMetrics,
)
from flink_agents.connectors.action_state.sqlite.file import (
    READ_BUSY_SECONDS,
    log_path,
    read_position,
    translate,
)
from flink_agents.connectors.action_state.sqlite.removals import expire_journals
from flink_agents.connectors.action_state.sqlite.rows import Rows
from flink_agents.sqlite_files import begin_transaction, is_busy

_log = bounded_logger("flink_agents.store")

LIMITS = BatchLimits(writes=1000, size=16 * 1024 * 1024, pause_seconds=0.01)
"""Limits of a transaction."""

FREE_PAGES = 4096
RELEASED_PAGES = 1024
"""If the file has more free pages, each renewal of a lease returns ``RELEASED_PAGES`` to the file system."""

COMMIT_BUSY_SECONDS = 5.0

PRUNED_PER_EXPIRY = 1000
"""After this many pruned journals, a transaction also deletes the oldest rows of such journals."""

_locks: weakref.WeakValueDictionary[tuple[int, int], threading.Lock] = weakref.WeakValueDictionary()
_locks_lock = threading.Lock()


def _lock_of(identity: tuple[int, int]) -> threading.Lock:
    """Return the lock for a file's writers in this process: they queue instead of polling SQLite's lock."""
    with _locks_lock:
        lock = _locks.get(identity)
        if lock is None:
            lock = _locks[identity] = threading.Lock()
        return lock


_data_of = attrgetter("data")
_journal_of = attrgetter("journal")
_records_of = attrgetter("records")


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return an identity of the file that differs from another file at the same path; None without a file."""
    try:
        file_status = os.stat(path)
    except OSError:
        return None
    return file_status.st_dev, file_status.st_ino


class SqliteWrite(PendingWrite):
    """An append to a journal, or a removal of its first runs, that waits for its transaction.

    Args:
        journal: The journal.
        records: The records to append; empty for a removal.
        through: Number of the last run to remove; None for an append.
    """

    __slots__ = ("journal", "records", "through")

    def __init__(self, journal: JournalKey, records: Sequence[Record], through: int | None = None) -> None:
        self.future = None
        self.journal = journal
        self.records = records
        self.through = through
        self.size = sum(map(len, map(_data_of, records)))

    def apply(self, rows: Rows) -> None:
        """Write this in the current transaction.

        Raises:
            StoreError: The write is rejected, and has changed nothing.
        """
        if self.through is not None:
            rows.prune(self.journal, self.through)
        else:
            rows.append(self.journal, self.records)


class Forget(SqliteWrite):
    """The removal of all journals of a job.

    Args:
        journal_id: The job's id.
    """

    __slots__ = ()

    def __init__(self, journal_id: str) -> None:
        super().__init__(JournalKey(journal_id, ""), ())

    @override
    def apply(self, rows: Rows) -> None:
        rows.forget(self.journal.journal_id)


def _apply_batch(batch: list[SqliteWrite], rows: Rows) -> list[Outcome]:
    """Apply each write in the current transaction. Return its error, or None, for each of them."""
    outcomes: list[Outcome] = []
    for write in batch:
        try:
            write.apply(rows)
        except StoreError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


class _NotBegun(Exception):
    """A transaction could not start: the file or its log is missing, or other writers hold the lock."""


class _UnknownOutcome(Exception):
    """A commit failed, and it is unknown if the transaction is in the file."""


class SQLiteWriter(GroupWriter[SqliteWrite]):
    """Writes batches to the file, each in one transaction.

    Args:
        connection: A connection to the file; from now on, only this thread uses it.
        path: The file of the store.
        owner: The owner that appends; None to write without a check of owners.
        loop: The event loop on which futures are resolved.
        lease_seconds: Length of the owner's lease in seconds. This thread renews it.
        busy_seconds: Seconds that a transaction waits for other writers.
        removals: Number of fully pruned journals whose rows are kept.
        metrics: Receives counts and durations of the writes.
        on_end: Called on the loop with the unresolved futures, after the thread has ended.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        owner: Owner | None,
        loop: asyncio.AbstractEventLoop,
        lease_seconds: float,
        busy_seconds: float,
        removals: int,
        metrics: StoreMetrics,
        on_end: OnEnd,
    ) -> None:
        super().__init__(str(path), LIMITS, lease_seconds, loop, metrics, on_end)
        # A loop below waits for the locks of transactions, and the usual one needs no statement for that.
        connection.execute("PRAGMA busy_timeout=0")
        self._connection = connection
        self._path = path
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._busy_seconds = busy_seconds
        self._removals = removals
        self.position = read_position(connection)
        # Journals pruned since the last deletion; None before the first one, which is always needed.
        self._pruned: int | None = None
        self._rows = Rows(connection)
        # SQLite's number of the file as this connection has read it last; changes of others change it.
        self._data_version: int | None = None
        self._identity = _file_identity(path)
        self._log = log_path(path)
        self._log_identity: tuple[int, int] | None = None
        self._lock = _lock_of(self._identity or (0, 0))

    def _write_batch(self, batch: list[SqliteWrite]) -> list[Outcome]:
        try:
            return self._write_in_transaction(batch)
        except _UnknownOutcome as error:
            failure = self._unknown_write_error(f"the commit to {self._path} failed", error.__cause__)
            return [copy.copy(failure) for _ in batch]
        except _NotBegun as error:
            self._metrics.count_failure()
            return [translate(error.__cause__ or error, self._path) for _ in batch]
        except Exception as error:
            if len(batch) > 1:
                # One of the writes may be the cause; the others must not fail with it.
                return [self._write_separately(write) for write in batch]
            self._metrics.count_failure()
            return [translate(error, self._path)]

    def _write_separately(self, write: SqliteWrite) -> Outcome:
        return self._rejection_error() if self._failure is not None else self._write_batch([write])[0]

    def _write_in_transaction(self, batch: list[SqliteWrite]) -> list[Outcome]:
        """Write a batch in one transaction, which also checks the owner and renews its lease.

        Returns the error of each write, or None. An exception means that the batch is not stored, except for
        :class:`_UnknownOutcome`.
        """
        with self._lock:
            self._begin_transaction()
            rows = self._rows
            try:
                if self._was_changed_by_others():
                    if self._owner is not None and not is_owner(self._connection, self._owner):
                        self._roll_back()
                        return [stale_error(self._owner) for _ in batch]
                    rows.forget_lookups()
                    self.position = read_position(self._connection)
                rows.look_up(map(_journal_of, batch))
                outcomes = _apply_batch(batch, rows)
                rows.flush()
                position = self.position
                # A transaction that only removes does not move the position.
                if any(map(_records_of, batch)):
                    position += 1
                    rows.set_position(position)
                pruned = rows.pruned + (self._pruned or 0)
                if self._pruned is None or pruned >= min(PRUNED_PER_EXPIRY, self._removals // 10 + 1):
                    pruned = None if expire_journals(self._connection, self._removals) else 0
                    rows.forget_lookups()
                self._renew_lease()
            except BaseException:
                self._roll_back()
                raise
            self._commit_transaction()
            self._pruned = pruned
            self.position = position
        return outcomes

    def _was_changed_by_others(self) -> bool:
        """Return True if another connection may have changed the file since the last transaction."""
        (data_version,) = self._connection.execute("PRAGMA data_version").fetchone()
        was_changed = data_version != self._data_version
        self._data_version = data_version
        return was_changed

    def _begin_transaction(self) -> None:
        """Begin a transaction; wait for other writers.

        Raises:
            _NotBegun: The file or its log was removed or replaced, or the lock was not free in time.
        """
        try:
            file_status = os.stat(self._path)
            if (file_status.st_dev, file_status.st_ino) != self._identity:
                raise FileNotFoundError
        except OSError:
            file_error = OSError("the file was removed or replaced while the store was open")
            raise _NotBegun from file_error
        try:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                begin_transaction(self._connection, self._busy_seconds, 0.0)
            log = _file_identity(self._log)
            if log != (self._log_identity or log):
                self._roll_back()
                raise OSError("the log of the file was removed or replaced while the store was open")
            self._log_identity = log
        except (sqlite3.Error, OSError) as error:
            raise _NotBegun from error

    def _roll_back(self) -> None:
        # Rows that this transaction added are gone.
        self._data_version = None
        if self._connection.in_transaction:  # SQLite rolls back itself if the disk is full.
            self._connection.execute("ROLLBACK")

    def _commit_transaction(self) -> None:
        """Commit; repeat that while a lock is held.

        Raises:
            _UnknownOutcome: It failed.
        """
        deadline = time.monotonic() + COMMIT_BUSY_SECONDS
        while True:
            try:
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or not self._connection.in_transaction or time.monotonic() > deadline:
                    raise _UnknownOutcome from error
                time.sleep(0.001)

    def _renew_lease(self) -> None:
        now = time.monotonic()
        if self._owner is not None and now >= self._beat_at:
            renew_lease(self._connection, self._owner, self._lease_seconds)
            self._beat_at = now + self._beat_seconds

    def _renew_idle_lease(self) -> None:
        try:
            if self._owner is not None and self._failure is None:
                self._write_in_transaction([])
                self._release_free_pages()
        except _UnknownOutcome as error:
            self._unknown_write_error(f"the commit to {self._path} failed", error.__cause__)
        except Exception as error:
            # An append will meet the same error, and has a caller that gets it.
            _log.warning("the lease in %s was not renewed: %s", self._path, error.__cause__ or error)
        self._beat_at = max(self._beat_at, time.monotonic() + self._beat_seconds)

    def _release_free_pages(self) -> None:
        if self._connection.execute("PRAGMA freelist_count").fetchone()[0] > FREE_PAGES:
            with self._lock:
                # Not execute(), which ends after the first page.
                self._connection.executescript(
                    f"PRAGMA busy_timeout={int(1000 * READ_BUSY_SECONDS)}; "
                    f"PRAGMA incremental_vacuum({RELEASED_PAGES}); PRAGMA busy_timeout=0"
                )

    def _close_resources(self) -> None:
        try:
            if self._owner is not None and not self._abandoned:
                with self._lock:
                    begin_transaction(self._connection, self._busy_seconds, 0.0)
                    release_lease(self._connection, self._owner)
                    self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            _log.warning("the lease in %s was not released: %s", self._path, error)
        finally:
            self._connection.close()


# -- owners ----------------------------------------------------------------------------


class OtherLease(NamedTuple):
    """The lease of another job that holds the group.

    Attributes:
        token: Token of the owner.
        job_id: Flink's id of the job.
        valid_until: Its end, in seconds since the epoch by this machine's clock.
        seconds: Its length in seconds.
    """

    token: str
    job_id: str
    valid_until: float
    seconds: float


def claim_file(
    connection: sqlite3.Connection,
    owner: Owner,
    lease_seconds: float,
    busy_seconds: float,
    ended: frozenset[OtherLease] = frozenset(),
) -> frozenset[OtherLease]:
    """Make ``owner`` the one that may append, unless another job holds a valid lease of its group.

    Args:
        connection: A connection to the store, outside of a transaction.
        owner: The owner that wants to append.
        lease_seconds: Length of its lease in seconds.
        busy_seconds: Seconds to wait for the file's lock.
        ended: Leases to ignore, since their jobs no longer renew them.

    Returns:
        The leases to wait for. If there are none, ``owner`` may append now.
    """
    begin_transaction(connection, busy_seconds, READ_BUSY_SECONDS)
    try:
        now = time.time()
        rows = connection.execute(
            "SELECT token, job_id, lease_until, lease_seconds FROM owners WHERE grp = ? AND job_id <> ?",
            (encode_text(owner.group), encode_text(owner.job_id)),
        )
        other_leases = frozenset(OtherLease(row[0], decode_text(row[1]), row[2], row[3]) for row in rows)
        alive = frozenset(
            lease
            for lease in other_leases - ended
            if lease.valid_until > now and lease.job_id not in owner.ended_jobs
        )
        if not alive:
            _replace_owners(connection, owner, now + lease_seconds, lease_seconds)
        connection.execute("COMMIT")
        return alive
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _replace_owners(connection: sqlite3.Connection, owner: Owner, until: float, seconds: float) -> None:
    """Delete the rows of all owners that ``owner`` outranks, and insert its own, with its lease."""
    group = encode_text(owner.group)
    job_id = encode_text(owner.job_id)
    connection.execute(
        "DELETE FROM owners WHERE grp = ? AND (job_id <> ? OR parallelism <> ? OR subtask = ?)",
        (group, job_id, owner.parallelism, owner.subtask),
    )
    connection.execute(
        "INSERT INTO owners VALUES (?, ?, ?, ?, ?, ?, ?)",
        (group, owner.subtask, owner.parallelism, job_id, owner.token, until, seconds),
    )


def is_owner(connection: sqlite3.Connection, owner: Owner) -> bool:
    """Return True if ``owner`` may append. Only the transaction of the append can rely on the answer."""
    row = connection.execute(
        "SELECT token FROM owners WHERE grp = ? AND subtask = ?", (encode_text(owner.group), owner.subtask)
    ).fetchone()
    return row is not None and row[0] == owner.token


def renew_lease(connection: sqlite3.Connection, owner: Owner, lease_seconds: float) -> None:
    """Extend the lease of ``owner`` to ``lease_seconds`` from now; do nothing if it is no longer an owner."""
    connection.execute(
        "UPDATE owners SET lease_until = ? WHERE grp = ? AND subtask = ? AND token = ?",
        (time.time() + lease_seconds, encode_text(owner.group), owner.subtask, owner.token),
    )


def release_lease(connection: sqlite3.Connection, owner: Owner) -> None:
    """End the lease of ``owner`` now, so that another job need not wait for it."""
    connection.execute(
        "DELETE FROM owners WHERE grp = ? AND subtask = ? AND token = ?",
        (encode_text(owner.group), owner.subtask, owner.token),
    )


def all_owners(connection: sqlite3.Connection) -> tuple[Owner, ...]:
    """Return all owners that may append now, of all groups."""
    rows = connection.execute(
        "SELECT job_id, grp, subtask, parallelism, token FROM owners ORDER BY grp, subtask"
    )
    return tuple(Owner(decode_text(row[0]), decode_text(row[1]), *row[2:]) for row in rows)
