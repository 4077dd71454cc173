"""Checks that actions, conditions, tools and resource methods can be called."""

from __future__ import annotations

import inspect
from typing import Any

from flink_agents.api.common.places import describe, place_of
from flink_agents.api.errors import ActionSignatureError
from flink_agents.plan.analysis.functions import called
from flink_agents.plan.compile.declarations import ActionDeclaration, ResourceDeclaration

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
