"""``compile_agent``: compiles an agent class, instance or builder to its plan."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import Trigger
from flink_agents.api.common.places import describe, place_of, place_of_class
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import (
    AgentConfigurationError,
    AgentDefinitionError,
    CyclicResourceError,
    MissingResourceError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.api.resources import (
    TOOL_SOURCES,
    Prompt,
    ResourceDescriptor,
    ResourceRef,
    ResourceType,
    Tool,
    references_of,
    template_variables,
)
from flink_agents.api.resources.providers import provider_of
from flink_agents.api.settings import AgentSettings, check_settings
from flink_agents.plan.analysis.functions import has_async_code, lambda_text
from flink_agents.plan.analysis.values import NamedResource
from flink_agents.plan.compile.code import AgentCode, named_objects
from flink_agents.plan.compile.configuration import (
    check_attributes,
    configuration_of,
    instance_of,
    json_or_reason,
)
from flink_agents.plan.compile.declarations import (
    ActionDeclaration,
    ResourceDeclaration,
    actions_of,
    resources_of,
)
from flink_agents.plan.compile.events import (
    Readings,
    check_event_classes,
    check_flow,
    emitted_types,
    event_plans,
    is_exact,
    known_events,
    needed_actions,
    read_actions,
    type_of,
)
from flink_agents.plan.compile.literal_secrets import check_secrets
from flink_agents.plan.compile.validation import check_agent, check_annotations, check_resource
from flink_agents.plan.model import (
    ActionPlan,
    AgentPlan,
    ConditionPlan,
    DescriptorPlan,
    ResourcePlan,
    RetryPlan,
)
from flink_agents.plan.references import FunctionRef, type_text


def compile_agent(agent: Agent | type[Agent], name: str | None = None) -> AgentPlan:
    """Return the plan of ``agent``.

    Args:
        agent: An instance, a class without required arguments, or a builder.
        name: Name of the agent. Default: its ``agent_name``, else the class name.

    Raises:
        AgentDefinitionError: The agent is invalid; the message names file, line, class and method.
    """
    return _compile(agent, name)[0]


def compile_with_code(agent: Agent | type[Agent], name: str | None = None) -> tuple[AgentPlan, AgentCode]:
    """Return the plan and the code of ``agent``, both from one reading.

    Args:
        agent: As for :func:`compile_agent`.
        name: As for :func:`compile_agent`.

    Raises:
        AgentDefinitionError: The agent is invalid.
    """
    plan, code = _compile(agent, name)
    return plan, replace(code, named=named_objects(plan))


def _compile(agent: Agent | type[Agent], name: str | None) -> tuple[AgentPlan, AgentCode]:
    """Return the plan and the code, except for the objects that only descriptions of resources name."""
    instance = instance_of(agent)
    agent_class = type(instance)
    actions = actions_of(instance)
    readings = read_actions(actions, instance)
    added = needed_actions(actions, readings)
    readings |= read_actions(added, instance)
    actions += added
    resources = resources_of(instance)
    where = instance.__dict__["__places__"].get("agent") or place_of_class(agent_class)
    title = _check_name(instance, name, where)
    check_attributes(instance, title, where)
    check_agent(instance, title, actions, where)
    values = {field_name: getattr(instance, field_name) for field_name in AgentSettings.model_fields}
    settings = check_settings(AgentSettings, f"the agent {title!r}", where, values)
    event_classes = known_events(actions, readings)
    check_event_classes(event_classes)
    plan = AgentPlan(
        name=title,
        agent_class=FunctionRef.from_object(agent_class) if agent_class is not Agent else None,
        configuration=configuration_of(instance),
        context_class=FunctionRef.from_object(instance.context_class) if instance.context_class else None,
        side_outputs={tag: type_text(kind) for tag, kind in instance.side_outputs.items()},
        output_type=None if instance.output_type is None else type_text(instance.output_type),
        **settings.plain(),
        retry=_retry(settings.retry),
        events=event_plans(event_classes, actions),
        actions=_action_plans(actions, readings),
        resources=resource_plans(resources, instance),
    )
    check_flow(plan, actions, readings, event_classes, where)
    for action in actions:
        check_annotations(action, instance.context_class or RunnerContext)
        check_requests(plan, action, readings[action.name].shown.requests)
    return plan, AgentCode.from_declarations(instance, settings, actions, resources, event_classes)


def _check_name(agent: Agent, name: str | None, where: str) -> str:
    """Return the name of an agent: the passed one, its ``agent_name``, or that of its class.

    Raises:
        AgentDefinitionError: It is not a string, or is blank.
    """
    if name is None:
        name = agent.agent_name if agent.agent_name is not None else type(agent).__name__
    if not isinstance(name, str) or not name.strip():
        raise AgentDefinitionError(
            "the name of the agent is not a string",
            expected="a name that stays the same while you keep state",
            found=repr(name),
            fix="set agent_name",
            where=where,
        )
    return name


def _action_plans(actions: Iterable[ActionDeclaration], readings: Readings) -> tuple[ActionPlan, ...]:
    """Return the actions of a plan, with the events and steps that readings of their code show."""
    actions = list(actions)
    type_strings = {
        type_of(trigger) for action in actions for trigger in (*action.mark.triggers, *action.mark.emits)
    }
    return tuple(
        ActionPlan(
            name=action.name,
            trigger_classes=_types(trigger for trigger in action.mark.triggers if not is_exact(trigger)),
            trigger_types=_types(trigger for trigger in action.mark.triggers if is_exact(trigger)),
            function=FunctionRef.from_object(action.function),
            kind=action.kind,
            is_async=has_async_code(action.function),
            when=_condition(action.mark.settings.when),
            config=_config(action),
            emits=emitted_types(readings[action.name].shown, type_strings),
            tags=tuple(sorted(readings[action.name].shown.tags)),
            calls=tuple(sorted(readings[action.name].shown.calls)),
            clients=tuple(sorted(readings[action.name].shown.clients)),
            opaque=readings[action.name].shown.opaque,
            retry=_retry(action.mark.settings.retry),
            **action.mark.settings.plain(),
        )
        for action in actions
    )


def _retry(policy: RetryPolicy | None) -> RetryPlan | None:
    """Return a retry policy as a part of a plan; None for None."""
    return None if policy is None else RetryPlan.from_policy(policy)


def _types(triggers: Iterable[Trigger]) -> tuple[str, ...]:
    """Return the type strings of triggers, each once."""
    return tuple(dict.fromkeys(map(type_of, triggers)))


def _condition(when: Callable[..., Any] | None) -> ConditionPlan | None:
    """Return a condition as a part of a plan; None for None."""
    return (
        None
        if when is None
        else ConditionPlan(function=FunctionRef.from_object(when), text=lambda_text(when))
    )


def _config(action: ActionDeclaration) -> dict[str, Any]:
    """Return the ``config`` of an action.

    Raises:
        AgentConfigurationError: An entry is not JSON.
    """
    for key, value in action.mark.config.items():
        _, reason = json_or_reason(value, is_exact=True)
        if reason is not None:
            raise AgentConfigurationError(
                f"the entry {key!r} in the config of {action.label} cannot be written into the plan",
                expected="JSON: strings, numbers, booleans, None, lists, and dicts with string keys",
                found=f"{type(value).__name__}: {reason}",
                fix="write plain JSON values, and create objects from them in the action",
                where=action.where,
            )
    return dict(action.mark.config)


def resource_plans(resources: Sequence[ResourceDeclaration], agent: Agent) -> tuple[ResourcePlan, ...]:
    """Return the plans of an agent's resources.

    Raises:
        AgentDefinitionError: The description of a resource is invalid.
        MissingResourceError: A resource names one that does not exist.
        CyclicResourceError: Resources name each other in a cycle.
    """
    keys = {(resource.type, resource.name) for resource in resources}

    def source_of(reference: ResourceRef) -> ResourceRef:
        """Return a reference to a source of tools, if that has the name of the tool."""
        kinds = [reference.type, *(TOOL_SOURCES if reference.type is ResourceType.TOOL else ())]
        kind = next((kind for kind in kinds if (kind, reference.name) in keys), reference.type)
        return ResourceRef(type=kind, name=reference.name)

    plans = tuple(_resource_plan(resource, agent) for resource in resources)
    plans = tuple(
        plan.model_copy(update={"references": tuple(map(source_of, plan.references))}) for plan in plans
    )
    _check_references(plans, {(resource.type, resource.name): resource.where for resource in resources})
    return plans


def _resource_plan(resource: ResourceDeclaration, agent: Agent) -> ResourcePlan:
    """Return the plan of a resource, whose method is called if it has one."""
    function = FunctionRef.from_object(resource.function) if resource.function is not None else None
    base: dict[str, Any] = {
        "name": resource.name,
        "type": resource.type,
        "function": function,
        "kind": resource.kind,
    }
    if resource.function is not None or resource.type is ResourceType.CLIENT:
        check_resource(resource)
    if resource.type is ResourceType.TOOL:
        tool = _tool(resource, agent)
        base |= resource.settings
        return ResourcePlan(**base, description=tool.description, parameters=tool.parameters)
    if resource.type is ResourceType.CLIENT:
        return ResourcePlan(**base)
    description = _description(resource, agent)
    if isinstance(description, Prompt):
        server = description.mcp and ResourceRef(type=ResourceType.MCP_SERVER, name=description.mcp.server)
        return ResourcePlan(**base, prompt=description, references=(server,) if server else ())
    arguments = _arguments(resource, description)
    return ResourcePlan(
        **base,
        descriptor=DescriptorPlan(clazz=description.clazz, arguments=arguments),
        references=tuple(references_of(resource.type, description.arguments)),
        needs_approval=_may_need_approvals(resource.type, arguments),
    )


def _may_need_approvals(kind: ResourceType, arguments: Mapping[str, Any]) -> bool:
    """Return True if a resource with these arguments may ask for approvals."""
    if kind is ResourceType.CHAT_MODEL:
        return arguments.get("on_unknown_outcome") == "ask"
    return kind in TOOL_SOURCES and bool(arguments.get("needs_approval"))


def _tool(resource: ResourceDeclaration, agent: Agent) -> Tool:
    """Return a declared tool.

    Raises:
        AgentDefinitionError: Its function cannot be a tool.
    """
    try:
        return Tool(resource.bound(agent), resource.title or resource.name, resource.description)
    except AgentDefinitionError as error:
        raise error.at(place_of(resource.function)) from None


def _description(resource: ResourceDeclaration, agent: Agent) -> Prompt | ResourceDescriptor:
    """Return the prompt or descriptor that a resource method returns, or that was added."""
    description = resource.value if resource.function is None else resource.bound(agent)()
    expected = Prompt if resource.type is ResourceType.PROMPT else ResourceDescriptor
    if not isinstance(description, expected):
        raise AgentDefinitionError(
            f"the {resource.label} has a description of the wrong type",
            expected=f"a {expected.__name__}",
            found=describe(description),
            fix=f"return a {expected.__name__}" if resource.function else f"add a {expected.__name__}",
            where=resource.where,
        )
    for text in description.templates if isinstance(description, Prompt) else ():
        template_variables(text, f"the prompt {resource.name!r}", resource.where)
    return description


def _arguments(resource: ResourceDeclaration, descriptor: ResourceDescriptor) -> dict[str, Any]:
    """Return the arguments of a descriptor as JSON, without secrets, as its provider accepts them."""
    arguments, reason = json_or_reason(dict(descriptor.arguments))
    if reason is not None:
        raise AgentConfigurationError(
            f"the arguments of {resource.label} cannot be written into the plan",
            expected="JSON values or ResourceRef",
            found=reason,
            fix="write plain JSON values",
            where=resource.where,
        )
    check_secrets(resource.label, arguments, resource.where)
    provider = provider_of(resource.type)
    try:
        if provider is not None:
            provider.check_declared(resource.name, descriptor.clazz, arguments)
    except ValueError as error:
        raise AgentDefinitionError(
            f"the {resource.label} has arguments that its provider rejects",
            expected=f"arguments that {type(provider).__qualname__} accepts",
            found=str(error),
            where=resource.where,
        ) from error
    return arguments


def _check_references(
    resources: Sequence[ResourcePlan], places: Mapping[tuple[ResourceType, str], str]
) -> None:
    """Check that each resource that another one names exists, and that there is no cycle."""
    graph: dict[tuple[ResourceType, str], set[tuple[ResourceType, str]]] = {}
    for resource in resources:
        key = (resource.type, resource.name)
        graph[key] = {(reference.type, reference.name) for reference in resource.references}
        for kind, name in graph[key] - places.keys():
            message = f"the {resource.type.value} {resource.name!r} names a {kind.value} {name!r} that the "
            raise _missing(f"{message}agent does not have", (kind, name), places, places[key])
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = list(reversed(error.args[1]))
        raise CyclicResourceError(
            "resources name each other in a cycle",
            expected="resources without a cycle",
            found=" -> ".join(f"{kind.value} {name!r}" for kind, name in circle),
            fix="remove one of these references",
            where=places[circle[0]],
        ) from None


def check_requests(plan: AgentPlan, action: ActionDeclaration, requests: Iterable[NamedResource]) -> None:
    """Check that the agent has the resources that an action requests by name.

    Raises:
        MissingResourceError: It lacks one.
    """
    keys = {(resource.type, resource.name) for resource in plan.resources}
    for request in requests:
        try:
            kind = ResourceType(request.kind)
        except AgentDefinitionError:  # a distribution that is not installed here may provide it
            continue
        if (kind, request.name) not in keys:
            message = f"{action.label} requests a {kind.value} {request.name!r} that the agent "
            other_type = next((other.value for other, name in keys if name == request.name), None)
            fix = None if other_type is None else f"{request.name!r} is a {other_type}: ask for that type"
            raise _missing(f"{message}does not have", (kind, request.name), keys, request.place, fix)


def _missing(
    message: str,
    target: tuple[ResourceType, str],
    keys: Iterable[tuple[ResourceType, str]],
    where: str,
    fix: str | None = None,
) -> MissingResourceError:
    """Return the error of a resource that is named but does not exist.

    Args:
        message: The first line of the error.
        target: Kind and name of the resource.
        keys: Kind and name of each resource of the agent.
        where: The user's line.
        fix: The way to correct it, if no similar name exists. Default: to declare the resource.
    """
    kind, missing_name = target
    names = sorted(name for key_kind, name in keys if key_kind is kind)
    return MissingResourceError(
        message,
        expected=", ".join(map(repr, names)) or f"a {kind.value} in the agent",
        found=repr(missing_name),
        fix=suggest(missing_name, names, fix or f"declare it with @{kind.value} or add_resource"),
        where=where,
    )
