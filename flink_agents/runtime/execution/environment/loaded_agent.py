"""The code of an agent, loaded in a subtask: what its events trigger, and what its actions use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from sys import modules
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import StateError
from flink_agents.api.resources import ResourceType, check_resource_type
from flink_agents.api.resources.provenance import LIBRARY, as_data
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import BoundAgent
from flink_agents.runtime.concurrency.bridge import CLIENT_CLOSE_SECONDS
from flink_agents.runtime.execution.environment.event_records import EventRecords
from flink_agents.runtime.execution.environment.routing import OutputChecks, Routes
from flink_agents.runtime.serde import type_modules
from flink_agents.runtime.serde.codec import ValueCodec

_log = bounded_logger("flink_agents.resources")


class LoadedAgent:
    """The code of an agent. Any thread may use it; the event loop closes its resources.

    Args:
        agent: The agent, bound to its code.
        config: Options of the job.
        codec: Encodes values of events.

    Attributes:
        agent: The agent, bound to its code.
        name: Name of the agent in the job.
        events: Converts events to records.
        routes: Finds the actions that an event triggers.
        action_names: The names of the agent's actions.
        side_outputs: The types of its side outputs, by tag.
        output_checks: Compares outputs with the declared types.
        received: Converts a value that came from outside before an action gets it; None if nothing is
            converted.
    """

    def __init__(self, agent: BoundAgent, config: Configuration, codec: ValueCodec) -> None:
        type_modules.know(agent.modules(), config.get(AgentOptions.STATE_MODULES))
        agent.load_providers()
        self.agent = agent
        self.name = agent.plan.name
        self._codec = codec
        self.events = EventRecords(codec, agent.event_types)
        self.routes = Routes(agent.actions)
        self.action_names = frozenset(action.name for action in agent.actions)
        self.side_outputs: Mapping[str, Any] = agent.side_outputs
        self.output_checks = OutputChecks(agent.output_type, agent.side_outputs)
        # Only chat models and agents of the model library need the origin of a message. An action may import
        # the library when it runs, after its input has come, so `as_received` checks if it is loaded.
        chats = any(resource.type is ResourceType.CHAT_MODEL for resource in agent.plan.resources)
        self.received: Callable[[Any], Any] | None = self._as_data if chats else None
        self._resources: dict[tuple[str, ResourceType], Any] = {}

    def as_received(self, value: Any) -> Any:
        """Return a value from outside in the form that actions get: messages in it are data, not commands."""
        if self.received is None:
            if LIBRARY not in modules:
                return value
            self.received = self._as_data
        return self.received(value)

    def _as_data(self, value: Any) -> Any:
        return as_data(value, self._copied)

    def _copied(self, value: Any) -> Any:
        try:
            return self._codec.copy(value)
        except StateError:
            # State cannot hold it, so no other run can get this object.
            return value

    def resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """Return a resource. It is created at its first use."""
        key = (name, check_resource_type(resource_type))
        if key not in self._resources:
            # Without the context of the first caller: the resource outlives it.
            self._resources[key] = Context().run(self.agent.resource, *key)
        return self._resources[key]

    async def close_resources(self) -> None:
        """Close the resources one after the other. An exception from one of them is logged."""
        for resource in self.agent.made_resources():
            close = getattr(resource, "aclose", None)
            if close is None:
                continue
            try:
                await asyncio.wait_for(close(), CLIENT_CLOSE_SECONDS)
            except Exception as error:  # whatever a foreign resource raises
                _log.warning("a resource, %s, was not closed: %r", type(resource).__qualname__, error)
