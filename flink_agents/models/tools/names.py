"""The names by which a model calls its tools: no two tools have the same one.

The author's own tools keep their names. A server can add a tool of any name while the job runs, so its option
``on_name_taken`` says what becomes of a tool whose name is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import DuplicateNameError
from flink_agents.models.tools.calls import ModelTool

_log = bounded_logger("flink_agents.mcp")


def with_names(tools: Sequence[ModelTool]) -> list[ModelTool]:
    """The tools that a model is given, each with a name of its own, in their order.

    Raises:
        DuplicateNameError: Two tools of the author have one name, or a server is to fail for one.
    """
    own = Counter(tool.name for tool in tools if not _is_served(tool))
    twice = [name for name, number in own.items() if number > 1]
    if twice:
        raise duplicate(twice)
    taken, given = set(own), list[ModelTool]()
    for tool in tools:
        named = _named(tool, taken) if _is_served(tool) else tool
        if named is not None:
            given.append(named)
            taken.add(named.name)
    return given


def _is_served(tool: ModelTool) -> bool:
    return hasattr(tool, "on_name_taken")


def _named(tool: Any, taken: set[str]) -> ModelTool | None:
    """A tool of a server under a name that is free; None if it is left out."""
    if tool.name not in taken:
        return tool
    if tool.on_name_taken == "fail":
        raise duplicate([tool.name])
    if tool.on_name_taken == "prefix" and (other := tool.prefixed).name not in taken:
        _log.warning("a model has a tool %r already: the tool of an MCP server is %r", tool.name, other.name)
        return other
    _log.warning("a model has a tool %r already: the tool of an MCP server is left out", tool.name)
    return None


def duplicate(names: Sequence[str]) -> DuplicateNameError:
    """The error of names that two tools have."""
    return DuplicateNameError(
        "a model is given two tools of one name",
        expected="tools of different names",
        found=", ".join(map(repr, names)),
        fix="name one of them: Tool(function, name=...); give an MCP server a prefix, or say "
        "on_name_taken='prefix'",
    )
