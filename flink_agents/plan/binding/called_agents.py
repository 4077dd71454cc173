"""Finds the sub-agents of an agent, as far as its code names them in the call.

An agent is a sub-agent if a function calls ``ctx.call_agent`` or a similar method and names the agent: a
global, an attribute of the calling agent, a variable of an enclosing function, or an item of a collection of
these.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Set
from types import CodeType, FunctionType
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.decorators import ACTION_MARK, RESOURCE_MARK
from flink_agents.plan.binding.uses import ASKS, OF_MODULES, named_by, names_in, with_contents
from flink_agents.plan.compile.code import AgentCode
from flink_agents.plan.compile.compiler import compile_with_code
from flink_agents.plan.compile.configuration import instance_of
from flink_agents.plan.compile.declarations import actions_of, resources_of
from flink_agents.plan.model import AgentPlan

_MAX_FOLLOWED = 1000
"""Maximum number of functions of one agent that are read."""

_MAX_WRAPPED = 10
"""Maximum number of wrappers around a function: test doubles can be nested endlessly."""


def asks_for_approvals(agent: Agent) -> bool:
    """Return True if a sub-agent of ``agent`` needs approvals, at any depth.

    Its requests belong to the calling agent, whose streams emit and answer them.
    """
    for called, plan, _ in called_agents(agent):
        if plan is None:
            if _has_marks(called):
                return True
        elif any(plan_part.needs_approval for plan_part in (*plan.actions, *plan.resources)):
            return True
    return False


def called_agents(
    agent: Agent,
) -> Iterator[tuple[Agent | type[Agent], AgentPlan | None, AgentCode | None]]:
    """Yield the sub-agents of an agent, at any depth, with plan and code; None if one cannot be compiled."""
    ahead = [agent]
    # Visited objects are kept alive, so that no other object gets the same id().
    seen: dict[int, Any] = {}
    while ahead:
        for called in _called_by(ahead.pop()):
            if id(called) in seen:
                continue
            seen[id(called)] = called
            try:
                instance = instance_of(called)
                plan, code = compile_with_code(instance)
            except Exception:  # Whatever the user's code raises.
                # The calling action gets the error, unless it passes the arguments that the class needs.
                yield called, None, None
                continue
            yield called, plan, code
            ahead.append(instance)


def _called_by(agent: Agent) -> Iterator[Agent | type[Agent]]:
    """Yield the sub-agents that the code of an agent names."""
    declared = [declaration.function for declaration in (*actions_of(agent), *resources_of(agent))]
    added = [getattr(resource.value, "func", None) for resource in resources_of(agent)]
    ahead: list[Any] = [*declared, *added]
    seen: set[int] = set()
    while ahead and len(seen) < _MAX_FOLLOWED:
        function = _plain(ahead.pop())
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        names = names_in(function.__code__)
        values = [*named_by(_globals_of(function.__code__), function, names), *_attributes(agent, names)]
        if not names.isdisjoint(ASKS):
            yield from filter(_is_agent, with_contents(values))
        ahead += (value for value in with_contents(values) if not isinstance(value, type))


def _globals_of(code: CodeType) -> set[str]:
    """Return the names that code looks up in its module; an attribute may have the name of a global."""
    names = {
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname in OF_MODULES
    }
    inner = (_globals_of(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return names.union(*inner)


def _attributes(agent: Agent, names: Set[str]) -> Iterator[Any]:
    """Yield attributes of an agent and its class."""
    attributes = vars(agent)
    for name in names:
        if name in attributes:
            yield attributes[name]
        yield inspect.getattr_static(type(agent), name, None)


def _plain(function: Any) -> FunctionType | None:
    """Return the function in a callable, or None."""
    if isinstance(function, property):
        function = function.fget
    for _ in range(_MAX_WRAPPED):
        if isinstance(function, FunctionType):
            break
        function = getattr(function, "__func__", getattr(function, "func", None))
    if not isinstance(function, FunctionType):
        return None
    unwrapped_function = inspect.unwrap(function)
    return unwrapped_function if isinstance(unwrapped_function, FunctionType) else None


def _is_agent(value: Any) -> bool:
    return isinstance(value, Agent) or (isinstance(value, type) and issubclass(value, Agent))


def _has_marks(agent: Agent | type[Agent]) -> bool:
    """Return True if an action or a tool of a class is declared with an approval."""
    kind = agent if isinstance(agent, type) else type(agent)
    members = [_plain(member) for base in kind.__mro__ for member in vars(base).values()]
    marks = [
        getattr(member, name, None) for member in members if member for name in (ACTION_MARK, RESOURCE_MARK)
    ]
    return any(mark.settings.needs_approval for mark in marks if mark is not None)
