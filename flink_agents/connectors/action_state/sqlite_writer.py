"""The thread that writes to a store ``sqlite``.

All that waits becomes one transaction, so that one flush of the disk serves many appends: while
one transaction is flushed, the next one gathers. The owner is looked at inside each of them.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import queue
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from flink_agents.api.action_state import (
    JournalKey,
    Owner,
    Record,
    closed_error,
    stale_error,
)
from flink_agents.api.errors import AppendOutcomeUnknownError, StoreError
from flink_agents.connectors.action_state.sqlite_file import (
    begin,
    file_identity,
    is_busy,
    log_path,
    translate,
)
from flink_agents.connectors.action_state.sqlite_owners import BEATS_PER_LEASE, owns, release, renew
from flink_agents.connectors.action_state.sqlite_rows import Rows

_log = logging.getLogger("flink_agents.store")

BATCH = 1000
BATCH_BYTES = 16 * 1024 * 1024
"""A transaction takes no more appends than this, and no more after so many bytes."""

BUSY = 8
PAUSE_SECONDS = 0.0001
LONGEST_PAUSE_SECONDS = 0.01
"""After a batch of so many the next one is let grow, for so long for each of them, and no longer than this:
a batch takes the interpreter from the others, for many appends no oftener than for few."""

FREE_PAGES = 4096
GIVEN_BACK = 1024
"""With more free pages than the first, the file is cut by the second at each renewal of a lease."""

COMMIT_BUSY_SECONDS = 5.0

Outcome = BaseException | None

_locks: weakref.WeakValueDictionary[tuple[int, int], threading.Lock] = weakref.WeakValueDictionary()
_locks_lock = threading.Lock()


def _lock_of(identity: tuple[int, int]) -> threading.Lock:
    """The lock for writers of one file in this process: they queue, and need not poll for SQLite's."""
    with _locks_lock:
        lock = _locks.get(identity)
        if lock is None:
            lock = _locks[identity] = threading.Lock()
        return lock


class Write:
    """One append, or one removal of records, on its way to the file.

    Args:
        journal: Where.
        records: What to append.
        through: Through which run to remove records; None for an append.
        future: Resolved on its loop.
    """

    def __init__(
        self,
        journal: JournalKey,
        records: Sequence[Record],
        through: int | None,
        future: asyncio.Future[None],
    ) -> None:
        self.journal = journal
        self.records = records
        self.through = through
        self.future = future
        self.size = sum(len(record.data) for record in records)

    def apply(self, rows: Rows) -> None:
        """Write it inside the present transaction, or raise :class:`StoreError` and change nothing."""
        if self.through is not None:
            rows.prune(self.journal, self.through)
        else:
            rows.append(self.journal, self.records)


class Forget(Write):
    """The removal of all journals of a job.

    Args:
        journal_id: Which ones.
        future: Resolved on its loop.
    """

    def __init__(self, journal_id: str, future: asyncio.Future[None]) -> None:
        super().__init__(JournalKey(journal_id, ""), (), None, future)

    def apply(self, rows: Rows) -> None:
        """See the base class."""
        rows.forget(self.journal.journal_id)


def _apply(write: Write, rows: Rows) -> Outcome:
    try:
        write.apply(rows)
    except StoreError as error:
        return error
    return None


class _NotBegun(Exception):
    """No transaction can begin at present, whatever it would write."""


class _UnknownOutcome(Exception):
    """A commit failed: the transaction is in the file, or not."""


class SQLiteWriter:
    """See the module.

    Args:
        connection: Of this thread alone from now on.
        path: The file.
        owner: Who appends; None writes without looking at owners.
        loop: Where futures are resolved.
        lease_seconds: Length of the owner's lease, which this thread renews.
        busy_seconds: How long to wait for other processes that write.
        on_end: Called on the loop when the thread has ended, behind all outcomes.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        owner: Owner | None,
        loop: asyncio.AbstractEventLoop,
        lease_seconds: float,
        busy_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._owner = owner
        self._loop = loop
        self._lease_seconds = lease_seconds
        self._busy_seconds = busy_seconds
        self._on_end = on_end
        self._identity = file_identity(path)
        self._log_identity: tuple[int, int] | None = None
        self._lock = _lock_of(self._identity or (0, 0))
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._stopping = False
        self._abandoned = False
        self._failure: StoreError | None = None
        self._beat_at = time.monotonic() + lease_seconds / BEATS_PER_LEASE
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> None:
        """Write ``write`` after all that was submitted before."""
        self._queue.put(write)

    def stop(self) -> None:
        """Write what was submitted, give the lease back, and end."""
        self._queue.put(None)

    def abandon(self) -> None:
        """End without writing what waits, and without giving the lease back, as a process that is killed."""
        self._abandoned = True
        self._queue.put(None)

    # -- the thread -------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopping:
                batch = self._take()
                if batch:
                    self._tell(batch, self._write(batch))
                    if len(batch) >= BUSY:
                        time.sleep(min(LONGEST_PAUSE_SECONDS, len(batch) * PAUSE_SECONDS))
                elif not self._stopping:
                    self._beat()
        except BaseException:
            _log.exception("the thread that writes to %s ended", self._path)
        finally:
            self._end()

    def _take(self) -> list[Write]:
        """All that waits, up to a limit; waits until there is something, or a lease is to be renewed."""
        batch: list[Write] = []
        size = 0
        try:
            write = self._queue.get(timeout=max(0.0, self._beat_at - time.monotonic()))
            while write is not None:
                batch.append(write)
                size += write.size
                if len(batch) >= BATCH or size >= BATCH_BYTES:
                    return batch
                write = self._queue.get_nowait()
            self._stopping = True
        except queue.Empty:
            pass
        return batch

    def _write(self, batch: list[Write]) -> list[Outcome]:
        if self._abandoned or self._failure is not None:
            return [self._refusal() for _ in batch]
        try:
            return self._transaction(batch)
        except _UnknownOutcome as error:
            failure = self._unknown(error.__cause__)
            return [copy.copy(failure) for _ in batch]
        except _NotBegun as error:
            return [translate(error.__cause__ or error, self._path) for _ in batch]
        except Exception as error:
            if len(batch) > 1:
                # One of them may be the cause; the others must not suffer.
                return [outcome for write in batch for outcome in self._write([write])]
            return [translate(error, self._path)]

    def _transaction(self, batch: list[Write]) -> list[Outcome]:
        with self._lock:
            self._begin()
            try:
                if self._owner is not None and not owns(self._connection, self._owner):
                    self._connection.execute("ROLLBACK")
                    return [stale_error(self._owner) for _ in batch]
                rows = Rows(self._connection, [write.journal for write in batch])
                outcomes = [_apply(write, rows) for write in batch]
                rows.flush()
                self._renew()
            except BaseException:
                self._roll_back()
                raise
            self._commit()
        return outcomes

    def _begin(self) -> None:
        try:
            if file_identity(self._path) != self._identity:
                raise OSError("the file was removed or replaced while the store was open")
            begin(self._connection, self._busy_seconds)
            log = file_identity(log_path(self._path))
            if log != (self._log_identity or log):
                self._roll_back()
                raise OSError("the log of the file was removed or replaced while the store was open")
            self._log_identity = log
        except (sqlite3.Error, OSError) as error:
            raise _NotBegun from error

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite does it by itself where the disk is full
            self._connection.execute("ROLLBACK")

    def _commit(self) -> None:
        deadline = time.monotonic() + COMMIT_BUSY_SECONDS
        while True:
            try:
                self._connection.execute("COMMIT")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or not self._connection.in_transaction or time.monotonic() > deadline:
                    raise _UnknownOutcome from error
                time.sleep(0.001)

    def _renew(self) -> None:
        now = time.monotonic()
        if self._owner is not None and now >= self._beat_at:
            renew(self._connection, self._owner, self._lease_seconds)
            self._beat_at = now + self._lease_seconds / BEATS_PER_LEASE

    def _beat(self) -> None:
        """Renew the lease while there is nothing to write, and give free pages back."""
        try:
            if self._owner is not None and self._failure is None:
                self._transaction([])
                self._give_back()
        except _UnknownOutcome as error:
            self._unknown(error.__cause__)
        except Exception as error:
            # An append will meet the same error, and has somebody to tell.
            _log.warning("the lease in %s was not renewed: %s", self._path, error.__cause__ or error)
        self._beat_at = max(self._beat_at, time.monotonic() + self._lease_seconds / BEATS_PER_LEASE)

    def _give_back(self) -> None:
        if self._connection.execute("PRAGMA freelist_count").fetchone()[0] > FREE_PAGES:
            with self._lock:
                # Not execute(), which ends after the first page.
                self._connection.executescript(f"PRAGMA incremental_vacuum({GIVEN_BACK})")

    def _unknown(self, cause: BaseException | None) -> StoreError:
        self._failure = AppendOutcomeUnknownError(
            f"the commit to {self._path} failed, so that nobody can tell what it stored",
            found=f"{type(cause).__name__}: {cause}",
            fix="none is needed where the job restarts: the next attempt reads what was stored",
        )
        return self._failure

    def _refusal(self) -> StoreError:
        return closed_error(
            "the store was closed before this could be written"
            if self._failure is None
            else "the store takes nothing more after a commit of unknown outcome"
        )

    def _tell(self, batch: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
        try:
            self._loop.call_soon_threadsafe(_resolve, [write.future for write in batch], outcomes)
        except RuntimeError:  # the loop is closed: nobody waits
            _log.debug("nobody waits for %d appends", len(batch))

    def _end(self) -> None:
        try:
            if self._owner is not None and not self._abandoned:
                with self._lock:
                    begin(self._connection, self._busy_seconds)
                    release(self._connection, self._owner)
                    self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            _log.warning("the lease in %s was not given back: %s", self._path, error)
        finally:
            self._connection.close()
            try:
                self._loop.call_soon_threadsafe(self._on_end)
            except RuntimeError:
                _log.debug("nobody waits for the end of the store")


def _resolve(futures: Sequence[asyncio.Future[None]], outcomes: Sequence[Outcome]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():  # its caller was cancelled
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
