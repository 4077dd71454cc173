"""The event loop of actions: counts the handles of each execution, and orders its timers.

A handle belongs to an execution if its context does. Tasks, futures and the primitives of asyncio keep to
the public methods that are overridden here, so that nothing of what an action does is missed but what is
woken by other threads and by sockets: that is counted when it schedules something of the action.
"""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context, copy_context
from types import FrameType
from typing import Any

from flink_agents.api.common.current import OWN_LOCKS
from flink_agents.runtime.execution import call_scope
from flink_agents.runtime.execution.delivery import ActionTask, Delivery, OwnFuture, current_delivery
from flink_agents.runtime.execution.waits.action_waits import ActionTimer

_OVER = {"wait_for": "fut", "_wait": "fs", "shield": "inner"}
"""Functions of ``asyncio.tasks`` that await a future of their own in place of others: who names those."""


_ROOM = __name__.rpartition(".")[0]

_OF_LOCKS = ("asyncio", "anyio")
"""Libraries that have locks, for others."""


class _ActionHandle(asyncio.Handle):
    """A handle that is counted."""

    __slots__ = ()

    def cancel(self) -> None:
        """Cancel it, and count it no more."""
        if not self.cancelled():
            delivery: Delivery = self._callback.__self__  # pyright: ignore[reportAttributeAccessIssue]
            super().cancel()
            delivery.unready()


class ActionLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that counts the handles of each execution of an action."""

    # typeshed gives the parameters of these methods types that no override can repeat.
    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedule a call; one that belongs to an action is counted."""
        delivery = current_delivery.get() if context is None else context.get(current_delivery)
        if delivery is None or delivery.over:
            return super().call_soon(callback, *args, context=context)
        if not delivery.counted:
            delivery.count(self)
        if not delivery.running:
            delivery.woken_from_outside()
        handle = super().call_soon(delivery.execute, callback, args, context=context)
        delivery.ready += 1
        handle.__class__ = _ActionHandle
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a call from any thread; one from the loop's own is counted, as of a dropped generator."""
        delivery = current_delivery.get() if context is None else context.get(current_delivery)
        # What a thread has done is no work of the action, however soon it was done.
        foreign = getattr(callback, "__module__", None) == "asyncio.futures"
        if delivery is None or delivery.over or foreign or not self._runs_here():
            return super().call_soon_threadsafe(callback, *args, context=context)
        return self.call_soon(callback, *args, context=context)

    def _runs_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self
        except RuntimeError:
            return False

    def time(self) -> float:
        """Return the time of the loop; code of an action sees it stand still between two outcomes."""
        delivery = current_delivery.get()
        return super().time() if delivery is None or delivery.over else delivery.time()

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """Set a timer; that one of an action fires is an outcome."""
        delivery = current_delivery.get() if context is None else context.get(current_delivery)
        if delivery is None or delivery.over:
            return super().call_at(when, callback, *args, context=context)
        if not delivery.counted:
            delivery.count(self)
        return ActionTimer(delivery, self, when, callback, args, context or copy_context())

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future; where it matters, one of which it is known whether it ends by an outcome."""
        delivery = current_delivery.get()
        if delivery is None or delivery.over or not (delivery.replaying or delivery.at_rest is not None):
            return super().create_future()
        frame = sys._getframe(1)
        module = frame.f_globals.get("__name__")
        if module == "asyncio.queues":
            # A queue of the action's own says so.
            over = getattr(frame.f_locals.get("self"), "ends_of", None)
            if over is None:
                return super().create_future()
            future = OwnFuture(loop=self)
            future.over = over
            return future
        if module == "asyncio.locks" and (
            isinstance(asyncio.current_task(self), _LockTask) or _keeps_locks_to_itself(frame)
        ):
            return OwnFuture(loop=self)
        if module not in ("asyncio.tasks", "asyncio.taskgroups"):
            return super().create_future()
        future = OwnFuture(loop=self)
        if module == "asyncio.taskgroups":
            # The end of the group's tasks, also of those that they make.
            future.over = frame.f_locals["self"]._tasks
            return future
        name = _OVER.get(frame.f_code.co_name)
        if name is not None:
            over = frame.f_locals.get(name)
            future.over = tuple(over) if isinstance(over, set | list | tuple) else (over,)
        return future


def _keeps_locks_to_itself(frame: FrameType | None) -> bool:
    """Whether a library waits for the lock that a frame is of, which only tasks of the action release."""
    while frame is not None:
        library = str(frame.f_globals.get("__name__")).partition(".")[0]
        if library not in _OF_LOCKS:
            return library in OWN_LOCKS
        frame = frame.f_back
    return False


class _LockTask(ActionTask):
    """A task that does nothing but wait for a lock that a library keeps to itself."""


def _is_of_own_lock(coroutine: Any) -> bool:
    """Whether a library starts a task for the lock itself, such as ``create_task(event.wait())``."""
    code = getattr(coroutine, "cr_code", None)
    if code is None or code.co_filename != asyncio.locks.__file__:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_ROOM):
        frame = frame.f_back
    return _keeps_locks_to_itself(frame)


def make_action_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None, **options: Any
) -> asyncio.Task[Any]:
    """Make a task: one with a path where code of an action makes it."""
    delivery = current_delivery.get()
    function = call_scope.inside()
    if context is not None:
        # Whoever made the context, and when: what is started in it belongs to the code that runs now.
        context.run(current_delivery.set, delivery)
        context.run(call_scope.enter, function)
    elif function is not None:
        # The function may have left its context.
        call_scope.enter(function)
    if delivery is None or delivery.over:
        return asyncio.Task(coroutine, loop=loop, context=context, **options)
    parent = delivery.task_path()
    kind = _LockTask if _is_of_own_lock(coroutine) else ActionTask
    return kind(coroutine, delivery=delivery, parent=parent, loop=loop, context=context, **options)
