"""Stacks of coroutines and threads of the user's code, for logs."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import FrameSummary, StackSummary
from types import CodeType, FrameType
from typing import Any

from flink_agents.api.common.awaited import Awaited
from flink_agents.api.common.current import in_context
from flink_agents.api.common.places import is_users, is_users_code, no_collection
from flink_agents.runtime.execution.phases import WaitPhase
from flink_agents.runtime.serde.raised_texts import place

MAX_DEPTH = 200
"""The most awaits that are followed in a chain."""

MAX_LINES = 30
"""The most frames of a stack that are shown: the innermost ones."""

_RUNTIME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_WRAPPERS = frozenset(
    ("FutureIter", "anext_awaitable", "async_generator_asend", "async_generator_athrow", "coroutine_wrapper")
)
"""Types that hide the awaited object of a coroutine."""


class Stack:
    """Frames of a coroutine or a thread.

    Args:
        frames: The frames, outermost first.
        last: The object that the innermost frame awaits, if that has no frame.
    """

    def __init__(self, frames: list[FrameType], last: Any = None) -> None:
        self.frames = frames
        self.last = last

    @classmethod
    def of_awaitable(cls, awaitable: Any) -> Stack:
        """Return the stack of ``awaitable`` with everything that it awaits.

        ``asyncio`` shows the first frame only.
        """
        frames: list[FrameType] = []
        last = None
        with no_collection():
            for _ in range(MAX_DEPTH):
                if awaitable is None:
                    break
                last = awaitable
                frame, awaitable = _open(awaitable)
                if frame is not None:
                    frames.append(frame)
                    if frame.f_code is asyncio.wait_for.__code__ and awaitable is not None:
                        # In Python 3.11, it awaits a new future in place of this task.
                        awaitable = frame.f_locals.get("fut", awaitable)
                    last = None if awaitable is None else last
        return cls(frames, last)

    @classmethod
    def of_thread(cls, thread: int) -> Stack:
        """Return the stack of a thread."""
        frames: list[FrameType] = []
        with no_collection():
            frame = sys._current_frames().get(thread)
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
        return cls(frames[::-1])

    def __add__(self, inner: Stack) -> Stack:
        """Return this stack with another one inside of it."""
        return Stack([*self.frames, *inner.frames], inner.last)

    @property
    def where(self) -> str | None:
        """The innermost line of the user's code, or None."""
        for frame in reversed(self.frames):
            if is_users_code(frame.f_code):
                return place(frame.f_code.co_filename, _line(frame), frame.f_code.co_qualname)
        return None

    @property
    def awaits(self) -> str:
        """The object that the innermost frame awaits, as text."""
        for frame in reversed(self.frames):
            if is_users_code(frame.f_code):
                break
            text_of_wait = _WAIT_TEXTS.get(frame.f_code)
            if text_of_wait is not None:
                return text_of_wait(frame)
        if self.frames and not is_users_code(self.frames[-1].f_code):
            return name_of(self.frames[-1])
        if type(self.last).__name__ == "_GatheringFuture":
            return "asyncio.gather"
        return "a future" if asyncio.isfuture(self.last) else "its turn on the loop"

    def seen(self, further_lines: Sequence[str] = ()) -> StackSnapshot:
        """Return a snapshot of the stack from the user's first frame on, without frames of this package.

        Args:
            further_lines: Lines that follow the frames in the text of the snapshot.
        """
        files = [frame.f_code.co_filename for frame in self.frames]
        start = next((at for at, file in enumerate(files) if is_users(file)), 0)
        shown = [frame for frame in self.frames[start:] if not frame.f_code.co_filename.startswith(_RUNTIME)]
        summaries = [
            FrameSummary(frame.f_code.co_filename, _line(frame), frame.f_code.co_name, lookup_line=False)
            for frame in shown[-MAX_LINES:]
        ]
        return StackSnapshot(summaries, tuple(further_lines))


def line_of(task: Any, thread: int, wait: WaitPhase | None) -> str | None:
    """Return your innermost line that a step executes or waits at; None if it has none. For any thread.

    Args:
        task: The task that awaits the step, or None.
        thread: The thread that executes it.
        wait: What of the runtime it waits for, or None.
    """
    inner: Stack | None = None
    if wait is not None:
        awaited = wait.awaited() if callable(wait.awaited) else wait.awaited
        inner = Stack.of_awaitable(awaited) if awaited is not None else None
        if wait.thread not in (None, thread):
            inner = Stack.of_thread(wait.thread)
    for stack in (inner, Stack.of_awaitable(task)):
        if stack is not None and stack.where is not None:
            return stack.where
    thread_stack = Stack.of_thread(thread)
    # The thread of the event loop may execute another run by now.
    is_loop = any(frame.f_code is asyncio.BaseEventLoop.run_forever.__code__ for frame in thread_stack.frames)
    return None if is_loop else thread_stack.where


@dataclass(frozen=True)
class StackSnapshot:
    """A stack as it was at one moment.

    Source lines are read when it becomes text, so another thread can do that.

    Attributes:
        frames: Its frames, innermost last.
        others: Further lines of the text.
    """

    frames: list[FrameSummary]
    others: tuple[str, ...]

    def __str__(self) -> str:
        """Return the frames, and the further lines."""
        lines = "".join(StackSummary.from_list(self.frames).format())
        return "".join([lines, *(f"{line}\n" for line in self.others)]).rstrip("\n")


def waits_of(task: asyncio.Task[Any]) -> str:
    """Return the place where the user's code waits in ``task``, and the object that it awaits, as text."""
    stack = Stack.of_awaitable(task)
    awaited = stack.frames[-1] if stack.frames and not is_users(stack.frames[-1].f_code.co_filename) else None
    what = name_of(awaited) if awaited is not None else type(stack.last).__name__
    return f"{stack.where or task.get_name()}, which awaits {what}"


def name_of(frame: FrameType) -> str:
    """Return module and name of the function of ``frame``."""
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"


def _open(awaitable: Any) -> tuple[FrameType | None, Any]:
    """Return the frame of ``awaitable``, if it has one, and the object that it awaits.

    The ``cr_await`` of a running coroutine must not be read: if an exception has just been thrown into it,
    Python 3.11 reads memory that is no object, and the process crashes. No other thread can run between the
    two attributes, since no function is called.
    """
    if inspect.iscoroutine(awaitable):
        return awaitable.cr_frame, None if awaitable.cr_running else awaitable.cr_await
    if inspect.isgenerator(awaitable):
        frame = awaitable.gi_frame
        if frame is not None and frame.f_code is in_context.__code__ and not awaitable.gi_running:
            return frame, frame.f_locals.get("inner")
        return frame, None if awaitable.gi_running else awaitable.gi_yieldfrom
    if inspect.isasyncgen(awaitable):
        # It counts as running until its step ends, even while that step awaits something.
        frame = awaitable.ag_frame
        return frame, None if frame is None or frame.f_back is not None else awaitable.ag_await
    if isinstance(awaitable, asyncio.Task):
        return None, awaitable.get_coro()
    if isinstance(awaitable, Awaited):
        return None, awaitable.begun
    if asyncio.isfuture(awaitable):
        return None, getattr(awaitable, "inner", None)
    if type(awaitable).__name__ not in _WRAPPERS:
        return None, None
    # These have no attribute for the object that they hold, but the garbage collector knows it.
    return None, next((referent for referent in gc.get_referents(awaitable) if _is_awaited(referent)), None)


def _is_awaited(value: Any) -> bool:
    """Return True if a value is a coroutine, a generator or a future, or a wrapper that hides one."""
    has_frame = inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)
    return has_frame or asyncio.isfuture(value) or type(value).__name__ in _WRAPPERS


def _line(frame: FrameType) -> int:
    """Return the line that a frame executes; the first one of its function if that is unknown."""
    return frame.f_lineno or frame.f_code.co_firstlineno


def _sleep_text(frame: FrameType) -> str:
    """Return the call of ``asyncio.sleep`` that a frame executes, as text."""
    return f"asyncio.sleep({frame.f_locals.get('delay')!r})"


def _thread_text(frame: FrameType) -> str:
    """Return the call of ``asyncio.to_thread`` that a frame executes, as text."""
    function = frame.f_locals.get("func")
    return f"asyncio.to_thread({getattr(function, '__qualname__', type(function).__qualname__)})"


_WAIT_TEXTS: dict[CodeType, Callable[[FrameType], str]] = {
    asyncio.sleep.__code__: _sleep_text,
    asyncio.to_thread.__code__: _thread_text,
}
"""Functions of ``asyncio`` whose arguments describe the wait."""
