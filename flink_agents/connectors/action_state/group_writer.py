"""The writer thread of a store: it combines all pending writes into one batch.

One flush of a disk, or one round trip, serves many appends: while one batch is in flight, the next
one gathers. A subclass defines a batch and its destination.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from flink_agents.api.action_state import closed_error
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import AppendOutcomeUnknownError, FencedOwnerError, StoreError

_log = bounded_logger("flink_agents.store")

BUSY = 8
PAUSE_SECONDS = 0.0001
"""After each batch, the writer waits this long per entry so that the next batch can grow.

A batch takes the interpreter from other threads several times, and does so no more often for many appends
than for few.
"""

BEATS_PER_LEASE = 4
"""Heartbeats per lease: an owner that stops sending them counts as dead."""

WINDOW = 512
"""The number of turns over which the median is taken."""

_size_of = attrgetter("size")

Outcome = BaseException | None
OnEnd: TypeAlias = Callable[[Collection[asyncio.Future[None]]], None]


class StoreMetrics:
    """Counts and durations of the reads and writes of a store. Thread-safe.

    Attributes:
        appends: Number of appends and removals, written or rejected.
        data_bytes: Size of their encoded data in bytes.
        errors: Number of failures of the file or the brokers.
        rebuild_records: Number of records that were read.
        rebuild_seconds: Seconds spent reading.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self.appends = 0
        self.data_bytes = 0
        self.errors = 0
        self.rebuild_records = 0
        self.rebuild_seconds = 0.0

    def count_appends(self, count: int, data_bytes: int, seconds: float) -> None:
        """Count the batch of one turn of the writer.

        Args:
            count: Number of its appends and removals.
            data_bytes: Size of their encoded data in bytes.
            seconds: Duration of the turn in seconds.
        """
        with self._lock:
            self.appends += count
            self.data_bytes += data_bytes
            self._turns.append((count, seconds))

    def count_failure(self) -> None:
        """Count a failure of the file or the brokers."""
        with self._lock:
            self.errors += 1

    def values(self) -> dict[str, int]:
        """Return all figures by name: counts, medians over the last turns, and times in microseconds."""
        with self._lock:
            counts = sorted(count for count, _ in self._turns)
            times = sorted(seconds for _, seconds in self._turns)
        return {
            "appends": self.appends,
            "append_bytes": self.data_bytes,
            "append_errors": self.errors,
            "append_batch": counts[len(counts) // 2] if counts else 0,
            "append_micros": int(times[len(times) // 2] * 1e6) if times else 0,
            "rebuild_records": self.rebuild_records,
            "rebuild_millis": int(self.rebuild_seconds * 1e3),
        }


class PendingWrite:
    """A write that waits for its batch.

    Attributes:
        future: Resolved on the event loop with the outcome; None if no caller waits.
        size: Size of its encoded data in bytes; 0 as long as it is not known.
    """

    __slots__ = ("future", "size")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None
        self.size = 0


class BatchLimits(NamedTuple):
    """Limits of a batch.

    Attributes:
        writes: Maximum number of writes.
        size: A batch takes no further write once it has this many bytes.
        pause_seconds: Longest pause after a batch, in which the next one grows.
    """

    writes: int
    size: int
    pause_seconds: float


P = TypeVar("P", bound=PendingWrite)


class GroupWriter(ABC, Generic[P]):
    """A thread that writes batches; :meth:`start` starts it.

    Args:
        place: Where it writes, such as a path or a topic, for errors.
        limits: Limits of a batch.
        lease_seconds: Length of the owner's lease in seconds. This thread renews it.
        loop: The event loop on which futures are resolved.
        metrics: Receives counts and durations of the writes.
        on_end: Called on the loop with ``waiting``, after the thread has ended.

    Attributes:
        waiting: Futures of writes without an outcome. Only the loop's thread may use it.
        ended_by: The unexpected exception that ended the thread; None if there was none.
    """

    def __init__(
        self,
        place: str,
        limits: BatchLimits,
        lease_seconds: float,
        loop: asyncio.AbstractEventLoop,
        metrics: StoreMetrics,
        on_end: OnEnd,
    ) -> None:
        self._place = place
        self._limits = limits
        self._loop = loop
        self._metrics = metrics
        self._on_end = on_end
        self.waiting: set[asyncio.Future[None]] = set()
        self.ended_by: BaseException | None = None
        self._queue: queue.SimpleQueue[P | None] = queue.SimpleQueue()
        self._stopping = False
        self._abandoned = False
        self._failure: StoreError | None = None
        self._beat_seconds = lease_seconds / BEATS_PER_LEASE
        self._beat_at = time.monotonic() + self._beat_seconds
        self._thread = threading.Thread(target=self._write_until_end, name="store-writer", daemon=True)

    def start(self) -> None:
        """Start the thread, which writes from now on."""
        self._thread.start()

    def submit_with_future(self, write: P) -> asyncio.Future[None]:
        """Queue a write behind all earlier ones. Only the loop's thread may call this.

        Returns:
            The future of its outcome. If its caller is cancelled, the write continues.
        """
        # The loop's own method would look for the action that the code belongs to; a store has none.
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        if self.ended_by is not None:
            # The loop will hear of the end, and fail what waits then as if it might be stored.
            future.set_exception(self._rejection_error())
            return future
        write.future = future
        self.waiting.add(future)
        self._queue.put(write)
        if self.ended_by is not None:
            # The thread may have checked its queue for the last time before this arrived.
            self._refuse_waiting()
        return future

    def submit(self, write: P) -> None:
        """Queue a write behind all earlier ones, without waiting for its outcome. For any thread."""
        self._queue.put(write)
        if self.ended_by is not None:
            # The thread may have checked its queue for the last time before this arrived.
            self._refuse_waiting()

    def stop(self) -> None:
        """Let the thread write everything queued, release the lease, and end. Does not wait."""
        self._queue.put(None)

    def abandon(self) -> None:
        """Let the thread end like a killed process: queued writes are lost, and the lease is not released."""
        self._abandoned = True
        self._queue.put(None)

    # -- for subclasses ------------------------------------------------------------------

    @abstractmethod
    def _write_batch(self, batch: list[P]) -> list[Outcome]:
        """Write a batch. Return the error of each write, or None if it is stored."""

    @abstractmethod
    def _renew_idle_lease(self) -> None:
        """Renew the lease while no writes are queued, and set the time of the next renewal. Never raises."""

    @abstractmethod
    def _close_resources(self) -> None:
        """Release the lease unless the writer was abandoned, and close all resources. Never raises."""

    # -- the thread -------------------------------------------------------------------

    def _write_until_end(self) -> None:
        batch: list[P] = []
        try:
            while not self._stopping:
                batch = self._collect_batch()
                if batch:
                    self._resolve_writes(batch, self._write_unless_ended(batch))
                    if len(batch) >= BUSY:
                        time.sleep(min(self._limits.pause_seconds, len(batch) * PAUSE_SECONDS))
                elif not self._stopping:
                    self._renew_idle_lease()
        except BaseException as error:
            _log.exception("the thread that writes to %s ended", self._place)
            self._end_by(error, batch)
        finally:
            try:
                self._close_resources()
            finally:
                self._call_on_loop(self._on_end, self.waiting)

    def _end_by(self, error: BaseException, batch: Sequence[P]) -> None:
        """Fail all queued writes after an unexpected exception; those of the last batch may be stored."""
        self.ended_by = error
        failure = self._unknown_write_error(f"the thread that writes to {self._place} ended", error)
        failure.__cause__ = error
        self._resolve_writes(batch, [copy.copy(failure) for _ in batch])
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Fail all queued writes: nothing is written any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (write := self._queue.get_nowait()) is not None:
                    self._resolve_writes([write], [self._rejection_error()])

    def _collect_batch(self) -> list[P]:
        """Return all queued writes, up to the limits; wait for one, at most until a heartbeat is due."""
        batch: list[P] = []
        size = 0
        try:
            write = self._queue.get(timeout=max(0.0, self._beat_at - time.monotonic()))
            while write is not None:
                batch.append(write)
                size += write.size
                if len(batch) >= self._limits.writes or size >= self._limits.size:
                    return batch
                write = self._queue.get_nowait()
            self._stopping = True
        except queue.Empty:
            pass
        return batch

    def _write_unless_ended(self, batch: list[P]) -> list[Outcome]:
        """Write a batch, or reject its writes if the writer was abandoned or has failed."""
        if self._abandoned or self._failure is not None:
            return [self._rejection_error() for _ in batch]
        began = time.perf_counter()
        outcomes = self._write_batch(batch)
        self._metrics.count_appends(len(batch), sum(map(_size_of, batch)), time.perf_counter() - began)
        return outcomes

    def _unknown_write_error(self, what: str, cause: BaseException | None) -> StoreError:
        """Return the error for writes that may be stored or not, and write nothing after it."""
        self._metrics.count_failure()
        self._failure = AppendOutcomeUnknownError(
            f"{what}: it is unknown which records are stored",
            found=f"{type(cause).__name__}: {cause}",
            fix="none, if the job restarts: the next attempt reads the stored records",
        )
        return self._failure

    def _rejection_error(self) -> StoreError:
        if isinstance(self._failure, FencedOwnerError):
            return copy.copy(self._failure)
        if self.ended_by is not None:
            return closed_error(f"the thread that writes to {self._place} ended")
        return closed_error(
            "the store was closed before this could be written"
            if self._failure is None
            else "the store takes nothing more after an append of unknown outcome"
        )

    def _resolve_writes(self, writes: Sequence[P], outcomes: Sequence[Outcome]) -> None:
        awaited: list[tuple[asyncio.Future[None], Outcome]] = []
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.future is not None:
                awaited.append((write.future, outcome))
        try:
            self._loop.call_soon_threadsafe(_resolve_futures, awaited, self.waiting)
        except RuntimeError:  # the loop is closed
            _log.debug("the caller of %s no longer waits", self._place)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed
            _log.debug("the caller of %s no longer waits", self._place)


def _resolve_futures(
    outcomes: Sequence[tuple[asyncio.Future[None], Outcome]], waiting: set[asyncio.Future[None]]
) -> None:
    for future, outcome in outcomes:
        waiting.discard(future)
        if future.done():  # its caller was cancelled
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
