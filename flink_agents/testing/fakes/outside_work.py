"""Finds what the runs of a harness wait for outside of its event loop: threads, sockets, stores.

A wait for a timer, or for a primitive of asyncio, ends inside of the loop. Everything that is not known to
end there is outside: then time passes really.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import queue
import selectors
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

from flink_agents.runtime.concurrency.bridge import awaited_outcome
from flink_agents.runtime.concurrency.threads import WorkerPool
from flink_agents.runtime.execution import limits
from flink_agents.runtime.execution.calls.pending import OwnFuture
from flink_agents.runtime.execution.stacks import Stack
from flink_agents.runtime.execution.waits.run_waits import ActionTimer

if TYPE_CHECKING:
    from flink_agents.runtime.loop.agent_loop import AgentLoop


class LoopOfTimers(Protocol):
    """An event loop with timers on the clock of the harness, and timers in real time."""

    @property
    def virtual_timers(self) -> list[asyncio.TimerHandle]:
        """The timers that follow the clock of the harness."""
        ...

    @property
    def own_timers(self) -> list[asyncio.TimerHandle]:
        """The timers that follow real time."""
        ...


_PRIMITIVES = frozenset({asyncio.locks.__file__, asyncio.queues.__file__, limits.__file__})
"""Code whose waits other tasks of the loop end, or timers."""

_WAITS = frozenset({threading.__file__, queue.__file__, selectors.__file__})
_WAIT_NAMES = frozenset({"wait", "wait_for", "get", "put", "select", "join", "_wait_for_tstate_lock"})

_OWN_THREADS = (
    "agent-",
    "asyncio-",
    "jvm-",
    "store-writer",
    "harness-",
    "flink-agents",
    "model-server",
    "AnyIO worker",
    "pydevd",
)
"""Threads of the runtime and of test tools. If a run needs one of them, its own wait shows it."""

_TOOLS = frozenset({"execnet", "grpc", "py4j", "pyflink"})
"""Packages whose threads serve a minicluster or the test run, and work for no run of a harness."""

_POOL_CODES = frozenset({WorkerPool.run.__code__, WorkerPool.run_within.__code__})


class OutsideWork:
    """Finds out if the runs of an agent loop wait for threads, sockets or stores.

    Args:
        agent: The agent loop.
        loop: Its event loop.
    """

    def __init__(self, agent: AgentLoop, loop: LoopOfTimers) -> None:
        self._agent = agent
        self._loop = loop
        self._present = weakref.WeakSet(threading.enumerate())

    def is_there(self, has_files: bool) -> bool:
        """Return True if a run waits for something that does not end inside of the loop.

        Args:
            has_files: True if the loop waits for sockets or pipes.
        """
        pool = self._agent._threads  # pyright: ignore[reportPrivateUsage]
        if len(pool._queue) + len(pool._running) > len(pool._abandoned):  # pyright: ignore[reportPrivateUsage]
            return True
        tasks = _tasks_of(self._loop)
        # Each of them waits for a thread of an action that waits for the loop.
        outcome_tasks = [task for task in tasks if _code_of(task) is awaited_outcome.__code__]
        look = _Look(self._loop, has_files)
        if any(look.is_outside(task) for task in (*self._tasks_of_runs(), *outcome_tasks)):
            return True
        return look.threads > len(outcome_tasks) or self._has_busy_thread()

    def may_come(self) -> bool:
        """Return True if something that no run waits for may still give the loop work.

        That is what other tasks of the loop wait for, or a busy thread. The watchdog counts as well: it ends
        code that swallows the suspension of its run.
        """
        states = [runs.state for runs in list(self._agent._tasks.values())]  # pyright: ignore[reportPrivateUsage]
        steps = [state.action_run for state in states if state is not None]
        if any(step is not None and step.suspended is not None for step in steps):
            return True
        return waits_for_outside(self._loop) or any(
            thread not in self._present or _is_busy(thread, frame) for thread, frame in _other_threads()
        )

    def _tasks_of_runs(self) -> Iterator[asyncio.Task[Any]]:
        """Yield the tasks that execute runs, those of their actions, and those of their calls."""
        for task, runs in list(self._agent._tasks.items()):  # pyright: ignore[reportPrivateUsage]
            yield task
            step = None if runs.state is None else runs.state.action_run
            if step is None:
                continue
            yield from step.tasks or ()
            if (delivery := step.delivery) is not None:
                yield from (*delivery.tasks, *delivery.others)
                yield from (wait.performing for wait in delivery.waits if wait.performing is not None)

    def _has_busy_thread(self) -> bool:
        """Return True if a thread of the user's code works that was started after the loop."""
        return any(
            _is_busy(thread, frame) for thread, frame in _other_threads() if thread not in self._present
        )


def waits_for_outside(loop: LoopOfTimers) -> bool:
    """Return True if a task of the loop waits for something that the loop itself does not end."""
    look = _Look(loop, False)
    return any(look.is_outside(task) for task in _tasks_of(loop)) or look.threads > 0


class _Look:
    """One examination of all waits of a loop, which visits each wait once.

    Attributes:
        threads: Number of waits for threads of actions found so far.
    """

    def __init__(self, loop: LoopOfTimers, has_files: bool) -> None:
        self._loop = loop
        self._has_files = has_files
        self._seen_ids: set[int] = set()
        self.threads = 0

    def is_outside(self, awaitable: Any) -> bool:
        """Return True if an awaitable waits for something that the loop itself does not end."""
        if id(awaitable) in self._seen_ids or (asyncio.isfuture(awaitable) and awaitable.done()):
            return False
        self._seen_ids.add(id(awaitable))
        stack = Stack.of_awaitable(awaitable)
        frame = stack.frames[-1] if stack.frames else None
        if frame is not None:
            if frame.f_code is asyncio.sleep.__code__:
                return any(_refers_to(timer, stack.last) for timer in self._loop.own_timers)
            if frame.f_code.co_filename in _PRIMITIVES or _is_of_limiter(frame):
                return self._has_files
            if any(outer.f_code in _POOL_CODES for outer in stack.frames[-2:]):
                self.threads += 1
                return False
            inner = _awaited_by(frame)
            if inner is not None:
                return any([self.is_outside(inner_future) for inner_future in inner])
        return self._is_foreign(stack.last)

    def _is_foreign(self, future: Any) -> bool:
        """Return True if no timer and no task of the loop is known to end a future."""
        if type(future).__name__ == "_GatheringFuture":
            inner = future._children
        elif isinstance(future, OwnFuture):
            inner = [ender for ender in future.enders if ender is not None]
        elif future is None or self._has_timer(future):
            return False
        elif (shielded := _shielded_by(future)) is not None:
            inner = [shielded]
        else:
            return True
        return any([self.is_outside(inner_future) for inner_future in inner])

    def _has_timer(self, future: Any) -> bool:
        """Return True if a timer of the loop ends a future."""
        return any(_refers_to(timer, future) for timer in self._loop.virtual_timers)


def _is_of_limiter(frame: FrameType) -> bool:
    # Its futures end by timers that do not refer to them.
    return str(frame.f_globals.get("__name__")).startswith("aiolimiter")


def _tasks_of(loop: LoopOfTimers) -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks(cast("asyncio.AbstractEventLoop", loop))


def _code_of(task: asyncio.Task[Any]) -> object:
    return getattr(task.get_coro(), "cr_code", None)


def _refers_to(timer: Any, future: Any) -> bool:
    """Return True if the callback of a timer refers to a future: as its object, argument or closure."""
    callback = timer._callback
    arguments = timer._args or ()
    if isinstance(of_action := getattr(callback, "__self__", None), ActionTimer):
        callback, arguments = of_action._callback, of_action._args  # pyright: ignore[reportPrivateUsage]
    return any(
        referent is future
        for referent in (getattr(callback, "__self__", None), *arguments, *_cells_of(callback))
    )


def _shielded_by(future: Any) -> Any:
    """Return the inner future of ``asyncio.shield``; None if ``future`` does not come from it."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__qualname__", "") == "shield.<locals>._outer_done_callback":
            return next((cell for cell in _cells_of(callback) if asyncio.isfuture(cell)), None)
    return None


def _cells_of(callback: Any) -> list[Any]:
    cells = getattr(callback, "__closure__", None) or ()
    return [getattr(cell, "cell_contents", None) for cell in cells]


def _awaited_by(frame: FrameType) -> list[Any] | None:
    """Return the futures that a frame of asyncio code waits for; None for other code."""
    module = frame.f_globals.get("__name__")
    name = frame.f_code.co_name
    values = frame.f_locals
    if module == "asyncio.tasks" and name in ("_wait", "wait_for"):
        return list(values["fs"]) if name == "_wait" else [values["fut"]]
    return list(values["self"]._tasks) if module == "asyncio.taskgroups" else None


def _other_threads() -> Iterator[tuple[threading.Thread, FrameType | None]]:
    """Yield the threads that may work for a run, with their frames; not those of the runtime or of tools."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread is threading.main_thread() or thread.name.startswith(_OWN_THREADS):
            continue
        if _package_of_thread(frame) not in _TOOLS:
            yield thread, frame


def _package_of_thread(frame: FrameType | None) -> str:
    """Return the package of the outermost code of a thread outside of ``threading``."""
    package = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module != "threading":
            package = module.partition(".")[0]
        frame = frame.f_back
    return package


def _is_busy(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Return True if a thread works, and does not wait for other threads."""
    if frame is None:
        # It is starting, or has ended.
        return thread.ident is None
    if isinstance(thread, threading.Timer):
        return True
    code = frame.f_code
    waits = code.co_filename in _WAITS and code.co_name in _WAIT_NAMES
    if waits and (waiter := frame.f_locals.get("waiter")) is not None:
        # The lock of a condition, which is released when the thread has something to do.
        waits = waiter.locked()
    return not waits and code is not concurrent.futures.thread._worker.__code__  # pyright: ignore[reportPrivateUsage]
