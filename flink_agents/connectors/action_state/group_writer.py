"""The thread that writes for many who wait: all that waits becomes one batch.

One flush of a disk, or one round trip, serves many appends: while one batch is in flight, the next
one gathers. What a batch is, and where it goes, is told by a subclass.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from flink_agents.api.action_state import closed_error
from flink_agents.api.errors import AppendOutcomeUnknownError, FencedOwnerError, StoreError
from flink_agents.api.logs import bounded_logger
from flink_agents.connectors.action_state.store_metrics import StoreMetrics

_log = bounded_logger("flink_agents.store")

BUSY = 8
PAUSE_SECONDS = 0.0001
"""After a batch of so many the next one is let grow, for so long for each of them: a batch takes the
interpreter from the others several times, for many appends no oftener than for few."""

BEATS_PER_LEASE = 4
"""How often an owner tells that it lives."""

_size_of = attrgetter("size")

Outcome = BaseException | None
OnEnd: TypeAlias = Callable[[Collection[asyncio.Future[None]]], None]


class Pending:
    """Something to write.

    Attributes:
        future: Resolved on its loop; None if nobody waits.
        size: Its bytes, as far as they are known.
    """

    __slots__ = ("future", "size")

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None
        self.size = 0


class Limits(NamedTuple):
    """Of batches.

    Attributes:
        writes: A batch has no more of them.
        size: It takes no more after so many bytes.
        pause_seconds: The longest time for which the next one is let grow.
    """

    writes: int
    size: int
    pause_seconds: float


P = TypeVar("P", bound=Pending)


class GroupWriter(ABC, Generic[P]):
    """A thread that writes batches; it begins with :meth:`start`.

    Args:
        place: Where it writes, for messages.
        limits: Of batches.
        lease_seconds: Length of the owner's lease, which this thread renews.
        loop: Where futures are resolved.
        metrics: Of the store.
        on_end: Called on the loop when the thread has ended, behind all outcomes, with ``waiting``.

    Attributes:
        waiting: Futures of writes of which nobody was told what became of them. Only for the loop's thread.
        ended_by: What the thread did not expect and ended by; None if there was no such thing.
    """

    def __init__(
        self,
        place: str,
        limits: Limits,
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
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def written(self, write: P) -> asyncio.Future[None]:
        """Write ``write`` after all that was submitted before; only for the loop's thread.

        Returns:
            What is to be awaited. A cancelled caller takes it along; the write goes on.
        """
        # The loop's own method would ask to which action the running code belongs, and the store to none.
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        write.future = future
        self.waiting.add(future)
        self.submit(write)
        return future

    def submit(self, write: P) -> None:
        """Write ``write`` after all that was submitted before. For any thread."""
        self._queue.put(write)
        if self.ended_by is not None:
            # The thread may have looked for the last time before this came.
            self._refuse_waiting()

    def stop(self) -> None:
        """Write what was submitted, give the lease back, and end."""
        self._queue.put(None)

    def abandon(self) -> None:
        """End without writing what waits, and without giving the lease back, as a process that is killed."""
        self._abandoned = True
        self._queue.put(None)

    # -- what a subclass tells --------------------------------------------------------

    @abstractmethod
    def _write(self, batch: list[P]) -> list[Outcome]:
        """Write a batch; what became of each of them."""

    @abstractmethod
    def _beat(self) -> None:
        """Renew the lease while there is nothing to write, and note when to do it again; raises nothing."""

    @abstractmethod
    def _finish(self) -> None:
        """Give the lease back unless all was abandoned, and close what was opened; raises nothing."""

    # -- the thread -------------------------------------------------------------------

    def _serve(self) -> None:
        batch: list[P] = []
        try:
            while not self._stopping:
                batch = self._take()
                if batch:
                    self._tell(batch, self._attempt(batch))
                    if len(batch) >= BUSY:
                        time.sleep(min(self._limits.pause_seconds, len(batch) * PAUSE_SECONDS))
                elif not self._stopping:
                    self._beat()
        except BaseException as error:
            _log.exception("the thread that writes to %s ended", self._place)
            self._end_by(error, batch)
        finally:
            try:
                self._finish()
            finally:
                self._call(self._on_end, self.waiting)

    def _end_by(self, error: BaseException, batch: Sequence[P]) -> None:
        """Tell all who wait what ended the thread: nobody knows what of the last batch is stored."""
        self.ended_by = error
        failure = self._unknown(f"the thread that writes to {self._place} ended", error)
        failure.__cause__ = error
        self._tell(batch, [copy.copy(failure) for _ in batch])
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Tell all whose writes wait that nothing is written any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (write := self._queue.get_nowait()) is not None:
                    self._tell([write], [self._refusal()])

    def _take(self) -> list[P]:
        """Return all that waits, up to a limit; waits until there is something, or for the next beat."""
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

    def _attempt(self, batch: list[P]) -> list[Outcome]:
        """Write a batch, unless nothing can be written any more."""
        if self._abandoned or self._failure is not None:
            return [self._refusal() for _ in batch]
        began = time.perf_counter()
        outcomes = self._write(batch)
        self._metrics.appended(len(batch), sum(map(_size_of, batch)), time.perf_counter() - began)
        return outcomes

    def _unknown(self, what: str, cause: BaseException | None) -> StoreError:
        """Return the failure of a write that is stored or not; nothing is written after it."""
        self._metrics.failed()
        self._failure = AppendOutcomeUnknownError(
            f"{what}: nobody can tell what is stored",
            found=f"{type(cause).__name__}: {cause}",
            fix="none is needed where the job restarts: the next attempt reads what was stored",
        )
        return self._failure

    def _refusal(self) -> StoreError:
        if isinstance(self._failure, FencedOwnerError):
            return copy.copy(self._failure)
        if self.ended_by is not None:
            return closed_error(f"the thread that writes to {self._place} ended")
        return closed_error(
            "the store was closed before this could be written"
            if self._failure is None
            else "the store takes nothing more after an append of unknown outcome"
        )

    def _tell(self, writes: Sequence[P], outcomes: Sequence[Outcome]) -> None:
        told: list[tuple[asyncio.Future[None], Outcome]] = []
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.future is not None:
                told.append((write.future, outcome))
        self._call(_resolve, told, self.waiting)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed
            _log.debug("nobody waits for %s any more", self._place)


def _resolve(
    told: Sequence[tuple[asyncio.Future[None], Outcome]], waiting: set[asyncio.Future[None]]
) -> None:
    for future, outcome in told:
        waiting.discard(future)
        if future.done():  # its caller was cancelled
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
