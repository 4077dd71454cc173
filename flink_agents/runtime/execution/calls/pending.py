"""Outcomes that an action waits for, pending or queued, and the tasks and futures that only they can end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from contextvars import Context
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from flink_agents.runtime.concurrency.timeouts import ThreadWait
from flink_agents.runtime.journal.calls import Number, Outcome, is_inside, is_of_sub_agent


class PendingOutcome:
    """An outcome that an action waits for.

    Args:
        number: The number of the call or wait; see ``journal.calls``.

    Attributes:
        gone: True if the action no longer waits for it.
        ended: True if the outcome exists, delivered or not.
        performing: The task that produces the outcome; None before that starts.
        stopped: True if that task was cancelled, because nothing waits for the outcome.
        not_before: Seconds since the start of the execution before which the outcome does not come.
        outlasts: True if the run can be suspended while the action waits for nothing else.
        encloses: True if it is the end of code of the action, which waits for other outcomes meanwhile.
        in_transit: True if such code is about to start, or has just ended.
    """

    outlasts = False
    encloses = False
    in_transit = False

    __slots__ = ("ended", "gone", "not_before", "number", "performing", "stopped")

    def __init__(self, number: Number) -> None:
        self.number = number
        self.not_before = 0.0
        self.gone = self.ended = self.stopped = False
        self.performing: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Start the call, timer or other work that produces the outcome. By default, it runs already."""

    def is_there(self) -> bool:
        """Return True if a replay that has come to the outcome can deliver it now."""
        return True

    def deliver(self, outcome: Outcome) -> None:
        """Hand the outcome to the code that waits for it."""
        raise NotImplementedError

    def abandon_wait(self) -> None:
        """End the wait without an outcome: the execution is over."""

    def stop(self) -> None:
        """Cancel the task that produces the outcome. An outcome that already exists is still recorded."""
        if self.performing is not None and not (self.ended or self.performing.done()):
            self.stopped = True
            self.performing.cancel()

    def perform(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> asyncio.Task[Any]:
        """Start a task that produces the outcome. It does not count as a task of the action."""
        loop = asyncio.get_running_loop()
        self.performing = asyncio.Task(coroutine, loop=loop, context=context)
        return self.performing


class FutureOutcome(PendingOutcome):
    """An outcome that code of the action awaits.

    Args:
        number: The number of the call or wait; see ``journal.calls``.

    Attributes:
        future: Ends when the outcome is delivered.
    """

    __slots__ = ("future",)

    def __init__(self, number: Number) -> None:
        super().__init__(number)
        self.future = OwnFuture(loop=asyncio.get_running_loop())

    def deliver(self, outcome: Outcome) -> None:
        """Resume the code that awaits the outcome."""
        if not self.future.done():
            self.future.set_result(outcome)

    def abandon_wait(self) -> None:
        """Cancel the code that awaits the outcome."""
        self.future.cancel()


class QueuedOutcome:
    """An outcome that waits for those before it.

    Args:
        pending: The wait that it ends.
        outcome: The outcome; None while it is being recorded.

    Attributes:
        outcome: The outcome; None while it is being recorded.
        recorded: True if it is in a record.
    """

    __slots__ = ("outcome", "pending", "recorded")

    def __init__(self, pending: PendingOutcome, outcome: Outcome | None) -> None:
        self.pending = pending
        self.outcome = outcome
        self.recorded = False


class TaskOwner(Protocol):
    """The delivery of an execution, as its tasks see it.

    Attributes:
        children: The number of tasks that the action started itself.
        own_tasks: The number of all its tasks without those of sub-agents.
    """

    children: int
    own_tasks: int

    def add_task(self, task: ActionTask) -> None:
        """Note a task that the action started."""
        ...

    def hash_of(self, ordinal: int) -> int:
        """Return the hash of the task with that number."""
        ...


class ActionTask(asyncio.Task[Any]):
    """A task that an action started.

    Its hash follows from the order in which the execution created its tasks. So sets of tasks, such as those
    of ``asyncio.wait`` and ``asyncio.TaskGroup``, have the same order in each execution.

    Attributes:
        delivery: The delivery of the execution.
        path: The path of the task; see ``journal.calls``.
        children: The number of tasks that it started.
    """

    def __init__(
        self, coroutine: Any, *, delivery: TaskOwner, parent: str, path: str | None = None, **options: Any
    ) -> None:
        self.delivery = delivery
        self.children = 0
        if path is None:
            maker = _maker(delivery)
            path = f"{parent}.{maker.children}" if parent else str(maker.children)
            maker.children += 1
        self.path = path
        # Actions of sub-agents start at any time, and tasks of concurrent ones in any order.
        if is_of_sub_agent(path):
            ordinal = crc32(path.encode())
        else:
            # Without theirs: a replay does not execute their attempts that failed.
            ordinal = delivery.own_tasks
            delivery.own_tasks += 1
        self._hash = delivery.hash_of(ordinal)
        delivery.add_task(self)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._hash


def _maker(delivery: TaskOwner) -> ActionTask | TaskOwner:
    """Return the running task of the action, or its delivery: both count the tasks that they start."""
    task = asyncio.current_task()
    return task if isinstance(task, ActionTask) and task.delivery is delivery else delivery


class OwnFuture(asyncio.Future[Any]):
    """A future that an outcome ends, or a task of the same action.

    Attributes:
        enders: Other futures that can end it, if those may be foreign.
        inner: The task of the attempt that ends it, so that stacks show it; or None.
    """

    enders: Collection[Any] = ()
    inner: asyncio.Task[Any] | None = None


def is_foreign(future: Any, delivery: TaskOwner) -> bool:
    """Return True if ``future`` may end by something that is not an outcome of the action."""
    if isinstance(future, OwnFuture):
        return any(is_foreign(ender, delivery) for ender in future.enders)
    if isinstance(future, ActionTask):
        return future.delivery is not delivery
    if type(future).__name__ == "_GatheringFuture":
        return any(is_foreign(child, delivery) for child in getattr(future, "_children", ()))
    return True


def is_task_inside(task: asyncio.Task[Any], path: str) -> bool:
    """Return True if a task belongs to the action of a sub-agent with that path."""
    return isinstance(task, ActionTask) and is_inside(task.path, path)


def awaits_foreign(task: asyncio.Task[Any], delivery: TaskOwner) -> bool:
    """Return True if a task awaits something that may end by anything else than outcomes of the action."""
    future = getattr(task, "_fut_waiter", None)
    return future is not None and is_foreign(future, delivery)


class TimedCode(NamedTuple):
    """Code of an attempt that has a timeout.

    Attributes:
        path: The path of the code: that of a sub-agent's action, or empty for the action itself.
        name: The name of the attempt in state.
        wait: Measures the time that does not count towards the timeout.
        before: The seconds for which the attempt ran before its run was suspended.
    """

    path: str
    name: str
    wait: ThreadWait
    before: float
