"""Actions of this package, which an agent has if it emits the events that they answer."""

from __future__ import annotations

from dataclasses import dataclass

from flink_agents.api.events import Event


@dataclass(frozen=True)
class BuiltInAction:
    """An action that this package implements.

    Attributes:
        name: Name of the action in each agent that has it.
        request: Class of the event that triggers it.
        response: Class of the event that it answers with.
        function: Its function as ``module:qualname``: importing it needs optional packages.
    """

    name: str
    request: type[Event]
    response: type[Event]
    function: str


BUILT_IN_ACTIONS: list[BuiltInAction] = []
"""All built-in actions. If you write an action for one of their requests, it replaces the built-in one."""
