"""Checks that actions, conditions, tools and resource methods can be called, and what actions annotate.

Of annotations, only certain mistakes are rejected: those that cannot be resolved, protocols and type
variables are accepted.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from flink_agents.api.common.places import describe, place_of
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ActionSignatureError
from flink_agents.api.events import Event
from flink_agents.plan.analysis.functions import annotation_of, called, plain_function
from flink_agents.plan.compile.declarations import ActionDeclaration, ResourceDeclaration
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

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_action(action: ActionDeclaration) -> None:
    """Check that an action has parameters for the event and the context.

    Raises:
        ActionSignatureError: It does not.
    """
    function: Any = action.function
    _check_callable(
        f"action {action.name!r}", function, "a function with the parameters (event, ctx)", action.where
    )
    where = place_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        # A function of a C extension without a text signature cannot be checked.
        return
    if action.kind == "instance":
        if not parameters:
            raise _without_self(f"action {action.name!r}", where)
        parameters = parameters[1:]
    pair = parameters[:2]
    extra_parameters = parameters[2:]
    if (
        len(pair) < 2
        or any(parameter.kind not in _POSITIONAL for parameter in pair)
        or any(map(_is_required, extra_parameters))
    ):
        self_prefix = "self, " if action.kind == "instance" else ""
        name = getattr(function, "__name__", action.name)
        raise ActionSignatureError(
            f"action {action.name!r} has a signature that cannot be called",
            expected=f"def {name}({self_prefix}event, ctx)",
            found=_header(function),
            fix="accept exactly the event and the context; read settings from ctx.action_config or self",
            where=where,
        )


def check_condition(action: ActionDeclaration) -> None:
    """Check that a condition has a parameter for the event.

    Raises:
        ActionSignatureError: It does not, or it is a coroutine function.
    """
    when = action.mark.settings.when
    if when is None:
        return
    if not callable(when):
        problem = describe(when)
    elif inspect.iscoroutinefunction(called(when)):
        problem = "a coroutine function"
    else:
        try:
            inspect.signature(when).bind(None)
            return
        except ValueError:
            return
        except TypeError:
            problem = _header(when)
    raise ActionSignatureError(
        f"the condition of action {action.name!r} cannot be called with an event",
        expected="a function that accepts the event and returns a bool",
        found=problem,
        fix="write when=lambda event: ...",
        where=action.where if not callable(when) else f"{action.where}, condition {place_of(when)}",
    )


def check_tool(resource: ResourceDeclaration) -> None:
    """Check that a tool is a function that can be bound to an instance.

    Raises:
        ActionSignatureError: It is not a function, or a method without ``self``.
    """
    _check_callable(
        f"the tool {resource.name!r}",
        resource.function,
        "a function with annotated parameters, or a Tool",
        resource.where,
    )
    assert resource.function is not None
    if resource.kind == "instance" and not list(inspect.signature(resource.function).parameters):
        raise _without_self(f"tool {resource.name!r}", resource.where)


def check_client(resource: ResourceDeclaration) -> None:
    """Check that a client is a function without arguments.

    Raises:
        ActionSignatureError: It is not a function, takes arguments, or is a coroutine function.
    """
    _check_callable(
        f"the client {resource.name!r}",
        resource.function,
        "a generator function, or a function that returns a context manager",
        resource.where,
        fix="add the function that opens the client",
    )
    check_resource_method(resource)


def check_resource_method(resource: ResourceDeclaration) -> None:
    """Check that a method that describes a resource takes no arguments.

    Raises:
        ActionSignatureError: It does.
    """
    function: Any = resource.function
    expected = ["self"] if resource.kind == "instance" else []
    parameters = inspect.signature(function).parameters
    if len(parameters) != len(expected) or inspect.iscoroutinefunction(called(function)):
        raise ActionSignatureError(
            f"the {resource.type.value} method {resource.name!r} has a signature that cannot be called",
            expected=f"def {getattr(function, '__name__', resource.name)}({', '.join(expected)})",
            found=_header(function),
            fix="remove the arguments; the agent's own configuration is in self",
            where=resource.where,
        )


def _check_callable(
    what: str, function: object, expected: str, where: str, fix: str = "add the function itself"
) -> None:
    if not callable(function):
        raise ActionSignatureError(
            f"{what} is not a function", expected=expected, found=describe(function), fix=fix, where=where
        )


def _without_self(what: str, where: str | None) -> ActionSignatureError:
    return ActionSignatureError(
        f"{what} is a method without self",
        expected="self as the first parameter, or @staticmethod",
        found="no parameters",
        fix="add self",
        where=where,
    )


def _header(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return f"def {name}{inspect.signature(function)}"


def _is_required(parameter: inspect.Parameter) -> bool:
    """Return True if a parameter has no default; one like ``n=n`` only binds a value."""
    return parameter.default is parameter.empty


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
