"""Checks that an agent is valid; each error names the place, the defect and a fix.

Mistakes that declarations and code show are found when the plan is compiled, before a job
is submitted.
"""

from __future__ import annotations

import graphlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import describe, place_of_class
from flink_agents.api.common.policies import DEAD_LETTER_TAG, OnError
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import (
    AgentDefinitionError,
    CyclicResourceError,
    DuplicateNameError,
    EventNeverEmittedError,
    MissingResourceError,
    PlanFormatError,
    UnknownTriggerError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.api.events import DELAYED_TAG, AgentCallEvent, Event, InputEvent, NamedEvent, OutputEvent
from flink_agents.api.events.approvals import APPROVALS_TAG
from flink_agents.api.events.event_time import LATE_TAG
from flink_agents.api.resources import (
    TOOL_SOURCES,
    Prompt,
    ResourceRef,
    ResourceType,
    template_variables,
)
from flink_agents.plan.analysis.functions import has_async_code
from flink_agents.plan.analysis.reading import EmittedEvents
from flink_agents.plan.compile.declarations import ActionDeclaration
from flink_agents.plan.compile.events import BUILT_IN, Emissions, is_exact, type_of
from flink_agents.plan.compile.signatures import check_action, check_annotations, check_condition
from flink_agents.plan.model import AgentPlan, ResourcePlan

_RESERVED_TAGS = {
    DEAD_LETTER_TAG: "read its records with dead_letters()",
    LATE_TAG: "read its records with late_outputs()",
    APPROVALS_TAG: "read its records with approvals()",
    DELAYED_TAG: "the runtime uses it for delayed events",
}
"""Side outputs of the runtime, with their meanings."""


class AgentPlanWarning(UserWarning):
    """An agent is valid, but probably does not do what you intend."""


def check_agent(agent: Agent, title: str, actions: Sequence[ActionDeclaration], where: str) -> None:
    """Check declarations without reading code.

    Raises:
        AgentDefinitionError: Something is missing, reserved or of the wrong kind.
    """
    check_context_class(agent.context_class, where)
    _check_side_outputs(agent, where)
    if not actions:
        raise AgentDefinitionError(
            f"the agent {title!r} has no action",
            expected="at least one action that handles InputEvent",
            fix="mark a method with @action(InputEvent), or use add_action",
            where=where,
        )
    for action in actions:
        check_action(action)
        check_condition(action)
        _check_blocking(action)
        _check_approval(action)
        if any(_is_output(trigger) for trigger in action.mark.triggers):
            raise UnknownTriggerError(
                f"action {action.name!r} is triggered by OutputEvent, which leaves the agent",
                expected="InputEvent or an event of the agent itself",
                found="OutputEvent",
                fix="emit another event in addition to the output, and handle that",
                where=action.where,
            )


def _check_blocking(action: ActionDeclaration) -> None:
    if action.mark.settings.blocking and has_async_code(action.function):
        raise AgentDefinitionError(
            f"action {action.name!r} is async def, and so cannot be blocking",
            expected="blocking=True with a def action, which then runs in a pool of threads",
            found="async def",
            fix="await its calls, or write def",
            where=action.where,
        )


def _check_approval(action: ActionDeclaration) -> None:
    if action.mark.settings.needs_approval and not has_async_code(action.function):
        raise AgentDefinitionError(
            f"action {action.name!r} needs an approval, and so has to be async def",
            expected="an async def action, whose run can be suspended until an answer comes",
            found="a def action",
            fix="write async def",
            where=action.where,
        )


def check_context_class(context_class: Any, where: str) -> None:
    """Check that the runtime can derive its context from ``context_class``.

    Raises:
        AgentDefinitionError: It is not a ``RunnerContext`` subclass, or has a constructor.
    """
    if context_class is None:
        return
    if not (isinstance(context_class, type) and issubclass(context_class, RunnerContext)):
        raise AgentDefinitionError(
            "context_class is not a subclass of RunnerContext",
            expected="a subclass of flink_agents.RunnerContext",
            found=describe(context_class),
            fix="derive the class from RunnerContext",
            where=where,
        )
    for owner in context_class.__mro__:
        if owner in (RunnerContext, object) or owner in RunnerContext.__mro__:
            continue
        if any(name in vars(owner) for name in ("__init__", "__new__")):
            raise AgentDefinitionError(
                f"the context class {context_class.__name__} has its own constructor",
                expected="methods only: the runtime creates the context",
                found=f"{owner.__name__}.__init__",
                fix="remove the constructor; keep values in memory or in the agent",
                where=place_of_class(owner),
            )


def check_event_classes(event_classes: Iterable[type[Event]]) -> None:
    """Check that no two event classes have the same type string.

    Raises:
        PlanFormatError: A type string is not a string.
        DuplicateNameError: Two classes have the same one.
    """
    first: dict[str, type[Event]] = dict(BUILT_IN)
    for event in event_classes:
        kind: object = event.EVENT_TYPE
        if not isinstance(kind, str) or not kind:
            raise PlanFormatError(
                f"the event class {event.__name__} has no usable EVENT_TYPE",
                expected="a string that no other event class has",
                found=repr(kind),
                fix="set EVENT_TYPE to a string, or remove it: then it is the name of the class",
                where=place_of_class(event),
            )
        other_class = first.setdefault(event.EVENT_TYPE, event)
        if other_class is not event:
            raise DuplicateNameError(
                f"two event classes have the type {event.EVENT_TYPE!r}",
                expected="one class for each type string",
                found=f"the other one at {_place(other_class)}",
                fix="set EVENT_TYPE in one of them",
                where=_place(event),
            )


def _place(event: type[Event]) -> str:
    return f"{event.__module__}.{event.__qualname__}" if event in BUILT_IN.values() else place_of_class(event)


def check_prompt(prompt: Prompt, name: str, where: str) -> None:
    """Check that the templates of a prompt can be filled in.

    Raises:
        AgentDefinitionError: Braces do not match, or a variable has no name.
    """
    for text in prompt.templates:
        template_variables(text, f"the prompt {name!r}", where)


def with_tool_sources(resources: Sequence[ResourcePlan]) -> tuple[ResourcePlan, ...]:
    """Return ``resources`` with references to sources of tools in place of tools with such names."""
    resource_keys = {(resource.type, resource.name) for resource in resources}

    def meant(reference: ResourceRef) -> ResourceRef:
        if reference.type is ResourceType.TOOL and (reference.type, reference.name) not in resource_keys:
            for kind in TOOL_SOURCES:
                if (kind, reference.name) in resource_keys:
                    return ResourceRef(type=kind, name=reference.name)
        return reference

    return tuple(
        resource.model_copy(update={"references": tuple(map(meant, resource.references))})
        if resource.references
        else resource
        for resource in resources
    )


def check_resources(
    resources: Sequence[ResourcePlan], places: Mapping[tuple[ResourceType, str], str]
) -> None:
    """Check that each resource that another one names exists, and that there is no cycle.

    Raises:
        MissingResourceError: A resource does not exist.
        CyclicResourceError: Resources name each other in a cycle.
    """
    resource_keys = {(resource_plan.type, resource_plan.name) for resource_plan in resources}
    graph: dict[tuple[ResourceType, str], set[tuple[ResourceType, str]]] = {}
    for resource in resources:
        for reference in resource.references:
            target = (reference.type, reference.name)
            if target not in resource_keys:
                message = f"the {resource.type.value} {resource.name!r} names a {reference.type.value} "
                message += f"{reference.name!r} that the agent does not have"
                raise _missing(message, target, resource_keys, places[resource.type, resource.name])
            graph.setdefault((resource.type, resource.name), set()).add(target)
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


def check_flow(
    plan: AgentPlan,
    actions: Sequence[ActionDeclaration],
    emissions: Emissions,
    event_classes: Sequence[type[Event]],
    where: str,
    context_class: type[RunnerContext] | None = None,
) -> None:
    """Check that inputs reach an action, that each trigger can occur, and that annotations agree.

    Raises:
        AgentDefinitionError: No action takes inputs, or no action takes an emitted event.
        UnknownTriggerError: A type string is neither a class's nor emitted.
        EventNeverEmittedError: No action can emit the type of a trigger.
        ActionSignatureError: An annotation of an action does not fit.
        MissingResourceError: An action asks for a resource that the agent does not have.
    """
    if not any(
        _accepts(candidate, EmittedEvents(events={InputEvent}))
        for act in actions
        for candidate in act.mark.triggers
    ):
        raise AgentDefinitionError(
            f"no action of the agent {plan.name!r} handles inputs",
            expected="an action that is triggered by InputEvent",
            found=", ".join(
                f"{listed_action.name}: {', '.join(listed_action.triggers)}" for listed_action in plan.actions
            ),
            fix="mark the first action with @action(InputEvent)",
            where=where,
        )
    everything = emissions.together()
    everything.events |= _entries(actions)
    for action in actions:
        for trigger in action.mark.triggers:
            if not everything.opaque and not _accepts(trigger, everything):
                raise _never_emitted(action, trigger, everything, event_classes)
    _check_taken(plan, actions, emissions)
    for action in actions:
        check_annotations(action, context_class)
        _check_requested(plan, action, emissions)
    _warn_unreachable(actions, emissions)


def _check_taken(plan: AgentPlan, actions: Sequence[ActionDeclaration], emissions: Emissions) -> None:
    """Check that some action takes each event that an action certainly emits.

    If the agent has a policy for other events, they are not a mistake.
    """
    if plan.on_unhandled not in (None, OnError.FAIL):
        return
    triggers = [trigger for action in actions for trigger in action.mark.triggers]
    for action in actions:
        for event_class in sorted(emissions.shown[action.name].certain, key=type_of):
            if event_class in (Event, InputEvent) or issubclass(event_class, OutputEvent | NamedEvent):
                continue
            if not any(_accepts(trigger, EmittedEvents(events={event_class})) for trigger in triggers):
                name = event_class.EVENT_TYPE
                types = sorted({type_of(trigger) for trigger in triggers})
                raise AgentDefinitionError(
                    f"action {action.name!r} emits {name!r}, which no action of the agent handles",
                    expected=f"an event that an action handles: {', '.join(types)}; or an OutputEvent",
                    found=name,
                    fix=f"add an action that is triggered by {name}, or emit the value with "
                    "OutputEvent(output=...)",
                    where=action.where,
                )


def _check_requested(plan: AgentPlan, action: ActionDeclaration, emissions: Emissions) -> None:
    """Check that the agent has the resources that an action names.

    Raises:
        MissingResourceError: It lacks one.
    """
    resource_keys = {(resource_plan.type, resource_plan.name) for resource_plan in plan.resources}
    for resource in emissions.shown[action.name].requests:
        kind = _kind_of(resource.kind)
        if kind is None or (kind, resource.name) in resource_keys:
            continue
        message = (
            f"action {action.name!r} requests a {kind.value} {resource.name!r} that the agent does not have"
        )
        other_type = next((of.value for of, name in resource_keys if name == resource.name), None)
        otherwise = None if other_type is None else f"{resource.name!r} is a {other_type}: ask for that type"
        raise _missing(message, (kind, resource.name), resource_keys, resource.place, otherwise)


def _kind_of(name: str) -> ResourceType | None:
    try:
        return ResourceType(name)
    except AgentDefinitionError:  # a distribution that is not installed here may provide it
        return None


def _entries(actions: Sequence[ActionDeclaration]) -> set[type[Event]]:
    """Return the events that come from outside: inputs, and calls of other agents."""
    triggers = [trigger for action in actions for trigger in action.mark.triggers]
    return {
        InputEvent,
        *(
            trigger
            for trigger in triggers
            if isinstance(trigger, type) and issubclass(trigger, AgentCallEvent)
        ),
    }


def _accepts(trigger: type[Event] | str, reading: EmittedEvents) -> bool:
    """Return True if ``trigger`` can match an event in ``reading``."""
    if isinstance(trigger, str) and is_exact(trigger):
        return trigger in reading.texts or any(
            event_class.EVENT_TYPE == trigger for event_class in reading.events
        )
    wanted = BUILT_IN[trigger] if isinstance(trigger, str) else trigger
    return any(issubclass(event_class, wanted) for event_class in reading.events)


def _never_emitted(
    action: ActionDeclaration,
    trigger: type[Event] | str,
    reading: EmittedEvents,
    event_classes: Sequence[type[Event]],
) -> AgentDefinitionError:
    name = type_of(trigger)
    types = sorted(
        {event_class.EVENT_TYPE for event_class in event_classes} - set(BUILT_IN) | {InputEvent.EVENT_TYPE}
    )
    if isinstance(trigger, str) and name not in types:
        return UnknownTriggerError(
            f"action {action.name!r} waits for {name!r}, which no event class and no action knows",
            expected=f"an event class, or one of {', '.join(types)}",
            found=repr(name),
            fix=suggest(name, types, f"emit it, or declare it with emits=[{name!r}] in the action that does"),
            where=action.where,
        )
    emitted = sorted(
        event_class.EVENT_TYPE for event_class in reading.events if event_class not in (Event, OutputEvent)
    )
    return EventNeverEmittedError(
        f"action {action.name!r} waits for {name!r}, which no action emits",
        expected="an action of the agent that emits it",
        found=f"actions and inputs emit {', '.join(emitted)}",
        fix=f"emit it, remove the action, or declare emits=[{name}] if a library emits it",
        where=action.where,
    )


def _warn_unreachable(actions: Sequence[ActionDeclaration], emissions: Emissions) -> None:
    reached: set[str] = set()
    flowing = EmittedEvents(events=_entries(actions))
    changed = True
    while changed and not flowing.opaque:
        changed = False
        for action in actions:
            if action.name not in reached and any(
                _accepts(trigger, flowing) for trigger in action.mark.triggers
            ):
                reached.add(action.name)
                flowing.update(emissions.by_action[action.name])
                changed = True
    for action in actions:
        if action.name not in reached and not flowing.opaque:
            warnings.warn(
                f"{action.where}: action {action.name!r} is never reached from InputEvent: "
                f"{', '.join(map(type_of, action.mark.triggers))} is emitted only by actions that are not "
                "reached, too",
                AgentPlanWarning,
                stacklevel=5,
            )


def _check_side_outputs(agent: Agent, where: str) -> None:
    declared: object = agent.side_outputs
    if not isinstance(declared, Mapping):
        raise AgentDefinitionError(
            "side_outputs is not a mapping",
            expected="tags and the types of their values",
            found=repr(declared),
            fix="write side_outputs = {'late': Order}",
            where=where,
        )
    for tag in agent.side_outputs:
        reserved = _RESERVED_TAGS.get(tag) if isinstance(tag, str) else None
        if reserved is not None or not isinstance(tag, str) or not tag:
            raise AgentDefinitionError(
                f"the side output {tag!r} has a reserved name" if reserved else "a side output has no name",
                expected="a string of your own",
                found=repr(tag),
                fix=f"rename it; {reserved}" if reserved else "name it",
                where=where,
            )


def _is_output(trigger: type[Event] | str) -> bool:
    if isinstance(trigger, str):
        return trigger == OutputEvent.EVENT_TYPE
    return issubclass(trigger, OutputEvent)


def _missing(
    message: str,
    target: tuple[ResourceType, str],
    resource_keys: Iterable[tuple[ResourceType, str]],
    where: str,
    fix: str | None = None,
) -> MissingResourceError:
    kind, name = target
    names = sorted(resource_name for of_kind, resource_name in resource_keys if of_kind is kind)
    return MissingResourceError(
        message,
        expected=", ".join(map(repr, names)) or f"a {kind.value} in the agent",
        found=repr(name),
        fix=suggest(name, names, fix or f"declare it with @{kind.value} or add_resource"),
        where=where,
    )
