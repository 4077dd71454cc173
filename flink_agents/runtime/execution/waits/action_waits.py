"""Waits of an action other than durable calls: timers of asyncio, limits, and clients that open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from flink_agents.api.action_state import RecordKind
from flink_agents.runtime.execution.outcomes.delivery import Delivery, current_delivery, outside
from flink_agents.runtime.execution.outcomes.pending import FutureOutcome, PendingOutcome
from flink_agents.runtime.journal.calls import Outcome
from flink_agents.runtime.journal.records import WaitRecord


class ActionTimer(PendingOutcome):
    """A timer that an action set. Its end is an outcome.

    Args:
        delivery: The delivery of the action.
        loop: The event loop.
        when: Time of the loop at which the timer fires.
        callback: The function to call then.
        args: Its arguments.
        context: The context in which it is called.
    """

    __slots__ = ("_args", "_callback", "_context", "_delivery", "_fired", "_loop", "_timer", "_when")

    _source_traceback = None
    """Read by ``asyncio`` from the timers that its loop creates."""

    def __init__(
        self,
        delivery: Delivery,
        loop: asyncio.AbstractEventLoop,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, delivery.task_path()))
        self._delivery = delivery
        self._loop = loop
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._fired = False
        self.not_before = delivery.now + when - delivery.time()
        self._timer: asyncio.TimerHandle | None = None
        if not (delivery.replaying and delivery.recorded(self.number) is not None):
            self.begin()
        delivery.expect(self)

    def begin(self) -> None:
        """Start the timer of the loop, unless a record ends the wait."""
        if self._timer is None:
            remaining_seconds = self._when - self._delivery.time()
            self._timer = outside().run(self._loop.call_later, remaining_seconds, self._fire)

    def when(self) -> float:
        """Return the time of the loop at which it fires."""
        return self._when

    def cancel(self) -> None:
        """Cancel the timer."""
        self._stop()
        self._delivery.detach_wait(self)
        self.gone = True

    def cancelled(self) -> bool:
        """Return True if it was cancelled."""
        return self.gone

    def deliver(self, outcome: Outcome) -> None:
        """Call the callback."""
        self._stop()
        self._call()

    def abandon_wait(self) -> None:
        """Fire without an order, if a library set the timer and it outlives the action."""
        if self._fired:
            self._call()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._fired = self._delivery.fired = True
        if self._delivery.closed:
            self._call()
        elif not self.gone:
            self._delivery.end(self, _wait_record(self._delivery, "a timer"))

    def _call(self) -> None:
        self._loop.call_soon(self._callback, *self._args, context=self._context)


class ResourceWait(FutureOutcome):
    """A wait of the context for a limit or a client.

    Args:
        delivery: The delivery of the action.
        what: The object of the wait, for people.
        make: Creates the coroutine that waits.
    """

    __slots__ = ("_delivery", "_make", "_what")

    def __init__(self, delivery: Delivery, what: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, delivery.task_path()))
        self._delivery = delivery
        self._what = what
        self._make = make

    def begin(self) -> None:
        """Start the wait."""
        context = outside()
        self.perform(self._make(), context).add_done_callback(self._end, context=context)

    def is_there(self) -> bool:
        """Return True if the wait has ended. During a replay, it starts here.

        If it started earlier, it could take a slot that another branch needs first.
        """
        if self.performing is None:
            self.begin()
        assert self.performing is not None
        return self.performing.done()

    def deliver(self, outcome: Outcome) -> None:
        """End the wait."""
        performing = self.performing
        assert performing is not None
        if self.future.done():
            return
        if performing.cancelled():
            self.future.cancel()
        elif (error := performing.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(performing.result())

    def _end(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            # Mark the exception as retrieved: the waiting code may be gone.
            task.exception()
        if self._delivery.closed or self.gone:
            return
        if self._delivery.replaying:
            self._delivery.deliver_next()
        else:
            self._delivery.end(self, _wait_record(self._delivery, self._what))


async def in_turn(
    what: str, make: Callable[[], Coroutine[Any, Any, Any]], undo: Callable[[], None] = lambda: None
) -> Any:
    """Await a coroutine from ``make``. Inside an action, its end is an outcome with its place in the order.

    Args:
        what: The object of the wait, for people.
        make: Creates the coroutine.
        undo: Called if the coroutine has succeeded but the action was cancelled before it got the result.
    """
    delivery = current_delivery.get()
    if delivery is None or delivery.closed:
        return await make()
    pending = ResourceWait(delivery, what, make)
    delivery.expect(pending)
    try:
        return await pending.future
    except asyncio.CancelledError:
        delivery.detach_wait(pending)
        pending.stop()
        if pending.performing is not None and _came_about(pending.performing):
            undo()
        raise


def _came_about(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _wait_record(delivery: Delivery, what: str) -> WaitRecord:
    return WaitRecord(what, int(time.time() * 1000), delivery.next_place(), delivery.elapsed())
