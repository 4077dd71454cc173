"""Ends code that swallows the suspension of its run.

Code of a suspended run is cancelled. A bare ``except`` in a loop around a wait catches that, and the code
waits again. Nothing of it counts any longer, but it would never end, and without an ``await`` it blocks the
loop of all keys. So the next use of its context cancels it again, and further ones raise an error. Code that
catches the error as well is ended behind its ``try``: a trace function raises it at the next line there.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Iterable
from threading import get_ident
from types import FrameType
from typing import Any, NoReturn, Protocol

from flink_agents.api.errors import ContextMisuseError
from flink_agents.runtime.execution.stacks import Stack

MOST_SWALLOWED = 2
"""The number of swallowed cancellations after which the code gets an error."""

_PACKAGE = __name__.partition(".")[0]


class CancelledExecution(Protocol):
    """An ``action_run.ActionRun`` whose run is suspended."""

    task: asyncio.Task[Any] | None

    @property
    def action(self) -> Any:
        """The action."""
        ...

    @property
    def delivery(self) -> Any:
        """Its ``delivery.Delivery``, or None."""
        ...


class EndOfCode(SystemExit):
    """Raised in the thread of a loop whose code blocks it. The loop survives it, wherever it comes."""


class SwallowedSuspension:
    """The cancellations that the code of a suspended run has swallowed.

    Attributes:
        count: The number of cancellations that the code swallowed.
        looks: The number of times that the watchdog found the code still running.
    """

    def __init__(self) -> None:
        self.count = self.looks = 0
        self._is_traced = False
        self._former_trace: Any = None

    @property
    def is_error(self) -> bool:
        """True if the code swallowed ``MOST_SWALLOWED`` cancellations, so that the execution fails."""
        return self.count >= MOST_SWALLOWED

    def end_code(self, step: CancelledExecution, frames: Iterable[FrameType]) -> None:
        """Raise an error at the next line of the user's code in any of ``frames``, and in no other."""

        def raise_error(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                # The interpreter removes a trace function that raises.
                raise swallowed_error(step)
            return raise_error

        for frame in frames:
            if not str(frame.f_globals.get("__name__")).startswith(f"{_PACKAGE}."):
                frame.f_trace = raise_error
        if not self._is_traced:
            self._is_traced, self._former_trace = True, sys.gettrace()
        sys.settrace(_trace_nothing)

    def close(self) -> None:
        """Restore the trace function of the thread. The code has ended."""
        if self._is_traced:
            sys.settrace(self._former_trace)


def _trace_nothing(frame: FrameType, event: str, argument: object) -> None:
    """Trace no further frame."""


def cancel_again(step: CancelledExecution) -> NoReturn:
    """Cancel the code of a suspended run again: it has swallowed its cancellation, and uses its context.

    Raises:
        asyncio.CancelledError: Until it has done so twice.
        ContextMisuseError: From then on.
    """
    delivery = step.delivery
    assert delivery is not None
    swallowed = delivery.swallowed = delivery.swallowed or SwallowedSuspension()
    swallowed.count += 1
    if not swallowed.is_error:
        delivery.interrupt()
        raise asyncio.CancelledError
    # A task of the action may have waited, and the action may start another one: end each in its turn.
    is_mains_turn = bool(swallowed.count % 2) and step.task is not None
    frames = Stack.of_awaitable(step.task).frames if is_mains_turn else _frames_above(sys._getframe(1))
    swallowed.end_code(step, frames)
    raise swallowed_error(step)


def end_waiting_code(step: CancelledExecution, frames: Iterable[FrameType], after: int) -> None:
    """End code of a suspended run that awaits something else and does not end. Only for the loop's thread.

    Args:
        step: The execution whose run is suspended.
        frames: The frames of its code.
        after: The number of calls for a step before which its code is left to clean up.
    """
    delivery = step.delivery
    if delivery is not None and not delivery.closed:
        swallowed = delivery.swallowed = delivery.swallowed or SwallowedSuspension()
        swallowed.looks += 1
        if swallowed.looks <= after:
            return
        swallowed.count = MOST_SWALLOWED
        swallowed.end_code(step, frames)
        delivery.interrupt()


def end_blocking_code(step: CancelledExecution, thread: int) -> None:
    """End code of a suspended run that blocks ``thread``. For any other thread.

    The exception comes between two instructions, so it may be swallowed, too. Call this until the code ends.
    """
    delivery = step.delivery
    if delivery is not None and thread != get_ident():
        swallowed = delivery.swallowed = delivery.swallowed or SwallowedSuspension()
        swallowed.count = MOST_SWALLOWED
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(EndOfCode))


def failure_of(step: CancelledExecution, raised: BaseException | None = None) -> ContextMisuseError | None:
    """Return the error of code that has swallowed its suspension twice, and has ended; else None.

    Args:
        step: The execution whose run is suspended.
        raised: The exception that its code raised, with the place in the code; or None.
    """
    swallowed: SwallowedSuspension | None = None if step.delivery is None else step.delivery.swallowed
    if swallowed is None:
        return None
    swallowed.close()
    if not swallowed.is_error:
        return None
    return swallowed_error(step).with_traceback(None if raised is None else raised.__traceback__)


def swallowed_error(step: CancelledExecution) -> ContextMisuseError:
    """Return the error of an action that swallows the suspension of its run."""
    return ContextMisuseError(
        f"action {step.action.name!r} swallowed the suspension of its run and waited again",
        expected="code that lets the asyncio.CancelledError of a wait pass, so that its run can be suspended",
        found="a bare except, except BaseException, or a finally with a return or continue, around the wait",
        fix="write except Exception, or the errors that you expect, such as SignalTimeoutError; "
        "raise CancelledError again",
    )


def _frames_above(frame: FrameType | None) -> Iterable[FrameType]:
    """Yield the frames of the running task, innermost first, but not those of the event loop."""
    while frame is not None and frame.f_globals.get("__name__") != asyncio.events.__name__:
        yield frame
        frame = frame.f_back
