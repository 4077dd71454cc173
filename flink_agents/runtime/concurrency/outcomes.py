"""Carries how code ended from one thread or task to another, whatever it raised.

asyncio does not let every exception pass: a future refuses ``StopIteration``, so that whoever
waits for it would wait for ever, and a task that raises ``SystemExit`` or ``KeyboardInterrupt``
stops its loop. So an end travels as a value, and becomes an exception again where it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class StoppedIteration(RuntimeError):
    """Stands for a ``StopIteration`` in coroutines, which cannot raise it; Python does the same.

    Args:
        stop: The exception.

    Attributes:
        stop: The exception.
    """

    def __init__(self, stop: StopIteration) -> None:
        super().__init__("coroutine raised StopIteration")
        self.stop = stop
        self.__cause__ = stop
        self.__traceback__ = stop.__traceback__


def carried(error: BaseException) -> BaseException:
    """What a coroutine or a future can raise for ``error``."""
    return StoppedIteration(error) if isinstance(error, StopIteration) else error


def thrown(error: BaseException) -> BaseException:
    """What code raised of which ``error`` came through a coroutine."""
    return error.stop if isinstance(error, StoppedIteration) else error


class Outcome:
    """How code ended.

    Args:
        value: What it returned.
        error: What it raised, or None.
    """

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def result(self) -> Any:
        """What it returned; asked for once.

        Raises:
            BaseException: What it raised, as far as a coroutine can raise it.
        """
        # An error leads to the frames that it passes, and so to this object: no cycle is to be left.
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise carried(error)
        finally:
            del error

    def peek(self) -> Any:
        """What it returned, for one of several who ask.

        Raises:
            BaseException: What it raised, as far as a coroutine can raise it.
        """
        return Outcome(self._value, self._error).result()


def outcome_of(function: Callable[[], Any]) -> Outcome:
    """Call ``function``; returns how it ended."""
    try:
        return Outcome(function())
    except BaseException as error:
        return Outcome(error=error)


async def awaited_outcome(make: Callable[[], Awaitable[Any]]) -> Outcome:
    """Await what ``make`` returns, in a task of its own, which an exit that it raises does not leave.

    The task makes its awaitable itself, so that one that is cancelled before its first step leaves no
    coroutine that nobody awaits.
    """
    try:
        return Outcome(await make())
    except (SystemExit, KeyboardInterrupt) as error:
        return Outcome(error=error)


def is_close(error: BaseException) -> bool:
    """True if ``error`` closes a coroutine that nobody runs any more, instead of being raised in it."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def cancelled_from_outside(error: BaseException) -> bool:
    """True if ``error`` cancels the task that runs, instead of being raised by what it awaits."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
