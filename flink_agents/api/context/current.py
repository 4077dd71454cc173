"""The context of the action whose code runs, for code that no context was passed to."""

from __future__ import annotations

from flink_agents.api.common.current import current_action_run
from flink_agents.api.context import RunnerContext


def current_context() -> RunnerContext | None:
    """The context of the ``async def`` action whose code runs.

    Returns:
        None outside of actions, and inside a durable function, where no context may be used.
    """
    run = current_action_run.get()
    return None if run is None else run.context_here()
