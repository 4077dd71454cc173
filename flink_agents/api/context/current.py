"""The context of the action whose code runs, for code that no context was passed to."""

from __future__ import annotations

from flink_agents.api.common.current import current_action_run
from flink_agents.api.context import RunnerContext


def current_context() -> RunnerContext | None:
    """Return the context of the running ``async def`` action.

    Returns:
        The context. None outside of actions, and inside a durable function, which must not use a context.
    """
    run = current_action_run.get()
    return None if run is None else run.context_here()
