"""Finds what an action made and had to await, and did not: a call that did nothing."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from flink_agents.api.errors import MissingAwaitError
from flink_agents.runtime.serde.awaitables import close_unawaited

if TYPE_CHECKING:
    from flink_agents.runtime.execution.context import ActionRun

MOST_NOTED = 64
"""With so many coroutines of an action, those are no longer kept that it has begun to await."""


def note_made(step: ActionRun, made: Coroutine[Any, Any, Any]) -> None:
    """Note a coroutine that the code of ``step`` has to await."""
    noted = step.unawaited
    if noted is None:
        noted = step.unawaited = []
    elif len(noted) >= MOST_NOTED:
        noted[:] = _forgotten(noted)
    noted.append(made)


def check_awaited(step: ActionRun) -> None:
    """Check that an execution that ended well has awaited what it made.

    Raises:
        MissingAwaitError: It has not.
    """
    noted, step.unawaited = step.unawaited or [], None
    if any(task.cancelled() or not task.done() for task in step.tasks or ()):
        # A coroutine may be that of a task which has not begun, or was cancelled before it did.
        return
    forgotten = _forgotten(noted)
    if not forgotten:
        return
    called = forgotten[0].__qualname__
    for one in forgotten:
        close_unawaited(one)
    write = "write await" if step.action.is_async else "write async def, and await"
    raise MissingAwaitError(
        f"action {step.action.name!r} ended without awaiting {called}(...): it did nothing",
        expected="an await, or a task, for each call that gives something to be awaited",
        found="a call whose result nobody asked for",
        fix=f"{write} {called}(...); close() what is not to be made",
    )


def _forgotten(noted: list[Coroutine[Any, Any, Any]]) -> list[Coroutine[Any, Any, Any]]:
    return [one for one in noted if inspect.getcoroutinestate(one) == inspect.CORO_CREATED]
