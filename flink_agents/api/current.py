"""The context of the action whose code runs, for code that no context was passed to.

A library that an action calls, as an agent of pydantic-ai, can record its calls with the action's context
without a parameter for it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flink_agents.api.context import RunnerContext


class ActionRun(Protocol):
    """One execution of one action, as the runtime keeps it."""

    def context_here(self) -> RunnerContext | None:
        """The context, where it may be used: not inside a durable function, nor behind the action's end."""
        ...


current_action_run: ContextVar[ActionRun | None] = ContextVar("flink_agents_action_run", default=None)
"""The execution of an ``async def`` action whose code runs. The runtime sets it, and tasks inherit it."""


def current_context() -> RunnerContext | None:
    """The context of the ``async def`` action whose code runs.

    Returns:
        None outside of actions, and inside a durable function, where no context may be used.
    """
    run = current_action_run.get()
    return None if run is None else run.context_here()
