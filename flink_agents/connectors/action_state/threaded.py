"""The common part of stores that read in one thread and write in another."""

from __future__ import annotations

import asyncio
import functools
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from typing_extensions import override

from flink_agents.api.action_state import ActionStateStore, Owner, closed_error
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import AppendOutcomeUnknownError
from flink_agents.connectors.action_state.group_writer import GroupWriter, OnEnd, PendingWrite, StoreMetrics

_log = bounded_logger("flink_agents.store")

T = TypeVar("T")
P = TypeVar("P", bound=PendingWrite)


class ThreadedStore(ActionStateStore, Generic[P]):
    """A store with a thread that reads, and a :class:`GroupWriter`. It is opened once.

    Args:
        place: Where it stores records, such as a path or a topic, for errors.
        close_seconds: Seconds that :meth:`close` waits for each thread.

    Attributes:
        measured: Counts and durations of reads and writes.
    """

    def __init__(self, place: str, close_seconds: float) -> None:
        self.measured = StoreMetrics()
        self._place = place
        self._close_seconds = close_seconds
        self._owner: Owner | None = None
        self._writer: GroupWriter[P] | None = None
        self._closed = False
        self._closers: Sequence[Callable[[], object]] = ()
        # One thread: the reading side is not thread-safe.
        self._threads = ThreadPoolExecutor(1, "store-reader")

    # -- open and close ---------------------------------------------------------------

    @override
    async def open(self, owner: Owner | None) -> None:
        if self._writer is not None or self._closed:
            raise closed_error("a store is opened once")
        opened: list[Callable[[], object]] = []
        try:
            create_writer, closers = await self._connect(owner, opened)
        except BaseException:
            self._closed = True
            # In the reader thread, which may still be opening something.
            self._threads.submit(_close_all, opened)
            self._threads.shutdown(wait=False)
            raise
        self._owner = owner
        self._closers = closers
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Without a reference to the store, which could not be garbage-collected otherwise.
        on_end = functools.partial(_fail_pending, self._ended, self._place, self._close_seconds)
        self._writer = create_writer(on_end)
        # A store that is garbage-collected must not keep its lease.
        self._forgotten = weakref.finalize(self, _abandon_threads, self._writer, closers, self._threads)
        self._forgotten.atexit = False
        self._writer.start()

    @abstractmethod
    async def _connect(
        self, owner: Owner | None, opened: list[Callable[[], object]]
    ) -> tuple[Callable[[OnEnd], GroupWriter[P]], list[Callable[[], object]]]:
        """Connect, and become the owner that may append; may wait for the lease of another job.

        Args:
            owner: The owner that appends; None for a reader.
            opened: Gets the function that closes each resource as soon as it is opened, in case a later step
                fails.

        Returns:
            A function that creates the writer from its ``on_end``, and the functions that close the resources
            of
            the reader thread.
        """

    @override
    async def close(self) -> None:
        if self._writer is None or self._closed:
            return
        self._closed = True
        self._forgotten.detach()
        self._writer.stop()
        await asyncio.wait({self._ended}, timeout=self._close_seconds)
        _fail_pending(self._ended, self._place, self._close_seconds, self._writer.waiting)
        closed = [asyncio.wrap_future(future) for future in _close_in(self._threads, self._closers)]
        if closed:
            await asyncio.wait(closed, timeout=self._close_seconds)

    def kill(self) -> None:
        """End like a killed process: pending writes are lost, and another job has to wait for the lease."""
        self._require_open()
        self._closed = True
        self._forgotten()

    def _require_open(self) -> GroupWriter[P]:
        if self._writer is None or self._closed:
            raise closed_error()
        if self._ended.done():
            cause = self._writer.ended_by
            raise closed_error(f"the thread that writes to {self._place} has ended: {cause!r}") from cause
        return self._writer

    def _require_owned(self) -> GroupWriter[P]:
        writer = self._require_open()
        if self._owner is None:
            raise closed_error("the store was opened without an owner")
        return writer

    # -- the threads ------------------------------------------------------------------

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._run_on_reader(call)

    def _run_on_reader(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a call of a function on the reader thread, and return the future of its result."""
        try:
            return asyncio.get_running_loop().run_in_executor(self._threads, call)
        except RuntimeError as error:  # The store was closed while its caller waited.
            raise closed_error() from error


def _close_all(opened: Sequence[Callable[[], object]]) -> None:
    for close in opened:
        try:
            close()
        except Exception as error:  # The others still have to be closed.
            _log.warning("resources of a store were not closed cleanly: %s", error)


def _close_in(reader: ThreadPoolExecutor, closers: Collection[Callable[[], object]]) -> list[Any]:
    """Queue the closing functions on the reader thread, let it end after them, and return their futures."""
    closed = [reader.submit(close) for close in closers]
    reader.shutdown(wait=False)
    return closed


def _abandon_threads(
    writer: GroupWriter[Any], closers: Collection[Callable[[], object]], reader: ThreadPoolExecutor
) -> None:
    """End all reader as if the process was killed, without waiting for them."""
    writer.abandon()
    _close_in(reader, closers)


def _fail_pending(
    ended: asyncio.Future[None], place: str, seconds: float, waiting: Collection[asyncio.Future[None]]
) -> None:
    """Fail the appends that got no outcome from the writer thread, and resolve ``ended``.

    Args:
        ended: Resolved when the writer has ended.
        place: Where the store is, for the error.
        seconds: Seconds that the store waited, for the error.
        waiting: The futures of appends without an outcome.
    """
    for future in [waiting_future for waiting_future in waiting if not waiting_future.done()]:
        future.set_exception(
            AppendOutcomeUnknownError(
                f"{place} was closed while an append was in flight, and did not answer",
                expected=f"an answer within {seconds:g} s",
            )
        )
    if not ended.done():
        ended.set_result(None)
