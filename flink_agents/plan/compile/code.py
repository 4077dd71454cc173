"""``DeclaredAgent``: an agent's declarations. ``AgentCode``: its code for workers, which can be pickled.

A plan names code; a class of the main script cannot be imported by that name on a worker, and
functions that were added to an agent may have no name at all. ``AgentCode`` carries the objects
themselves; ``cloudpickle`` writes those of the main script by value and all others by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.built_in_actions import BUILT_IN_ACTIONS, BuiltInAction
from flink_agents.api.agents.decorators import ActionMark
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.events import Event
from flink_agents.api.resources import ResourceType
from flink_agents.plan.analysis.reading import EmittedEvents
from flink_agents.plan.compile.configuration import instance_of, parameter_types
from flink_agents.plan.compile.declarations import (
    ActionDeclaration,
    ResourceDeclaration,
    actions_of,
    resources_of,
)
from flink_agents.plan.compile.events import Emissions, emissions_of, known_events, type_of
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
        declared_actions = actions_of(instance)
        emissions = emissions_of(type(instance), declared_actions, instance.context_class)
        added = needed_actions(declared_actions, emissions)
        return cls(
            instance,
            (*declared_actions, *added),
            tuple(resources_of(instance)),
            emissions.with_actions(added),
        )


def needed_actions(
    declared_actions: Sequence[ActionDeclaration], emissions: Emissions
) -> list[ActionDeclaration]:
    """Return the actions of this package that an agent needs in addition to its own.

    Args:
        declared_actions: The actions that the user declared.
        emissions: The events that these can emit.

    Raises:
        FunctionReferenceError: A package that such an action needs is not installed.
    """
    triggers = {type_of(trigger) for action in declared_actions for trigger in action.mark.triggers}
    emitted = emissions.together()
    return [_declaration(action) for action in BUILT_IN_ACTIONS if _is_needed(action, triggers, emitted)]


def _is_needed(action: BuiltInAction, triggers: set[str], emitted: EmittedEvents) -> bool:
    request = action.request.EVENT_TYPE
    response = action.response.EVENT_TYPE
    if request in triggers:
        return False
    return action.request in emitted.events or request in emitted.texts or response in triggers


def _declaration(action: BuiltInAction) -> ActionDeclaration:
    function = FunctionRef.parse(action.function).resolve()
    mark = ActionMark((action.request,), (action.response,), name=action.name)
    return ActionDeclaration(action.name, mark, function, "function")


@dataclass(frozen=True)
class AgentCode:
    """The code of an agent.

    Attributes:
        agent_class: Its class; ``Agent`` for a builder.
        actions: Its actions, in the order of declaration.
        tools: Functions of its tools, by name, as declared.
        clients: Functions of its clients, by name, as declared.
        retry: Its retry policy, or None.
        annotations: Types of the tools' parameters, by tool: a function that is pickled by
            value loses the names in its string annotations.
        parameter_types: Types of the constructor's parameters, for the same reason.
        context_class: Its ``RunnerContext`` subclass, or None.
        side_outputs: Tags and the types of their values.
        output_type: Type of its outputs.
        events: Event classes that it knows, by type string.
        named: The user's objects that descriptions of its resources name, by their names.
    """

    agent_class: type[Agent]
    actions: tuple[ActionDeclaration, ...]
    tools: Mapping[str, ResourceDeclaration]
    annotations: Mapping[str, Mapping[str, Any]]
    parameter_types: Mapping[str, Any]
    context_class: Any
    side_outputs: Mapping[str, Any]
    output_type: Any
    events: Mapping[str, type[Event]]
    clients: Mapping[str, ResourceDeclaration] = field(default_factory=dict)
    retry: RetryPolicy | None = None
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, agent: Agent | type[Agent] | DeclaredAgent) -> AgentCode:
        """Return the code of an agent.

        Args:
            agent: An instance, a class without required arguments, or a declared agent.

        Raises:
            AgentDefinitionError: Its actions or resources are declared incorrectly.
        """
        declared = agent if isinstance(agent, DeclaredAgent) else DeclaredAgent.of(agent)
        instance = declared.instance
        agent_class = type(instance)
        tools = {
            resource.name: resource for resource in declared.resources if resource.type is ResourceType.TOOL
        }
        event_classes = known_events(declared.actions, declared.emissions)
        return cls(
            agent_class=agent_class,
            actions=declared.actions,
            tools=tools,
            annotations={name: _annotations(tool.function) for name, tool in tools.items()},
            parameter_types=parameter_types(agent_class),
            context_class=instance.context_class,
            side_outputs=dict(instance.side_outputs),
            output_type=instance.output_type,
            events={event.EVENT_TYPE: event for event in event_classes},
            clients={
                resource.name: resource
                for resource in declared.resources
                if resource.type is ResourceType.CLIENT
            },
            retry=instance.retry,
        )


def _annotations(function: Callable[..., Any] | None) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True) if function is not None else {}
    except (NameError, TypeError):
        return {}
