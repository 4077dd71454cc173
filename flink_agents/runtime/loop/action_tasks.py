"""The tasks that code of an action starts on the event loop, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextvars import ContextVar
from typing import Any, cast

from flink_agents.api.common.current import current_action_run
from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.delivery import current_delivery
from flink_agents.runtime.loop.action_loop import make_action_task

_log = bounded_logger("flink_agents.loop")

current_step: ContextVar[ActionRun | None] = cast("Any", current_action_run)
"""The execution of the action whose code runs. Tasks that it starts inherit it."""


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Create a task, and add it to the execution of the action that has to end it."""
    task = make_action_task(loop, coroutine, **options)
    step = current_step.get()
    if step is not None:
        if step.delivery is not None and current_delivery.get() is None:
            # A durable function started it: it ends with that call.
            step.delivery.others.append(task)
            return task
        if step.tasks is None:
            step.tasks = []
        step.tasks.append(task)
    return task


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, for a bounded time."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in late:
            _log.warning("a task did not end when it was cancelled: %r", task)
