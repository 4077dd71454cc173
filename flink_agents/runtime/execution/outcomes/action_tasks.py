"""Tasks and futures of an action, which only its outcomes can end, and its code with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from flink_agents.runtime.concurrency.timeouts import ThreadWait
from flink_agents.runtime.journal.calls import is_inside, is_of_sub_agent


class TaskOwner(Protocol):
    """The delivery of an execution, as its tasks see it.

    Attributes:
        children: The number of tasks that the action started itself.
        own_tasks: The number of all its tasks without those of sub-agents.
        tasks: All its tasks.
    """

    children: int
    own_tasks: int
    tasks: list[ActionTask]

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
        delivery.tasks.append(self)
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
    """

    enders: Collection[Any] = ()


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
        wait: The time that does not count.
        before: The seconds for which the attempt ran before its run was suspended.
    """

    path: str
    name: str
    wait: ThreadWait
    before: float
