"""The context of the action whose code runs, for code that no context was passed to.

A library that an action calls, as an agent of pydantic-ai, can record its calls with the action's context
without a parameter for it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Protocol


class ActionRun(Protocol):
    """One execution of one action, as the runtime keeps it."""

    @property
    def own_code_of(self) -> str | None:
        """Name of the action, where the code is its own and not that of one of its durable functions."""
        ...

    def has_to_await(self, made: Coroutine[Any, Any, Any]) -> None:
        """Note a coroutine that the action's own code made, and has to await."""
        ...

    def context_here(self) -> Any:
        """The context; None inside a durable function, in another thread, and after the action's end."""
        ...


current_action_run: ContextVar[ActionRun | None] = ContextVar("flink_agents_action_run", default=None)
"""The execution of an ``async def`` action whose code runs. The runtime sets it, and tasks inherit it."""

called_action_run: ContextVar[ActionRun | None] = ContextVar("flink_agents_called_action_run", default=None)
"""The execution of an action whose function is just called: inside of that, code of a ``def`` action runs."""


OWN_LOCKS: set[str] = set()
"""Libraries whose locks, events and queues join tasks of one action, and nothing outside of it.

A task that waits for such a lock does not keep its run from being suspended. Whoever lets a library run
inside of actions adds its name.
"""


def unrecorded_action() -> str | None:
    """Name of the action whose own code runs where no durable call can be awaited.

    That is the code of a ``def`` action, and what an ``async def`` action executes in another thread. The
    code of a durable function is none of it: that is recorded as a whole.

    Returns:
        None in any other code.
    """
    run = called_action_run.get()
    if run is None:
        # Code that may use the context can await a durable call; other threads cannot.
        run = current_action_run.get()
        if run is not None and run.context_here() is not None:
            return None
    return None if run is None else run.own_code_of
