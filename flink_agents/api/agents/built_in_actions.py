"""Actions of this package, which an agent has if it emits the events that they answer."""

from __future__ import annotations

from dataclasses import dataclass

from flink_agents.api.events import Event


@dataclass(frozen=True)
class BuiltInAction:
    """An action of this package.

    Attributes:
        name: Its name in the agent.
        request: The event that triggers it.
        response: The event of its answer.
        function: Its code, as ``module:qualname``, since it needs optional packages.
    """

    name: str
    request: type[Event]
    response: type[Event]
    function: str


BUILT_IN_ACTIONS: list[BuiltInAction] = []
"""All of them. If you write an action for one of these requests, it replaces the built-in one."""
