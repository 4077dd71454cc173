"""The bridge between the agent loop, Flink's thread and the threads of actions, and what passes it.

Flink's thread and the threads of actions pass functions and coroutines to the loop, and wait for the
results. No wait is endless: a waiting thread checks regularly whether the task attempt is over,
and cancelled work gets a limited time to end. All of these times are defined here.

asyncio does not pass on every exception: a future rejects ``StopIteration``, so that its
waiters would wait for ever, and a task that raises ``SystemExit`` or ``KeyboardInterrupt``
stops its loop. So an outcome travels as a value, and becomes an exception again at its destination.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent import futures
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, TypeVar

FLINK_SLICE_SECONDS = 0.05
"""The longest wait of Flink's thread, in seconds, before it checks if the task was cancelled."""

THREAD_SLICE_SECONDS = 0.1
"""The longest wait of an action's thread, in seconds, before it checks if the task attempt is over."""

CANCEL_SECONDS = 5.0
"""The time, in seconds, within which a cancelled action, task or call has to end."""

CLIENT_CLOSE_SECONDS = 3.0
"""The time, in seconds, for which the end of a task attempt waits for clients to close."""

WATCH_JOIN_SECONDS = 5.0
"""The time, in seconds, for which the end of the loop waits for the watchdog, which may be logging."""

T = TypeVar("T")


# -- outcomes ------------------------------------------------------------------------


class StoppedIteration(RuntimeError):
    """Replaces an exception that a future cannot carry to the coroutine that awaits it.

    A coroutine cannot raise ``StopIteration``: Python replaces it in the same way. ``GeneratorExit`` would
    close the coroutine that awaits the future.

    Args:
        stop: The replaced exception.

    Attributes:
        stop: The replaced exception.
    """

    def __init__(self, stop: BaseException) -> None:
        super().__init__(f"coroutine raised {type(stop).__name__}")
        self.stop = stop
        self.__cause__ = stop
        self.__traceback__ = stop.__traceback__


def carried(error: BaseException) -> BaseException:
    """Return ``error`` in a form that a coroutine or a future can raise: mostly ``error`` itself."""
    return StoppedIteration(error) if isinstance(error, StopIteration) else error


def thrown(error: BaseException) -> BaseException:
    """Return the exception that :func:`carried` got, for an ``error`` that came through a coroutine."""
    return error.stop if isinstance(error, StoppedIteration) else error


class Outcome:
    """The outcome of executed code: its result, or the exception that it raised.

    Args:
        value: The result.
        error: The exception; None if the code has returned.
    """

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    @property
    def raised(self) -> BaseException | None:
        """The exception that the code raised, or None."""
        return self._error

    def result(self) -> Any:
        """Return the result or raise the exception; call it once, since it drops the exception.

        Raises:
            BaseException: The exception, as far as a coroutine can raise it.
        """
        # An exception refers to the frames that it passes, and so to this object: this avoids a cycle.
        error = self._error
        self._error = None
        if error is None:
            return self._value
        try:
            raise carried(error)
        finally:
            del error

    def peek(self) -> Any:
        """Return the result or raise the exception; it may be called several times.

        Raises:
            BaseException: The exception, as far as a coroutine can raise it.
        """
        return Outcome(self._value, self._error).result()


def outcome_of(function: Callable[[], Any]) -> Outcome:
    """Call ``function`` and return its outcome."""
    try:
        return Outcome(function())
    except BaseException as error:
        return Outcome(error=error)


async def awaited_outcome(make: Callable[[], Awaitable[Any]]) -> Outcome:
    """Await the result of ``make``, and return its outcome if it returns or exits. For a separate task.

    ``SystemExit`` and ``KeyboardInterrupt`` would stop the loop. Other exceptions are raised.

    The task creates its awaitable itself, so that a task cancelled before its first step leaves no
    coroutine that was never awaited.
    """
    try:
        return Outcome(await make())
    except (SystemExit, KeyboardInterrupt) as error:
        return Outcome(error=error)


def is_close(error: BaseException) -> bool:
    """Return True if ``error`` closes an abandoned coroutine: Python raises it outside of any loop."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


own_cancellations: ContextVar[int] = ContextVar("flink_agents_own_cancellations", default=0)
"""The number of times that a durable function cancelled the task that executes it; in its context."""


def cancelled_from_outside(error: BaseException) -> bool:
    """Return True if ``error`` cancels the running task, instead of coming from what the task awaits."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > own_cancellations.get()


async def end_own_cancellations(count: int) -> None:
    """Let cancellations of the running task by its own code take effect here, and withdraw them.

    Args:
        count: The number of cancellations that the code has requested.

    Raises:
        asyncio.CancelledError: The task was cancelled from outside, too.
    """
    with suppress(asyncio.CancelledError):
        # A request that no await has met yet is met by this one.
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    for _ in range(count):
        task.uncancel()
    if task.cancelling():
        raise asyncio.CancelledError


# -- the bridge ----------------------------------------------------------------------


def hand_to(
    loop: asyncio.AbstractEventLoop,
    function: Callable[..., object],
    *args: Any,
    context: Context | None = None,
) -> bool:
    """Let ``loop`` call a function, from any thread; return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args, context=context)
    except RuntimeError:
        return False
    return True


class Errands:
    """A queue of functions that the loop wants a waiting thread to call.

    Each returns True if the wait is over. Any thread may add one with ``put``.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], bool]] = queue.SimpleQueue()
        self.put = self._queue.put

    def do_until(self, is_over: Callable[[], bool]) -> None:
        """Call the functions, in order, until one returns True. Blocks the thread of an action.

        Args:
            is_over: Returns True if the task attempt is over.

        Raises:
            asyncio.CancelledError: The task attempt is over.
        """
        while True:
            try:
                if self._queue.get(timeout=THREAD_SLICE_SECONDS)():
                    return
            except queue.Empty:
                if is_over():
                    # The loop has stopped, and will not answer.
                    raise asyncio.CancelledError from None


class Bridge:
    """Passes calls and results between one agent loop and other threads.

    Args:
        loop: The agent loop.
        seconds: Returns the time, in seconds, that durations are measured with.

    Attributes:
        loop: The agent loop.
        hand: Lets the loop call a function; returns False if the loop is closed.
        seconds: Returns the time, in seconds, that durations are measured with.
        closed: True if the task attempt is over, so that threads of actions stop waiting. Any thread may
            read it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.loop = loop
        self.hand: Callable[..., bool] = partial(hand_to, loop)
        self.seconds = seconds
        self.closed = False
        self._progress = threading.Condition()
        self._waited_for: Callable[[], bool] | None = None

    # -- to the loop ------------------------------------------------------------------

    def call_on_loop(self, question: Coroutine[Any, Any, T]) -> futures.Future[T]:
        """Run a coroutine on the loop, from any thread; return a future of its result.

        If the loop is closed, the future is cancelled.
        """
        try:
            return asyncio.run_coroutine_threadsafe(question, self.loop)
        except RuntimeError:
            question.close()
            cancelled_future: futures.Future[T] = futures.Future()
            cancelled_future.cancel()
            return cancelled_future

    def answer(self, question: Coroutine[Any, Any, T], check: Callable[[], None]) -> T:
        """Run a coroutine on the loop, and block Flink's thread until it ends; return its result.

        Args:
            question: The coroutine.
            check: Called every 50 ms; ends the wait by raising.
        """
        future = self.call_on_loop(question)
        # Not with the timeout of result(): the question may raise such an error itself.
        while not futures.wait([future], FLINK_SLICE_SECONDS).done:
            check()
        return future.result()

    def wait_for(self, make: Callable[[], Awaitable[Any]], errands: Errands | None = None) -> Any:
        """Await the result of ``make`` on the loop, while the thread of an action blocks; return the result.

        Args:
            make: Creates the awaitable; called on the loop.
            errands: Functions that the blocked thread calls meanwhile; None for none.

        Raises:
            asyncio.CancelledError: The task attempt is over.
        """
        errands = errands or Errands()
        ended: list[asyncio.Task[Outcome]] = []

        def end(task: asyncio.Task[Outcome]) -> None:
            ended.append(task)
            errands.put(lambda: True)

        def begin() -> None:
            # The coroutine is created on the loop. If the loop is closed, there is none to warn about.
            self.loop.create_task(awaited_outcome(make)).add_done_callback(end)

        if not self.hand(begin):
            raise asyncio.CancelledError
        errands.do_until(lambda: self.closed)
        try:
            return ended[0].result().result()
        except StoppedIteration as stopped:
            # The thread is not a coroutine, and can raise it.
            raise stopped.stop from stopped.stop.__cause__

    # -- to Flink's thread ------------------------------------------------------------

    def notify(self) -> None:
        """Let Flink's thread check the condition that it waits for, if it does. For the loop's thread."""
        # A waiting thread announces its wait before it checks, so that one of the two sees the other's
        # change.
        if self._waited_for:
            with self._progress:
                self._progress.notify_all()

    def wait_for_progress(self, until: Callable[[], bool], seconds: float) -> bool:
        """Block Flink's thread until a condition holds, or a timeout is over.

        Args:
            until: Returns True if the condition holds; called again after each :meth:`notify`.
            seconds: The timeout.

        Returns:
            True if the condition holds, False after the timeout.
        """
        with self._progress:
            # Before the condition is checked, see `notify`.
            self._waited_for = until
            try:
                return self._progress.wait_for(until, seconds)
            finally:
                self._waited_for = None

    def act_meanwhile(self, act: Callable[[], T]) -> T | None:
        """Call ``act`` while Flink's thread is blocked by an unmet condition; return None if it is not.

        Only for tests, which move the time while both threads have nothing to do.
        """
        with self._progress:
            if self._waited_for is None or self._waited_for():
                return None
            return act()
