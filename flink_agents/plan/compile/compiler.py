"""``compile_agent``: compiles an agent class, instance or builder to its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import Trigger
from flink_agents.api.common.places import place_of_class
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import AgentConfigurationError, AgentDefinitionError
from flink_agents.api.settings import AgentSettings, check_settings
from flink_agents.plan.analysis.functions import has_async_code, lambda_text
from flink_agents.plan.compile.code import AgentCode, named_objects
from flink_agents.plan.compile.configuration import (
    check_attributes,
    configuration_of,
    instance_of,
    json_or_reason,
)
from flink_agents.plan.compile.declarations import (
    ActionDeclaration,
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
from flink_agents.plan.compile.resources import check_requests, resource_plans
from flink_agents.plan.compile.validation import check_agent, check_annotations
from flink_agents.plan.model import (
    ActionPlan,
    AgentPlan,
    ConditionPlan,
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
    title = _name(instance, name, where)
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


def _name(agent: Agent, name: str | None, where: str) -> str:
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
    actions = list(actions)
    interesting = {
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
            emits=emitted_types(readings[action.name].shown, interesting),
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
    return None if policy is None else RetryPlan.from_policy(policy)


def _types(triggers: Iterable[Trigger]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(type_of, triggers)))


def _condition(when: Callable[..., Any] | None) -> ConditionPlan | None:
    return (
        None
        if when is None
        else ConditionPlan(function=FunctionRef.from_object(when), text=lambda_text(when))
    )


def _config(action: ActionDeclaration) -> dict[str, Any]:
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
