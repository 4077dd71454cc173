"""Finds misspelt settings among the attributes of an agent, which would have no effect."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import unwrap
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.settings import check_near


def check_attributes(agent: Agent, title: str, where: str) -> None:
    """Check that no attribute of an agent is a misspelt setting.

    An attribute that a method of the agent reads is the user's own, whatever its name is.

    Raises:
        AgentDefinitionError: An attribute is.
    """
    kinds = [kind for kind in type(agent).__mro__ if kind is not object]
    own = [kind for kind in kinds if not kind.__module__.startswith("flink_agents.")]
    settings = {
        name
        for kind in kinds
        if kind not in own
        for name in vars(kind)
        if _is_setting(name, vars(kind)[name])
    }
    names = {
        name
        for members in (*map(vars, own), vars(agent))
        for name, value in members.items()
        if name not in settings and _is_setting(name, value)
    }
    for name in sorted(names):
        try:
            check_near(f"the agent {title!r}", where, [name], settings)
        except AgentDefinitionError:
            # Reading the methods takes long, and hardly any agent has such an attribute.
            if name not in _read(own):
                raise


def _is_setting(name: str, value: Any) -> bool:
    """Return True if an attribute can be a setting: plain data, or a class."""
    return not name.startswith("_") and (isinstance(value, type) or not _is_code(value))


def _is_code(value: Any) -> bool:
    return inspect.isroutine(unwrap(value)) or isinstance(value, property)


def _read(kinds: list[type]) -> set[str]:
    """Return the attribute names that the methods of classes read."""
    codes = [getattr(unwrap(value), "__code__", None) for kind in kinds for value in vars(kind).values()]
    return {name for code in codes if isinstance(code, CodeType) for name in _names(code)}


def _names(code: CodeType) -> Iterator[str]:
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR") or isinstance(one.argval, str):
            if not one.opname.startswith("STORE_"):
                yield str(one.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
