"""The context of the running action, for code that gets no context as an argument.

A library that an action calls, such as a Pydantic AI agent, can record its calls with the action's context
without a parameter for it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Protocol


class CurrentActionRun(Protocol):
    """One execution of one action, as the runtime keeps it."""

    @property
    def own_code_of(self) -> str | None:
        """Name of the action if its own code is running, and not one of its durable functions."""
        ...

    def has_to_await(self, made: Coroutine[Any, Any, Any]) -> None:
        """Register a coroutine that the action's own code created and has to await."""
        ...

    def context_here(self) -> Any:
        """The context; None inside a durable function, in another thread, and after the action's end."""
        ...


current_action_run: ContextVar[CurrentActionRun | None] = ContextVar("flink_agents_action_run", default=None)
"""The execution of the running ``async def`` action. The runtime sets it, and tasks inherit it."""

called_action_run: ContextVar[CurrentActionRun | None] = ContextVar(
    "flink_agents_called_action_run", default=None
)
"""The execution of the action whose function is being called: code of a ``def`` action runs inside."""


OWN_LOCKS: set[str] = set()
"""Libraries whose locks, events and queues join tasks of one action, and nothing outside of it.

A task that waits for such a lock does not prevent its run from being suspended. An integration of a library
adds the library's name.
"""


def unrecorded_action() -> str | None:
    """Return the name of the action whose code runs in a place where no durable step can be awaited.

    This is the code of a ``def`` action, and code that an ``async def`` action runs in another thread. Code
    of a durable function does not count: it is recorded as a whole.

    Returns:
        The name. None in any other code.
    """
    run = called_action_run.get()
    if run is None:
        # Code that may use the context can await a durable step; other threads cannot.
        run = current_action_run.get()
        if run is not None and run.context_here() is not None:
            return None
    return None if run is None else run.own_code_of
