"""The resources of an agent: their plans, the resources that they name, and those that actions request."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import describe, place_of
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
from flink_agents.plan.analysis.values import NamedResource
from flink_agents.plan.compile.configuration import json_or_reason
from flink_agents.plan.compile.declarations import ActionDeclaration, ResourceDeclaration
from flink_agents.plan.compile.literal_secrets import check_secrets
from flink_agents.plan.compile.validation import check_resource
from flink_agents.plan.model import AgentPlan, DescriptorPlan, ResourcePlan
from flink_agents.plan.references import FunctionRef


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
    if kind is ResourceType.CHAT_MODEL:
        return arguments.get("on_unknown_outcome") == "ask"
    return kind in TOOL_SOURCES and bool(arguments.get("needs_approval"))


def _tool(resource: ResourceDeclaration, agent: Agent) -> Tool:
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
    kind, missing_name = target
    names = sorted(name for key_kind, name in keys if key_kind is kind)
    return MissingResourceError(
        message,
        expected=", ".join(map(repr, names)) or f"a {kind.value} in the agent",
        found=repr(missing_name),
        fix=suggest(missing_name, names, fix or f"declare it with @{kind.value} or add_resource"),
        where=where,
    )
