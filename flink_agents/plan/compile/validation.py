"""Checks the declarations of an agent; each error names the place, the defect and a fix.

Of annotations, only certain mistakes are rejected: those that cannot be resolved, protocols and type
variables are accepted.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import call_problem, describe, header_of, place_of, place_of_class
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ActionSignatureError, AgentDefinitionError, UnknownTriggerError
from flink_agents.api.events import DELAYED_TAG, Event, OutputEvent
from flink_agents.api.events.approvals import APPROVALS_TAG
from flink_agents.api.events.event_time import LATE_TAG
from flink_agents.api.resources import ResourceType
from flink_agents.plan.analysis.functions import annotation_of, has_async_code, plain_function
from flink_agents.plan.compile.declarations import ActionDeclaration, ResourceDeclaration
from flink_agents.plan.compile.events import BUILT_IN
from flink_agents.plan.model import Kind
from flink_agents.plan.references import type_text

_RESERVED_TAGS = {
    DEAD_LETTER_TAG: "read its records with dead_letters()",
    LATE_TAG: "read its records with late_outputs()",
    APPROVALS_TAG: "read its records with approvals()",
    DELAYED_TAG: "the runtime uses it for delayed events",
}
"""Tags of the side outputs of the runtime, and what to do instead of declaring each, for errors."""

_COLLECTIONS = (list, tuple, set, frozenset, collections.abc.Iterator, collections.abc.AsyncIterator)
"""Types of the events that an action returns or yields together."""


def check_agent(agent: Agent, title: str, actions: Sequence[ActionDeclaration], where: str) -> None:
    """Check declarations without reading code.

    Raises:
        AgentDefinitionError: Something is missing, reserved or of the wrong kind.
    """
    _check_context_class(agent.context_class, where)
    _check_side_outputs(agent, where)
    if not actions:
        raise AgentDefinitionError(
            f"the agent {title!r} has no action",
            expected="at least one action that handles InputEvent",
            fix="mark a method with @action(InputEvent), or use add_action",
            where=where,
        )
    for action in actions:
        _check_action(action)
        _check_async(action)


def _check_async(action: ActionDeclaration) -> None:
    """Check that an action is ``async def``, or is not, as its settings require."""
    is_async = has_async_code(action.function)
    settings = action.mark.settings
    if settings.blocking and is_async:
        raise AgentDefinitionError(
            f"{action.label} is async def, and so cannot be blocking",
            expected="blocking=True with a def action, which then runs in a pool of threads",
            found="async def",
            fix="await its calls, or write def",
            where=action.where,
        )
    if settings.needs_approval and not is_async:
        raise AgentDefinitionError(
            f"{action.label} needs an approval, and so has to be async def",
            expected="an async def action, whose run can be suspended until an answer comes",
            found="a def action",
            fix="write async def",
            where=action.where,
        )


def _check_context_class(context_class: Any, where: str) -> None:
    """Check that the runtime can derive its context from ``context_class``."""
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
        if owner not in RunnerContext.__mro__ and not vars(owner).keys().isdisjoint(("__init__", "__new__")):
            raise AgentDefinitionError(
                f"the context class {context_class.__name__} has its own constructor",
                expected="methods only: the runtime creates the context",
                found=f"{owner.__name__}.__init__",
                fix="remove the constructor; keep values in memory or in the agent",
                where=place_of_class(owner),
            )


def _check_side_outputs(agent: Agent, where: str) -> None:
    """Check that side outputs are a mapping, whose tags are strings that the runtime does not use."""
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


def _check_action(action: ActionDeclaration) -> None:
    """Check that an action accepts the event and the context, and its condition the event."""
    function: Any = action.function
    expected = "a function with the parameters (event, ctx)"
    _check_function(action.label, function, action.kind, expected, action.where)
    names = ["self", "event", "ctx"] if action.kind == "instance" else ["event", "ctx"]
    problem = call_problem(function, len(names), may_be_async=True)
    if problem is not None:
        raise ActionSignatureError(
            f"{action.label} has a signature that cannot be called",
            expected=f"def {getattr(function, '__name__', action.name)}({', '.join(names)})",
            found=problem,
            fix="accept exactly the event and the context; read settings from ctx.action_config or self",
            where=place_of(function),
        )
    when = action.mark.settings.when
    problem = None if when is None else call_problem(when, 1)
    if problem is not None:
        raise ActionSignatureError(
            f"the condition of {action.label} cannot be called with an event",
            expected="a function that accepts the event and returns a bool",
            found=problem,
            fix="write when=lambda event: ...",
            where=f"{action.where}, condition {place_of(when)}" if callable(when) else action.where,
        )
    if any(issubclass(trigger, OutputEvent) for trigger in _trigger_classes(action)):
        raise UnknownTriggerError(
            f"{action.label} is triggered by OutputEvent, which leaves the agent",
            expected="InputEvent or an event of the agent itself",
            found="OutputEvent",
            fix="emit another event in addition to the output, and handle that",
            where=action.where,
        )


def check_resource(resource: ResourceDeclaration) -> None:
    """Check that a tool is a function, and that another resource's function takes no arguments.

    Raises:
        ActionSignatureError: It is not a function, a method without ``self``, or takes arguments.
    """
    is_tool = resource.type is ResourceType.TOOL
    expected = "a generator function, or a function that returns a context manager"
    expected = "a function with annotated parameters, or a Tool" if is_tool else expected
    function: Any = resource.function
    _check_function(f"the {resource.label}", function, resource.kind, expected, resource.where)
    names = ["self"] if resource.kind == "instance" else []
    problem = None if is_tool else call_problem(function, len(names))
    if problem is not None:
        raise ActionSignatureError(
            f"the {resource.type.value} method {resource.name!r} has a signature that cannot be called",
            expected=f"def {getattr(function, '__name__', resource.name)}({', '.join(names)})",
            found=problem,
            fix="remove the arguments; the agent's own configuration is in self",
            where=resource.where,
        )


def _check_function(what: str, function: Any, kind: Kind | None, expected: str, where: str) -> None:
    """Check that a member is a function, and that a method has ``self``."""
    if not callable(function):
        raise ActionSignatureError(
            f"{what} is not a function",
            expected=expected,
            found=describe(function),
            fix="add the function itself",
            where=where,
        )
    if kind == "instance" and not inspect.signature(function).parameters:
        raise ActionSignatureError(
            f"{what} is a method without self",
            expected="self as the first parameter, or @staticmethod",
            found="no parameters",
            fix="add self",
            where=where,
        )


def check_annotations(action: ActionDeclaration, context_class: type[RunnerContext]) -> None:
    """Check that the annotations of an action fit its arguments and its possible results.

    Raises:
        ActionSignatureError: An annotation does not fit.
    """
    function = plain_function(action.function)
    if function is None:
        return
    names = list(inspect.signature(function).parameters)
    event, ctx = ([*names, "", ""][1:] if action.kind == "instance" else [*names, "", ""])[:2]
    annotation = annotation_of(function, ctx)
    classes = list(_classes(annotation))
    if classes and not issubclass(context_class, tuple(classes)):
        expected = context_class.__qualname__
        raise _wrong_annotation(action, function, f"annotates {ctx!r}, the context, as", annotation, expected)
    annotation = annotation_of(function, event)
    classes = list(_classes(annotation))
    triggers = list(_trigger_classes(action))
    fits = any(issubclass(trigger, tuple(classes)) for trigger in triggers)
    fits = fits or any(issubclass(annotated_class, tuple(triggers)) for annotated_class in classes)
    if classes and not fits:
        expected = f"{' | '.join(trigger.__qualname__ for trigger in triggers)}, which triggers it"
        raise _wrong_annotation(action, function, f"annotates {event!r}, the event, as", annotation, expected)
    annotation = annotation_of(function, "return")
    for result_class in filter(_is_plain_class, _members(annotation, everywhere=True)):
        is_collection = issubclass(result_class, _COLLECTIONS) or result_class.__module__ == "collections.abc"
        is_event = issubclass(result_class, Event) or issubclass(Event, result_class)
        if not (is_event or is_collection or result_class is type(None)):
            expected = "events, or None; a value leaves the agent as OutputEvent(output=value)"
            raise _wrong_annotation(action, function, "says that it returns", annotation, expected)


def _trigger_classes(action: ActionDeclaration) -> Iterator[type[Event]]:
    """Yield the event classes of an action's triggers; ``Event`` for a type string, whose class is open."""
    for trigger in action.mark.triggers:
        # An event that is named by its type string may be of any class.
        yield BUILT_IN.get(trigger, Event) if isinstance(trigger, str) else trigger


def _members(annotation: Any, everywhere: bool = False) -> Iterator[Any]:
    """Yield the members of a union, ``everywhere`` also those of collections and what generators yield."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (collections.abc.Generator, collections.abc.AsyncGenerator):
        arguments = arguments[:1]
    if arguments and (everywhere or origin in (Union, types.UnionType)):
        for argument in arguments:
            yield from _members(argument, everywhere)
    else:
        yield annotation


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes in an annotation; none if it leaves something open."""
    members = list(_members(annotation))
    if all(_is_plain_class(member) for member in members):
        yield from members


def _is_plain_class(member: Any) -> bool:
    """Return True for a class that ``issubclass`` accepts: no generic, no protocol, not ``Any``."""
    return (
        isinstance(member, type)
        and get_origin(member) is None
        and member is not Any
        and not getattr(member, "_is_protocol", False)
    )


def _wrong_annotation(
    action: ActionDeclaration, function: Any, what: str, annotation: Any, expected: str
) -> ActionSignatureError:
    """Return the error of an annotation that does not fit."""
    shown = annotation.__qualname__ if isinstance(annotation, type) else type_text(annotation)
    return ActionSignatureError(
        f"{action.label} {what} {shown}",
        expected=expected,
        found=header_of(function),
        fix="correct the annotation, or the trigger; the order is event, ctx",
        where=place_of(function),
    )
