"""``DeclaredAgent``: an agent's declarations and emitted events, with the built-in actions that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.agents.decorators import ActionMark
from flink_agents.plan.analysis.reading import EmittedEvents
from flink_agents.plan.compile.configuration import instance_of
from flink_agents.plan.compile.declarations import (
    ActionDeclaration,
    ResourceDeclaration,
    actions_of,
    resources_of,
)
from flink_agents.plan.compile.events import Emissions, emissions_of, type_of
from flink_agents.plan.references import FunctionRef


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


def needed_actions(own: Sequence[ActionDeclaration], emissions: Emissions) -> list[ActionDeclaration]:
    """Return the actions of this package that an agent needs in addition to its own.

    Args:
        own: The actions that the user declared.
        emissions: The events that these can emit.

    Raises:
        FunctionReferenceError: A package that such an action needs is not installed.
    """
    triggers = {type_of(trigger) for action in own for trigger in action.mark.triggers}
    emitted = emissions.together()
    return [_declaration(one) for one in BUILT_IN_ACTIONS if _is_needed(one, triggers, emitted)]


def _is_needed(one: BuiltInAction, triggers: set[str], emitted: EmittedEvents) -> bool:
    request, response = one.request.EVENT_TYPE, one.response.EVENT_TYPE
    if request in triggers:
        return False
    return one.request in emitted.events or request in emitted.texts or response in triggers


def _declaration(one: BuiltInAction) -> ActionDeclaration:
    function = FunctionRef.parse(one.function).resolve()
    mark = ActionMark((one.request,), (one.response,), name=one.name)
    return ActionDeclaration(one.name, mark, function, "function")
