"""What a step waits for, and where: read from frames of coroutines and threads, touching nothing.

The steps themselves are found in the frames of this package, as the local variable ``step`` of the
functions that execute them. So nothing has to be noted while they run.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from traceback import FrameSummary, StackSummary
from types import CodeType, FrameType
from typing import Any

from flink_agents.runtime import call_scope, clients, limits
from flink_agents.runtime.context import Invocation
from flink_agents.runtime.failure import is_users, place
from flink_agents.runtime.limits import Limiter, Slots
from flink_agents.runtime.steps import StepExecutor
from flink_agents.runtime.timeouts import WorkerPool, within

MAX_DEPTH = 200
"""How far a chain of awaits is followed."""

MAX_LINES = 30
"""How many frames of a stack are shown: the innermost."""

MAX_TASKS = 5
"""How many tasks of a step are described."""

_RUNTIME = os.path.dirname(os.path.abspath(__file__)) + os.sep
_THREADS = {WorkerPool.run.__code__, WorkerPool.run_within.__code__}
_WRAPPERS = frozenset(
    ("FutureIter", "anext_awaitable", "async_generator_asend", "async_generator_athrow", "coroutine_wrapper")
)
"""Types that an awaiting coroutine shows in place of what it awaits."""


@dataclass(frozen=True)
class Sight:
    """What was seen of something that runs. Source lines are read when it becomes text.

    Attributes:
        where: The innermost line of the author's.
        waits: What it waits for, in words.
        stack: Frames of the author's code and what that calls, innermost last.
        others: One line for each task that it made.
    """

    where: str
    waits: str
    stack: list[FrameSummary]
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Stack and tasks."""
        lines = "".join(StackSummary.from_list(self.stack).format())
        return "".join([lines, *(f"  {one}\n" for one in self.others)]).rstrip("\n")


# -- coroutines ----------------------------------------------------------------------


def is_suspended(task: asyncio.Task[Any]) -> bool:
    """Whether ``task`` has begun, and waits for something."""
    coroutine: Any = task.get_coro()
    return coroutine.cr_await is not None


def look_at(task: asyncio.Task[Any]) -> tuple[Invocation, Sight] | None:
    """The step that ``task`` executes, and what that waits for; None where there is no step."""
    frames, last = follow(task)
    step = step_in(reversed(frames))
    if step is None:
        return None
    waits = _in_words(frames, last, step)
    inside = _frames_in_pool(step) if any(frame.f_code in _THREADS for frame in frames) else []
    if inside:
        frames += inside
        waits = "its thread of the pool"
        if any(frame.f_code is limits.Limits._wait_for.__code__ for frame in inside):
            waits += f", and that for a limit of {_whose(inside, len(inside))}"
    seen = {id(frame) for frame in frames}
    others = [one for one in step.tasks or () if not one.done()]
    texts = [text for one in others if (text := _task(one, seen, step)) is not None]
    if len(texts) > MAX_TASKS:
        texts[MAX_TASKS:] = [f"and {len(texts) - MAX_TASKS} more tasks"]
    return step, Sight(_where(frames) or step.action.where, waits, _shown(frames), tuple(texts))


def follow(awaitable: Any) -> tuple[list[FrameType], Any]:
    """Frames of ``awaitable`` and of all that it awaits, outermost first; and what is awaited at last."""
    frames: list[FrameType] = []
    last = None
    for _ in range(MAX_DEPTH):
        if awaitable is None:
            break
        last = awaitable
        frame, awaitable = _open(awaitable)
        if frame is not None:
            frames.append(frame)
            hidden = _hidden(frame)
            awaitable = awaitable if hidden is None else hidden
            last = None if awaitable is None else last
    return frames, last


def waits_of(task: asyncio.Task[Any]) -> str:
    """Where the author's code waits in ``task``, and for what, in words."""
    frames, last = follow(task)
    awaited = frames[-1] if frames and not is_users(frames[-1].f_code.co_filename) else None
    what = name_of(awaited) if awaited is not None else type(last).__name__
    return f"{_where(frames) or task.get_name()}, which awaits {what}"


def step_in(frames: Iterable[FrameType]) -> Invocation | None:
    """The step that ``frames``, innermost first, execute."""
    for frame in frames:
        if not frame.f_code.co_filename.startswith(_RUNTIME):
            continue
        local = frame.f_locals
        if frame.f_code is StepExecutor._accepts.__code__:
            # A condition is executed before there is a step.
            return Invocation(local["self"]._shared, local["run"], local["action"], local["event"])
        step = local.get("step")
        if isinstance(step, Invocation):
            return step
    return None


def _open(awaitable: Any) -> tuple[FrameType | None, Any]:
    """Frame of ``awaitable``, if it has one, and what it awaits."""
    if inspect.iscoroutine(awaitable):
        return awaitable.cr_frame, awaitable.cr_await
    if inspect.isgenerator(awaitable):
        return awaitable.gi_frame, awaitable.gi_yieldfrom
    if inspect.isasyncgen(awaitable):
        return awaitable.ag_frame, awaitable.ag_await
    if isinstance(awaitable, asyncio.Task):
        return None, awaitable.get_coro()
    if asyncio.isfuture(awaitable) or type(awaitable).__name__ not in _WRAPPERS:
        return None, None
    # These name nothing of what they hold, but the garbage collector knows.
    return None, next((one for one in gc.get_referents(awaitable) if _is_awaited(one)), None)


def _is_awaited(value: Any) -> bool:
    known = inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)
    return known or asyncio.isfuture(value) or type(value).__name__ in _WRAPPERS


def _hidden(frame: FrameType) -> Any:
    """What ``frame`` waits for, where it awaits only a future that tells of it."""
    hidden: Any = None
    if frame.f_code is within.__code__:
        hidden = frame.f_locals.get("task")
    elif frame.f_code is asyncio.wait_for.__code__:
        # Python 3.10 and 3.11 wrap it into a task.
        hidden = frame.f_locals.get("fut")
    elif frame.f_code is clients.Clients.get.__code__:
        hidden = getattr(frame.f_locals.get("client"), "task", None)
    elif frame.f_code is call_scope.in_context.__code__:
        return frame.f_locals.get("inner")
    elif frame.f_code.co_filename.startswith(_RUNTIME):
        # An outcome: what leads to it runs in a task of its own.
        hidden = getattr(frame.f_locals.get("pending"), "performing", None)
    return hidden if isinstance(hidden, asyncio.Task) and not hidden.done() else None


def _task(task: asyncio.Task[Any], seen: set[int], step: Invocation) -> str | None:
    """A line on a task that the step made; None where the stack has it already."""
    frames, last = follow(task)
    if not frames or id(frames[-1]) in seen:
        return None
    seen.update(map(id, frames))
    where = _where(frames) or name_of(frames[0])
    return f"task {task.get_name()!r}: {where}, waits for {_in_words(frames, last, step)}"


# -- threads -------------------------------------------------------------------------


def stack_of(thread: int) -> list[FrameType]:
    """Frames of a thread, innermost first."""
    frame = sys._current_frames().get(thread)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def look_at_frames(frames: list[FrameType]) -> Sight:
    """What was seen of ``frames``, innermost first, which execute code."""
    outermost_first = frames[::-1]
    return Sight(_where(outermost_first) or "", "", _shown(outermost_first))


def client_in(frames: list[FrameType]) -> str:
    """``client NAME of``, where ``frames`` open or close one; else nothing."""
    for frame in frames:
        client = frame.f_locals.get("self") if frame.f_code.co_filename == clients.__file__ else None
        if isinstance(client, clients._Client):
            return f"client {client.name!r} of "
    return ""


def _frames_in_pool(step: Invocation) -> list[FrameType]:
    """Frames of the thread that executes ``step``, outermost first; none where it waits for one."""
    for thread in list(sys._current_frames()):
        if thread != threading.get_ident():
            frames = stack_of(thread)
            if step_in(frames) is step:
                return frames[::-1]
    return []


# -- words ---------------------------------------------------------------------------


def name_of(frame: FrameType) -> str:
    """Module and name of the function of ``frame``."""
    code = frame.f_code
    name = getattr(code, "co_qualname", None)
    if name is None:
        owner = frame.f_locals.get("self")
        name = code.co_name if owner is None else f"{type(owner).__qualname__}.{code.co_name}"
    return f"{frame.f_globals.get('__name__')}.{name}"


def _where(frames: list[FrameType]) -> str | None:
    for frame in reversed(frames):
        if is_users(frame.f_code.co_filename):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            return place(frame.f_code.co_filename, _line(frame), name)
    return None


def _shown(frames: list[FrameType]) -> list[FrameSummary]:
    """From the author's first frame on, without those of this package."""
    files = [frame.f_code.co_filename for frame in frames]
    start = next((at for at, file in enumerate(files) if is_users(file)), len(frames))
    shown = [frame for frame, file in zip(frames, files, strict=True) if not file.startswith(_RUNTIME)]
    users = [frame for frame in frames[start:] if not frame.f_code.co_filename.startswith(_RUNTIME)]
    return [
        FrameSummary(frame.f_code.co_filename, _line(frame), frame.f_code.co_name, lookup_line=False)
        for frame in (users or shown)[-MAX_LINES:]
    ]


def _line(frame: FrameType) -> int:
    return frame.f_lineno or frame.f_code.co_firstlineno


def _in_words(frames: list[FrameType], last: Any, step: Invocation) -> str:
    waits = _innermost(frames, last, step)
    for frame in frames:
        if frame.f_code is clients.Clients.get.__code__:
            return f"the client {frame.f_locals['name']!r} to open, and that for {waits}"
    return waits


def _innermost(frames: list[FrameType], last: Any, step: Invocation) -> str:
    for at in range(len(frames) - 1, -1, -1):
        if is_users(frames[at].f_code.co_filename):
            break
        tell = _TELL.get(frames[at].f_code)
        if tell is not None:
            return tell(frames, at, step)
    if frames and not is_users(frames[-1].f_code.co_filename):
        return name_of(frames[-1])
    if type(last).__name__ == "_GatheringFuture":
        return "asyncio.gather"
    return "a future" if asyncio.isfuture(last) else "its turn on the loop"


def _whose(frames: list[FrameType], at: int) -> str:
    """Whose limit it is: frames outside of ``at`` tell."""
    for frame in reversed(frames[:at]):
        if frame.f_code.co_filename == limits.__file__ and "function" in frame.f_locals:
            return f"tool {frame.f_locals['function'].__name__!r}"
    return "the action"


def _tell_limit(frames: list[FrameType], at: int, step: Invocation) -> str:
    concurrency = any(frame.f_code is Slots.take.__code__ for frame in frames[at:])
    return f"{'max_concurrency' if concurrency else 'rate limit'} of {_whose(frames, at)}"


def _tell_sleep(frames: list[FrameType], at: int, step: Invocation) -> str:
    if step.trial is not None and step.trial.failed and at and frames[at - 1].f_code.co_filename == _LOOP:
        return f"a pause before attempt {len(step.trial.failed) + 1}"
    return f"asyncio.sleep({frames[at].f_locals.get('delay')!r})"


def _tell_thread(frames: list[FrameType], at: int, step: Invocation) -> str:
    function = frames[at].f_locals.get("func")
    return f"asyncio.to_thread({getattr(function, '__qualname__', type(function).__qualname__)})"


_LOOP = _RUNTIME + "loop.py"

_TELL: dict[CodeType, Callable[[list[FrameType], int, Invocation], str]] = {
    asyncio.sleep.__code__: _tell_sleep,
    asyncio.to_thread.__code__: _tell_thread,
    limits.Place.__aenter__.__code__: lambda frames, at, step: "a place among run.max-in-flight",
    Limiter.acquire.__code__: _tell_limit,
    **dict.fromkeys(_THREADS, lambda frames, at, step: "a thread of the pool"),
}
