"""Cancels attempts of actions that take too long, and owns the threads of ``def`` actions."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import ActionTimeoutError
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS, hand_to
from flink_agents.runtime.concurrency.outcomes import Outcome, awaited_outcome
from flink_agents.runtime.concurrency.threads import ThreadWait, seconds_of, thread_wait

_log = bounded_logger("flink_agents.loop")

T = TypeVar("T")

LEAST_SECONDS = 0.01
"""Minimum time between two checks of the time that work has waited for a thread."""


@dataclass(frozen=True)
class Deadline:
    """The time limit of some work.

    Attributes:
        what: Name of the work, for messages.
        where: Its place in the user's code.
        seconds: The limit; None for no limit.
    """

    what: str
    where: str
    seconds: float | None

    @classmethod
    def of(cls, action: BoundAction) -> Deadline:
        """Return the deadline of each attempt of an action."""
        return cls(f"action {action.name!r}", action.where, action.settings.timeout)


def timed_out(deadline: Deadline, traceback: TracebackType | None = None) -> ActionTimeoutError:
    """Return the error of an attempt that took too long; ``traceback`` has the place of its wait."""
    seconds = deadline.seconds or 0.0
    return ActionTimeoutError(
        f"{deadline.what} took longer than its timeout",
        seconds=seconds,
        expected=f"an end within {seconds:g} s",
        fix="raise timeout=, or set a shorter timeout of the call that waits",
    ).with_traceback(traceback)


async def within(
    deadline: Deadline,
    coroutine: Awaitable[T],
    seconds: float | None = None,
    wait: ThreadWait | None = None,
) -> T:
    """Await ``coroutine`` until its deadline.

    Args:
        deadline: The deadline.
        coroutine: The coroutine.
        seconds: The rest of the deadline's time; None for all of it.
        wait: Measures the time that ``coroutine`` waits for threads; None if it has no separate context.

    Raises:
        ActionTimeoutError: It took longer. It was cancelled, and has ended or is abandoned.
    """
    loop = asyncio.get_running_loop()
    # The time of the loop, whose timers end the waits below.
    seconds_now = seconds_of(loop)
    wait = wait or ThreadWait(thread_wait.get(), seconds_now)
    whole = deadline.seconds if seconds is None else seconds
    task = loop.create_task(_awaited(coroutine, wait))
    started = seconds_now()
    remaining_seconds = whole
    try:
        while True:
            # Not `wait_for`, which would wait without a limit for a task that ignores its cancellation.
            await asyncio.wait({task}, timeout=remaining_seconds)
            if task.done() or whole is None:
                return task.result().result()
            # The time for which it has waited for a thread, or durably, does not count.
            remaining_seconds = whole + wait.seconds - (seconds_now() - started)
            if remaining_seconds <= 0:
                break
            if wait.at_rest:
                # Without a timer: it may rest for a month.
                await _rested(task, wait)
            remaining_seconds = max(remaining_seconds, LEAST_SECONDS)
    except asyncio.CancelledError:
        if task.done():
            _retrieve(task)
        else:
            await _cancel(task, deadline)
        if task.done() and inspect.iscoroutine(coroutine):
            # A task that is cancelled before its first step has not awaited it.
            coroutine.close()
        raise
    wait.expired = True
    raise timed_out(deadline, await _cancel(task, deadline))


async def _rested(task: asyncio.Task[Any], wait: ThreadWait) -> None:
    """Wait until work continues after durable waits, or has ended."""
    rest = asyncio.get_running_loop().create_task(wait.end_of_rest())
    try:
        await asyncio.wait({task, rest}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        rest.cancel()


async def _awaited(coroutine: Awaitable[Any], wait: ThreadWait) -> Outcome:
    thread_wait.set(wait)
    return await awaited_outcome(lambda: coroutine)


async def _cancel(task: asyncio.Task[Any], deadline: Deadline) -> TracebackType | None:
    """Cancel ``task``, wait for its end, and return the traceback of its last position."""
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not task.done():
        _log.warning("%s: %s keeps running although it was cancelled", deadline.where, deadline.what)
        task.add_done_callback(_retrieve)
        return None
    try:
        task.result()
    except BaseException as error:
        # Its clean-up may have raised anything: the timeout is what counts.
        return error.__traceback__
    return None


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that is no longer awaited, so that asyncio does not complain."""
    if not task.cancelled():
        task.exception()


class WorkerPool:
    """Threads for ``def`` actions.

    Args:
        size: Number of threads. A thread of an action that has timed out does not count.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lost = 0
        self._active = 0
        self._changed = threading.Condition()
        self._closed = False
        self._threads = self._make()

    async def run(self, function: Callable[[], None]) -> None:
        """Call ``function`` in a thread; raise its exception, as far as a coroutine can."""
        loop = asyncio.get_running_loop()
        error = await loop.run_in_executor(self._threads, self._call, function)
        if error is not None:
            error.result()

    async def run_within(self, function: Callable[[], None], deadline: Deadline) -> None:
        """Call ``function`` in a thread, and wait for it until ``deadline``.

        The time counts from its start there. A thread cannot be stopped: a function that
        runs longer is abandoned, and another thread replaces it.

        Raises:
            ActionTimeoutError: It took longer.
        """
        loop = asyncio.get_running_loop()
        started = loop.create_future()

        def call() -> Outcome | None:
            if not hand_to(loop, started.set_result, None):
                raise RuntimeError("the agent loop is closed, so nothing can start")
            return self._call(function)

        future = loop.run_in_executor(self._threads, call)
        try:
            await asyncio.wait({started, future}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({future}, timeout=deadline.seconds)
            if future.done():
                if (error := future.result()) is not None:
                    error.result()
                return
        finally:
            # An ended call is not affected; the result of another one is ignored.
            future.cancel()
        self._lose_one()
        _log.warning("%s: %s keeps running after its timeout", deadline.where, deadline.what)
        raise timed_out(deadline)

    def close(self) -> None:
        """Start no more calls."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def join(self, seconds: float) -> None:
        """Wait until all calls have ended, at most ``seconds``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._active == 0, seconds):
                _log.warning(
                    "%d calls of def actions keep running after the end of their attempt", self._active
                )

    def _call(self, function: Callable[[], None]) -> Outcome | None:
        """Call ``function`` in a thread of the pool; returns what it raised, or None."""
        with self._changed:
            self._active += 1
        try:
            function()
        except BaseException as error:
            # A future cannot carry every exception.
            return Outcome(error=error)
        else:
            return None
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def _lose_one(self) -> None:
        self._lost += 1
        if self._lost >= self._size and not self._closed:
            # All of its threads may be taken: waiting calls have to wait, others need not.
            self._lost = 0
            self._threads.shutdown(wait=False)
            self._threads = self._make()

    def _make(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._size, "agent-pool")
