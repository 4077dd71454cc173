"""Finds out from its code what an agent will need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from flink_agents.plan.binding import BoundAgent

_DURABLE = frozenset({"durable_execute", "durable_execute_async"})


def makes_durable_calls(agent: BoundAgent) -> bool:
    """Whether the code of the agent's actions names a durable call."""
    return any(_makes_calls(action.function, agent) for action in agent.actions)


def mark_durable_actions(agent: BoundAgent) -> None:
    """Note which actions make durable calls, so that none of them begins where it cannot end."""
    for action in agent.actions:
        if _makes_calls(action.function, agent):
            action.make_calls()


def _makes_calls(action: Callable[..., Any], agent: BoundAgent) -> bool:
    """Whether the code of an action names a durable call.

    Looks at the action, at methods of the agent and of its context class that it names, and at functions
    of the same modules. A call that is made by other code is not seen here.
    """
    owners = [type(agent.instance), *filter(None, [agent.context_class])]
    ahead: list[Any] = [inspect.unwrap(action)]
    seen: set[int] = set()
    while ahead:
        function = ahead.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        names = set(_names(function.__code__))
        if names & _DURABLE:
            return True
        ahead += _functions(names, function, owners)
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions(names: Iterable[str], function: FunctionType, owners: Iterable[type]) -> Iterator[Any]:
    """Functions of the same module, methods of the agent and closures that may be meant by ``names``."""
    for name in names:
        methods = [inspect.getattr_static(owner, name, None) for owner in owners]
        for found in (function.__globals__.get(name), *methods):
            if getattr(found, "__module__", None) == function.__module__:
                yield inspect.unwrap(found) if callable(found) else found
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # a name that has no value yet
