"""Carries the outcome of code from one thread or task to another, whatever it raised.

asyncio does not pass on every exception: a future rejects ``StopIteration``, so that its
waiters would wait for ever, and a task that raises ``SystemExit`` or ``KeyboardInterrupt``
stops its loop. So an outcome travels as a value, and becomes an exception again at its destination.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any


class StoppedIteration(RuntimeError):
    """Replaces an exception that a future cannot carry to the coroutine that awaits it.

    A coroutine cannot raise ``StopIteration``: Python replaces it in the same way. ``GeneratorExit`` would
    close the coroutine that awaits the future.

    Args:
        stop: The exception.

    Attributes:
        stop: The exception.
    """

    def __init__(self, stop: BaseException) -> None:
        super().__init__(f"coroutine raised {type(stop).__name__}")
        self.stop = stop
        self.__cause__ = stop
        self.__traceback__ = stop.__traceback__


def carried(error: BaseException) -> BaseException:
    """Return ``error`` in a form that a coroutine or a future can raise."""
    return StoppedIteration(error) if isinstance(error, StopIteration) else error


def thrown(error: BaseException) -> BaseException:
    """Return the original exception of ``error``, which came through a coroutine."""
    return error.stop if isinstance(error, StoppedIteration) else error


class Outcome:
    """The outcome of code.

    Args:
        value: Its result.
        error: Its exception, or None.
    """

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    @property
    def raised(self) -> BaseException | None:
        """Its exception, or None."""
        return self._error

    def result(self) -> Any:
        """Return the result; call it once.

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
        """Return the result, for one of several callers.

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
    """Await the result of ``make`` in a separate task, which contains any exit that it raises.

    The task creates its awaitable itself, so that a task cancelled before its first step leaves no
    coroutine that was never awaited.
    """
    try:
        return Outcome(await make())
    except (SystemExit, KeyboardInterrupt) as error:
        return Outcome(error=error)


def is_close(error: BaseException) -> bool:
    """True if ``error`` closes an abandoned coroutine, instead of being raised in it."""
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
    """True if ``error`` cancels the running task, instead of being raised by its awaitable."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > own_cancellations.get()


async def end_own_cancellations(count: int) -> None:
    """Let cancellations of the running task that its own code has requested take effect here, and no longer.

    Args:
        count: The number of requests.

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
