"""Time limits of attempts of actions, which do not count the time that work waits for a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import ActionTimeoutError
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS, Outcome, awaited_outcome

_log = bounded_logger("flink_agents.loop")

T = TypeVar("T")

LEAST_SECONDS = 0.01
"""The shortest time, in seconds, between two checks of how long work has waited for a thread."""


class ThreadWait:
    """Measures the time of work with a deadline that does not count, since no code ran. Thread-safe.

    This is time in which it waited for a thread only, or for durable waits only. While any of its calls is
    executed, its time runs, even if others wait: that call may be the one that hangs.

    Args:
        outer: The counter of the enclosing work, which waits as well; None if there is none.
        seconds_now: Returns the time, in seconds, of the loop whose timers end the work.

    Attributes:
        at_rest: True if it waits for durable waits only.
        expired: True if the deadline has ended the work.
    """

    def __init__(self, outer: ThreadWait | None, seconds_now: Callable[[], float] = time.monotonic) -> None:
        self._outer = outer
        self._seconds_now = seconds_now
        self._lock = threading.Lock()
        self._waiting = self._executed = 0
        self._began = self._seconds_now()
        self.at_rest = self.expired = False
        self._continued: asyncio.Event | None = None
        self._since: float | None = None
        self._seconds = 0.0

    def count(self, waiting: int, executed: int) -> None:
        """Add to the numbers of calls that wait for a thread and that are executed, also of outer work."""
        with self._lock:
            self._waiting += waiting
            self._executed += executed
            self._update()
        if self._outer is not None:
            self._outer.count(waiting, executed)

    def set_at_rest(self, at_rest: bool) -> None:
        """Record whether the work waits for durable waits only. The enclosing work may run meanwhile."""
        if at_rest is not self.at_rest:
            with self._lock:
                self.at_rest = at_rest
                self._update()
            if not at_rest and self._continued is not None:
                self._continued.set()

    async def end_of_rest(self) -> None:
        """Wait until the work does anything else than wait for durable waits."""
        while self.at_rest:
            self._continued = asyncio.Event()
            await self._continued.wait()

    def _update(self) -> None:
        """Start or stop to measure, after a change; with the lock held."""
        only_waits = self.at_rest or (self._waiting > 0 and self._executed == 0)
        if only_waits and self._since is None:
            self._since = self._seconds_now()
        elif not only_waits and self._since is not None:
            self._seconds += self._seconds_now() - self._since
            self._since = None

    @property
    def ran(self) -> float:
        """The time, in seconds, that counts towards the deadline."""
        return self._seconds_now() - self._began - self.seconds

    @property
    def seconds(self) -> float:
        """The time, in seconds, for which the work has only waited."""
        with self._lock:
            return self._seconds + (0.0 if self._since is None else self._seconds_now() - self._since)


def seconds_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the function for a loop's own time in seconds, which no action in replay changes."""
    return getattr(loop, "own_time", loop.time)


thread_wait: ContextVar[ThreadWait | None] = ContextVar("thread_wait", default=None)
"""The counter of the running code's waits for threads; None if it has no deadline."""


@dataclass(frozen=True)
class Deadline:
    """The time limit of some work.

    Attributes:
        what: The work, for messages: such as ``action 'answer'``.
        where: The place of the work in the user's code.
        seconds: The limit in seconds; None for no limit.
    """

    what: str
    where: str
    seconds: float | None

    @classmethod
    def for_action(cls, action: BoundAction) -> Deadline:
        """Return the deadline of each attempt of an action."""
        return cls(f"action {action.name!r}", action.where, action.settings.timeout)


def timed_out(deadline: Deadline, traceback: TracebackType | None = None) -> ActionTimeoutError:
    """Return the error of work that took longer than its deadline.

    Args:
        deadline: The deadline.
        traceback: The traceback of the place where the work waited; None if it is not known.
    """
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
    """Return the result of ``coroutine``, which is cancelled at its deadline.

    Args:
        deadline: The deadline.
        coroutine: The coroutine.
        seconds: The time that is left of the deadline, in seconds; None for all of it.
        wait: Measures the time that ``coroutine`` waits for threads; None if it has no separate context.

    Raises:
        ActionTimeoutError: It took longer. It was cancelled, and has ended or is abandoned.
    """
    loop = asyncio.get_running_loop()
    # The time of the loop, whose timers end the waits below.
    seconds_now = seconds_of(loop)
    wait = wait or ThreadWait(thread_wait.get(), seconds_now)
    whole = deadline.seconds if seconds is None else seconds
    task = loop.create_task(_await_measured(coroutine, wait))
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
                await _wait_while_resting(task, wait)
            remaining_seconds = max(remaining_seconds, LEAST_SECONDS)
    except asyncio.CancelledError:
        await _abandon(task, coroutine, deadline)
        raise
    wait.expired = True
    raise timed_out(deadline, await _cancel(task, deadline))


async def _wait_while_resting(task: asyncio.Task[Any], wait: ThreadWait) -> None:
    """Wait until the task of work that rests in durable waits continues, or has ended."""
    end_of_rest = asyncio.get_running_loop().create_task(wait.end_of_rest())
    try:
        await asyncio.wait({task, end_of_rest}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        end_of_rest.cancel()


async def _abandon(task: asyncio.Task[Any], coroutine: Awaitable[Any], deadline: Deadline) -> None:
    """End the task of a coroutine whose result is no longer wanted, as far as it can be ended."""
    if task.done():
        _retrieve(task)
    else:
        await _cancel(task, deadline)
    if task.done() and inspect.iscoroutine(coroutine):
        # A task that is cancelled before its first step has not awaited it.
        coroutine.close()


async def _await_measured(coroutine: Awaitable[Any], wait: ThreadWait) -> Outcome:
    """Return the outcome of ``coroutine``, whose waits for threads ``wait`` measures."""
    thread_wait.set(wait)
    return await awaited_outcome(lambda: coroutine)


async def _cancel(task: asyncio.Task[Any], deadline: Deadline) -> TracebackType | None:
    """Cancel ``task``, wait for its end, and return the traceback of where it was; None if there is none.

    A task that does not end within ``CANCEL_SECONDS`` is abandoned, and logged.
    """
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
