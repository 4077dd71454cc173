"""Checks an action's annotations of the event, the context and the result.

Only certain mistakes are rejected: annotations that cannot be resolved, protocols and type variables are
accepted.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from flink_agents.api.common.places import place_of
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ActionSignatureError
from flink_agents.api.events import Event
from flink_agents.plan.analysis.functions import annotation_of
from flink_agents.plan.analysis.reading import plain_function
from flink_agents.plan.compile.declarations import ActionDeclaration
from flink_agents.plan.compile.events import BUILT_IN
from flink_agents.plan.references import type_text

_YIELDING = (
    collections.abc.Generator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.AsyncIterator,
    collections.abc.Iterable,
    collections.abc.AsyncIterable,
    collections.abc.Sequence,
    collections.abc.Collection,
    list,
    tuple,
    set,
    frozenset,
)
"""Types whose arguments are the types that an action returns or yields."""

_HOLDERS = (list, tuple, set, frozenset, collections.abc.Iterator, collections.abc.AsyncIterator)


def check_annotations(action: ActionDeclaration, context_class: type[RunnerContext] | None) -> None:
    """Check that the annotations of an action fit its arguments and its possible results.

    Args:
        action: The action; its signature is valid.
        context_class: The agent's own context class.

    Raises:
        ActionSignatureError: An annotation does not fit.
    """
    function: Any = plain_function(action.function)
    if function is None:
        return
    names = list(inspect.signature(function).parameters)
    names = names[1:] if action.kind == "instance" else names
    if len(names) < 2:
        return
    event, ctx = names[:2]
    wanted = context_class or RunnerContext
    annotation = annotation_of(function, ctx)
    classes = list(_classes(annotation))
    if classes and not any(issubclass(wanted, annotated_class) for annotated_class in classes):
        raise _wrong(action, function, f"annotates {ctx!r}, the context, as", annotation, wanted.__qualname__)
    annotation = annotation_of(function, event)
    classes = list(_classes(annotation))
    triggers = list(_trigger_classes(action))
    fits = any(
        issubclass(trigger, annotated_class) or issubclass(annotated_class, trigger)
        for trigger in triggers
        for annotated_class in classes
    )
    if classes and not fits:
        expected = f"{' | '.join(trigger.__qualname__ for trigger in triggers)}, which triggers it"
        raise _wrong(action, function, f"annotates {event!r}, the event, as", annotation, expected)
    _check_result(action, function)


def _check_result(action: ActionDeclaration, function: Any) -> None:
    annotation = annotation_of(function, "return")
    for result_class in _results(annotation):
        if not (
            issubclass(result_class, Event) or issubclass(Event, result_class) or result_class is type(None)
        ):
            raise _wrong(
                action,
                function,
                "says that it returns",
                annotation,
                "events, or None; a value leaves the agent as OutputEvent(output=value)",
            )


def _trigger_classes(action: ActionDeclaration) -> Iterator[type[Event]]:
    for trigger in action.mark.triggers:
        # An event that is named by its type string may be of any class.
        yield BUILT_IN.get(trigger, Event) if isinstance(trigger, str) else trigger


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _members(argument)
    else:
        yield annotation


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes in an annotation; none if it leaves something open."""
    members = list(_members(annotation))
    if all(_is_plain_class(member) for member in members):
        yield from members


def _results(annotation: Any) -> Iterator[type]:
    """Yield the classes that an action returns or yields, as far as they are known."""
    for member in _members(annotation):
        origin = get_origin(member)
        arguments = get_args(member)
        if origin in _YIELDING and arguments:
            yielded = arguments if origin is tuple else arguments[:1]
            for argument in yielded:
                yield from _results(argument)
        elif _is_plain_class(member) and member not in _YIELDING and not issubclass(member, _HOLDERS):
            yield member


def _is_plain_class(member: Any) -> bool:
    return (
        isinstance(member, type)
        and get_origin(member) is None
        and member is not Any
        and not getattr(member, "_is_protocol", False)
    )


def _wrong(
    action: ActionDeclaration, function: Any, what: str, annotation: Any, expected: str
) -> ActionSignatureError:
    shown = annotation.__qualname__ if isinstance(annotation, type) else type_text(annotation)
    return ActionSignatureError(
        f"action {action.name!r} {what} {shown}",
        expected=expected,
        found=f"def {getattr(function, '__name__', action.name)}{inspect.signature(function)}",
        fix="correct the annotation, or the trigger; the order is event, ctx",
        where=place_of(function),
    )
