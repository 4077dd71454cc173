"""The event loop of actions: counts the handles of each execution, and puts its timers in order.

A handle belongs to an execution if its context does. Tasks, futures and the primitives of asyncio use the
public methods that are overridden here. So all work of an action is counted, except wake-ups by other threads
and by sockets. Those are counted when they schedule something of the action.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import sys
import threading
from collections import deque
from contextvars import Context, copy_context
from types import FrameType
from typing import Any

from flink_agents.api.common.current import OWN_LOCKS
from flink_agents.runtime.execution.action_run import current_step
from flink_agents.runtime.execution.calls import durable_code
from flink_agents.runtime.execution.calls.delivery import Delivery, current_delivery
from flink_agents.runtime.execution.calls.pending import ActionTask, OwnFuture
from flink_agents.runtime.execution.waits.run_waits import ActionTimer

_OVER = {"wait_for": "fut", "_wait": "fs", "shield": "inner"}
"""Functions of ``asyncio.tasks`` that await a new future, and their variable with those that end it."""

_ENDS_OF_GROUPS = {("asyncio.taskgroups", "__aexit__"), ("anyio._backends._asyncio", "__aexit__")}
"""Modules and functions of task groups that wait for the group's ``_tasks``."""

_ROOM = __name__.rpartition(".")[0]
"""The package of this module, whose frames are skipped."""

_OF_LOCKS = ("asyncio", "anyio")
"""Libraries that implement locks for other libraries."""


class _Collection:
    """The run of Python's collector of cycles, which finalizes objects amid the code of any action.

    Attributes:
        thread: The thread that collects now, or None.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Note that a collection starts or stops: a callback of ``gc``."""
        self.thread = threading.get_ident() if phase == "start" else None


_collection = _Collection()


class _ActionHandle(asyncio.Handle):
    """A handle of an action, which counts while it is scheduled or runs."""

    __slots__ = ()

    def cancel(self) -> None:
        """Cancel it, and remove it from the count."""
        if not self.cancelled():
            delivery: Delivery = self._callback.__self__  # pyright: ignore[reportAttributeAccessIssue]
            super().cancel()
            delivery.unready()


class _Selector(selectors.DefaultSelector):
    """Waits for files as the loop asks it to, and notes if the loop sleeps meanwhile.

    Each wake costs a write to a pipe, and two reads. With the writer of a store and Flink's thread waking the
    loop for each batch, these took a sixth of the loop's time (measured).
    """

    loop: ActionLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        if timeout is not None and timeout <= 0:
            # The loop has work. If there is only its pipe, that can wait.
            return super().select(timeout) if len(self.get_map()) > 1 else []
        # Set, then look. Another thread adds a handle, and then looks if the loop sleeps. So at least one of
        # the two sees what the other did.
        loop.sleeps = True
        try:
            return super().select(0 if loop.has_ready_handles else timeout)
        finally:
            loop.sleeps = False


class ActionLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that counts the handles of each execution of an action.

    Args:
        selector: Waits for files. Default: one that saves wakes while the loop is awake.

    Attributes:
        sleeps: True while the loop may wait in its selector, so that other threads have to wake it.
        moves_wall_clock: True if the wall clock moves with the time of the loop, as in tests; else it may be
            set at any time.
    """

    moves_wall_clock = False

    # Attributes of the base class, which typeshed does not have.
    _closed: bool
    _debug: bool
    _ready: deque[asyncio.Handle]

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        # With another selector, each wake writes to the pipe.
        self.sleeps = True
        self._notes_sleep = selector is None
        if selector is None:
            selector = _Selector()
            selector.loop = self
        super().__init__(selector)

    @property
    def has_ready_handles(self) -> bool:
        """True if a handle can run."""
        return bool(self._ready)

    def _write_to_self(self) -> None:
        """Wake the loop, from any thread, if it sleeps."""
        if self.sleeps:
            # The first thread that finds it asleep wakes it for all.
            self.sleeps = not self._notes_sleep
            super()._write_to_self()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    # typeshed gives the parameters of these methods types that no override can repeat.
    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedule a call. It is counted if it belongs to an action."""
        delivery = current_delivery.get() if context is None else context.get(current_delivery)
        if delivery is None or delivery.closed:
            if self._debug or self._closed:
                return super().call_soon(callback, *args, context=context)
            # What the base class does without its checks: each wake of each task comes here.
            handle = asyncio.Handle(callback, args, self, context)
            self._ready.append(handle)
            return handle
        if not delivery.counted:
            delivery.count(self)
        if not delivery.running:
            delivery.woken_from_outside()
        handle = super().call_soon(delivery.execute, callback, args, context=context)
        # After `call_soon`, which may raise. A handle that does not exist must not count.
        delivery.ready += 1
        # Cheaper than a subclass of Handle: this is the hottest call of the loop.
        handle.__class__ = _ActionHandle
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a call from any thread.

        A call from the loop's own thread, as of a dropped generator, is counted. If the collector of cycles
        found the generator, its action may be any: its end belongs to none, and takes no number of a task.
        """
        if context is None and _collection.thread == threading.get_ident():
            return super().call_soon_threadsafe(callback, *args, context=Context())
        delivery = current_delivery.get() if context is None else context.get(current_delivery)
        # The end of work in a thread does not count as work of the action.
        foreign = getattr(callback, "__module__", None) == "asyncio.futures"
        if delivery is None or delivery.closed or foreign or not self._runs_here():
            return super().call_soon_threadsafe(callback, *args, context=context)
        return self.call_soon(callback, *args, context=context)

    def _runs_here(self) -> bool:
        """Return True if the calling thread runs this loop."""
        try:
            return asyncio.get_running_loop() is self
        except RuntimeError:
            return False

    def time(self) -> float:
        """Return the time of the loop. For code of an action, it changes only with an outcome."""
        delivery = current_delivery.get()
        return super().time() if delivery is None or delivery.closed else delivery.time()

    def own_time(self) -> float:
        """Return the time of the loop, whatever code asks for it."""
        return super().time()

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """Set a timer. If an action sets it, its end is an outcome."""
        delivery = current_delivery.get() if context is None else context.get(current_delivery)
        if delivery is None or delivery.closed:
            return super().call_at(when, callback, *args, context=context)
        if not delivery.counted:
            delivery.count(self)
        return ActionTimer(delivery, self, when, callback, args, context or copy_context())

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future that shows if only outcomes can end it: a replay needs that, and a wait."""
        delivery = current_delivery.get()
        if delivery is None or delivery.closed:
            return super().create_future()
        frame = sys._getframe(1)
        module = frame.f_globals.get("__name__")
        if module == "asyncio.queues":
            # A queue that the action made with `ctx` has this attribute.
            enders = getattr(frame.f_locals.get("self"), "ends_of", None)
            if enders is None:
                return super().create_future()
            future = OwnFuture(loop=self)
            future.enders = enders
            return future
        if module == "asyncio.locks" and (
            isinstance(asyncio.current_task(self), _LockTask) or _keeps_locks_to_itself(frame)
        ):
            return OwnFuture(loop=self)
        is_group_end = (module, frame.f_code.co_name) in _ENDS_OF_GROUPS
        if module != "asyncio.tasks" and not is_group_end:
            return super().create_future()
        future = OwnFuture(loop=self)
        if is_group_end:
            # The end of the group's tasks, also of those that they make.
            future.enders = frame.f_locals["self"]._tasks
            return future
        name = _OVER.get(frame.f_code.co_name)
        if name is not None:
            awaited_value = frame.f_locals.get(name)
            future.enders = (
                tuple(awaited_value) if isinstance(awaited_value, set | list | tuple) else (awaited_value,)
            )
        return future


def _keeps_locks_to_itself(frame: FrameType | None) -> bool:
    """Return True if a library waits for the lock of a frame, so that only tasks of the action release it."""
    while frame is not None:
        library = str(frame.f_globals.get("__name__")).partition(".")[0]
        if library not in _OF_LOCKS:
            return library in OWN_LOCKS
        frame = frame.f_back
    return False


class _LockTask(ActionTask):
    """A task that only waits for a lock that a library uses internally."""


def _is_of_own_lock(coroutine: Any) -> bool:
    """Return True if a library starts a task for the lock itself, such as ``create_task(event.wait())``."""
    code = getattr(coroutine, "cr_code", None)
    if code is None or code.co_filename != asyncio.locks.__file__:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_ROOM):
        frame = frame.f_back
    return _keeps_locks_to_itself(frame)


def make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    """Create a task. If code of an action creates it, the task has a path, and ends with the attempt."""
    task = _make_action_task(loop, coroutine, context, options)
    step = current_step.get()
    if step is not None:
        if step.delivery is not None and current_delivery.get() is None:
            # A durable function started it: it ends with that call.
            step.delivery.add_other(task)
            return task
        if step.tasks is None:
            step.tasks = []
        step.tasks.append(task)
    return task


def _make_action_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None, options: dict[str, Any]
) -> asyncio.Task[Any]:
    """Create a task, an ``ActionTask`` if code of an action runs. It runs as code of the same function."""
    delivery = current_delivery.get()
    function = durable_code.find_durable_function()
    if context is not None:
        # The context may come from elsewhere. The task still belongs to the code that runs now.
        context.run(current_delivery.set, delivery)
        context.run(durable_code.enter, function)
    elif function is not None:
        # The function may have left its context.
        durable_code.enter(function)
    if delivery is None or delivery.closed:
        return asyncio.Task(coroutine, loop=loop, context=context, **options)
    parent = delivery.task_path()
    kind = _LockTask if _is_of_own_lock(coroutine) else ActionTask
    return kind(coroutine, delivery=delivery, parent=parent, loop=loop, context=context, **options)
