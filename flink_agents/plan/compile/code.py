"""``AgentCode``: the objects that the plan of an agent names, in a form that can be pickled.

A plan names code; a class of the main script cannot be imported by that name on a worker, and
functions that were added to an agent may have no name at all. ``AgentCode`` carries the objects
themselves; ``cloudpickle`` writes those of the main script by value and all others by name.

No code of the agent refers to what only the description of a resource names: ``clazz="module:name"``, or the
function of a router. These objects travel with the code, too. If a worker lacks their module, loading the
operator fails, and not each record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import unwrap
from flink_agents.api.events import Event
from flink_agents.api.resources import ResourceType
from flink_agents.api.settings import ActionSettings, AgentSettings, ToolSettings
from flink_agents.plan.analysis.functions import is_own, is_unseen
from flink_agents.plan.compile.configuration import make_instance, parameter_types
from flink_agents.plan.compile.declarations import (
    ActionDeclaration,
    ResourceDeclaration,
    actions_of,
    resources_of,
)
from flink_agents.plan.model import FUNCTIONS, ActionPlan, AgentPlan, DescriptorPlan, ResourcePlan
from flink_agents.plan.references import import_named, type_from_text

ResourceKey = tuple[ResourceType, str]
"""Kind and name of a resource."""

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""The form of names of code: ``module:qualname``."""


@dataclass(frozen=True)
class ActionCode:
    """The code of an action.

    Attributes:
        function: Its function, as declared.
        settings: Its settings. Functions and exceptions among them may have no names.
    """

    function: Callable[..., Any]
    settings: ActionSettings


@dataclass(frozen=True)
class ResourceCode:
    """The function of a tool or a client.

    Attributes:
        function: The function, as declared.
        needs_approval: True if a call needs an approval, or the function that decides.
        annotations: Types of the parameters: a function that is pickled by value loses the names in
            its string annotations.
    """

    function: Callable[..., Any]
    needs_approval: Any = False
    annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentCode:
    """The code of an agent.

    Attributes:
        agent_class: Its class; ``Agent`` for a builder.
        parameter_types: Types of the constructor's parameters: pickled by value, it loses their names.
        settings: Its settings.
        context_class: Its ``RunnerContext`` subclass, or None.
        side_outputs: Tags and the types of their values.
        output_type: Type of its outputs.
        events: Event classes that it knows, by type string.
        actions: Its actions, by name.
        resources: Its tools and clients.
        named: The user's objects that descriptions of its resources name, by their names.
    """

    agent_class: type[Agent]
    parameter_types: Mapping[str, Any]
    settings: AgentSettings
    context_class: Any
    side_outputs: Mapping[str, Any]
    output_type: Any
    events: Mapping[str, type[Event]]
    actions: Mapping[str, ActionCode]
    resources: Mapping[ResourceKey, ResourceCode]
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_declarations(
        cls,
        agent: Agent,
        settings: AgentSettings,
        actions: Iterable[ActionDeclaration],
        resources: Iterable[ResourceDeclaration],
        event_classes: Iterable[type[Event]],
    ) -> AgentCode:
        """Return the code of an agent with its declarations."""
        return cls(
            agent_class=type(agent),
            parameter_types=parameter_types(type(agent)),
            settings=settings,
            context_class=agent.context_class,
            side_outputs=dict(agent.side_outputs),
            output_type=agent.output_type,
            events={event.EVENT_TYPE: event for event in event_classes},
            actions={action.name: ActionCode(action.function, action.mark.settings) for action in actions},
            resources={
                (resource.type, resource.name): ResourceCode(
                    resource.function,
                    resource.settings.needs_approval,
                    _annotations(resource.function) if resource.type is ResourceType.TOOL else {},
                )
                for resource in resources
                if resource.type in FUNCTIONS and resource.function is not None
            },
        )

    @classmethod
    def imported(cls, plan: AgentPlan) -> AgentCode:
        """Import the code of a plan by the names in it.

        Raises:
            FunctionReferenceError: A function or class of the plan cannot be found.
            AgentConfigurationError: The constructor does not accept the plan's configuration.
        """
        agent_class = plan.agent_class.resolve() if plan.agent_class else Agent
        types = parameter_types(agent_class)
        agent = make_instance(agent_class, plan.configuration, types)
        actions = {action.name: action.mark.settings for action in actions_of(agent)}
        resources = {(resource.type, resource.name): resource.settings for resource in resources_of(agent)}
        return cls(
            agent_class=agent_class,
            parameter_types=types,
            settings=AgentSettings(**plan.plain(), retry=plan.retry and plan.retry.policy()),
            context_class=plan.context_class.resolve() if plan.context_class else None,
            side_outputs={tag: type_from_text(text) for tag, text in plan.side_outputs.items()},
            output_type=type_from_text(plan.output_type) if plan.output_type else None,
            events={event.type: event.event_class.resolve() for event in plan.events if event.event_class},
            actions={
                action.name: _import_action(action, actions.get(action.name)) for action in plan.actions
            },
            resources={
                key: ResourceCode(
                    unwrap(resource.function.resolve()), _needs_approval(resource, resources.get(key))
                )
                for resource in plan.resources
                if (key := (resource.type, resource.name))[0] in FUNCTIONS and resource.function is not None
            },
        )

    def objects(self) -> Iterator[Any]:
        """Yield the classes and functions of the user."""
        yield from self.agent_class.__mro__
        for action in self.actions.values():
            yield from filter(None, (action.function, action.settings.when))
        yield from (resource.function for resource in self.resources.values())
        yield from filter(None, (self.context_class, *self.events.values()))


def _import_action(action: ActionPlan, declared: ActionSettings | None) -> ActionCode:
    """Import an action. A lambda has no name, but the class that declares the action may still hold it."""
    when = None
    if action.when is not None:
        is_held = not action.when.function.importable and declared is not None
        when = declared.when if is_held and declared else action.when.function.resolve()
    settings = ActionSettings(
        **action.plain()
        | {
            "needs_approval": _needs_approval(action, declared),
            "retry": action.retry and action.retry.policy(),
            "when": when,
        }
    )
    return ActionCode(unwrap(action.function.resolve()), settings)


def _needs_approval(
    plan: ActionPlan | ResourcePlan, declared: ActionSettings | ToolSettings | None
) -> bool | Callable[..., Any]:
    """Return True if an approval is needed, or the function that decides."""
    if not isinstance(plan.needs_approval, str):
        return plan.needs_approval
    return import_named(plan.needs_approval) if declared is None else declared.needs_approval


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters; nothing if a name among them is unknown."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


def named_objects(plan: AgentPlan) -> dict[str, Any]:
    """Return the user's objects that descriptions of resources name, by their names.

    Objects that cannot be imported here are omitted: the workers, which look for them again, may have them.
    """
    objects: dict[str, Any] = {}
    for resource in plan.resources:
        descriptor = resource.descriptor or DescriptorPlan()
        # Other strings than the class may only look like names of code: they import no module.
        objects[descriptor.clazz] = _users_object(descriptor.clazz, may_import=True)
        for name in _texts(descriptor.arguments):
            objects.setdefault(name, _users_object(name))
    return {name: value for name, value in objects.items() if value is not None}


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in a value, in dicts and lists at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)


def _users_object(name: str, may_import: bool = False) -> Any:
    """Return the function or class with a name; None if it is not the user's, or there is none."""
    module = name.partition(":")[0]
    if not _NAME.fullmatch(name) or not (module in sys.modules or (may_import and is_unseen(module))):
        return None
    try:
        value = import_named(name)
    except Exception:  # Whatever a module raises during its import.
        return None
    return value if callable(value) and is_own(sys.modules[module], {"__main__"}) else None
