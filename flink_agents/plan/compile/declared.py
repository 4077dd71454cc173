"""``DeclaredAgent``: an agent's declarations and emitted events, read once for all that is made of them."""

from __future__ import annotations

from dataclasses import dataclass

from flink_agents.api.agents.agent import Agent
from flink_agents.plan.compile.built_in import needed_actions
from flink_agents.plan.compile.configuration import instance_of
from flink_agents.plan.compile.declarations import (
    ActionDeclaration,
    ResourceDeclaration,
    actions_of,
    resources_of,
)
from flink_agents.plan.compile.events import Emissions, emissions_of


@dataclass(frozen=True)
class DeclaredAgent:
    """An agent with its declarations.

    Attributes:
        instance: The agent.
        actions: The actions that the user declared, and after them those of this package.
        resources: Its resources.
        emissions: The events that its actions can emit.
    """

    instance: Agent
    actions: tuple[ActionDeclaration, ...]
    resources: tuple[ResourceDeclaration, ...]
    emissions: Emissions

    @classmethod
    def of(cls, agent: Agent | type[Agent]) -> DeclaredAgent:
        """Read an agent, given as an instance or as a class without required arguments.

        Raises:
            AgentDefinitionError: Its actions or resources are declared incorrectly.
            FunctionReferenceError: A package that an action of this package needs is not installed.
        """
        instance = instance_of(agent)
        own = actions_of(instance)
        emissions = emissions_of(type(instance), own, instance.context_class)
        added = needed_actions(own, emissions)
        return cls(instance, (*own, *added), tuple(resources_of(instance)), emissions.with_actions(added))
