"""The names under which a model calls its tools: each is unique.

The author's own tools keep their names. A server can add a tool of any name while the job runs, so its option
``on_name_taken`` decides how a tool is handled whose name is taken.
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
    """Return a model's tools in their order, each with a unique name.

    Raises:
        DuplicateNameError: Two tools of the author have the same name, or a server's policy is to fail.
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
    """Return a server's tool under a free name; None if it is left out."""
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
    """Return the error about names that two tools have."""
    return DuplicateNameError(
        "a model got two tools with the same name",
        expected="tools of different names",
        found=", ".join(map(repr, names)),
        fix="rename one of them: Tool(function, name=...); set a prefix of an MCP server, or "
        "on_name_taken='prefix'",
    )
