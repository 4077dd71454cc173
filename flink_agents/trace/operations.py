"""Classifies recorded calls: requests to models, tool calls, MCP requests, retrievals, ...

The runtime gives each of its own calls a name such as ``chat:claude`` or ``mcp:files:call_tool:read``.
"""

from __future__ import annotations

from typing import NamedTuple

CHAT = "chat"
TOOL = "tool"
MCP = "mcp"
EMBEDDING = "embedding"
RETRIEVAL = "retrieval"
MEMORY = "vector-store"

_KINDS = {"chat": CHAT, "tool": TOOL, "mcp": MCP, "embed": EMBEDDING, "vector_store": MEMORY}
_READS = ("query", "search", "get", "find", "count")
"""Prefixes of the methods of vector stores that only read."""


class Operation(NamedTuple):
    """The operation of a call.

    Attributes:
        kind: ``chat``, ``tool``, ``mcp``, ``embedding``, ``retrieval``, ``vector-store`` for its changes, or
            empty for a durable step of your own.
        target: Name of the model, tool, server or store. For a durable step, the function.
        request: The request to an MCP server or a vector store, such as ``call_tool:read``; otherwise empty.
    """

    kind: str
    target: str
    request: str = ""


def operation_of(function: str) -> Operation:
    """Classify a durable call by the name of its function, which the runtime gives to its own calls."""
    prefix, colon, target = function.partition(":")
    kind = _KINDS.get(prefix) if colon else None
    if kind is None:
        return Operation("", function)
    if kind == MCP:
        server, _, request = target.partition(":")
        return Operation(MCP, server, request)
    if kind == MEMORY:
        store, _, method = target.rpartition(".")
        return Operation(RETRIEVAL if method.startswith(_READS) else MEMORY, store or target, method)
    return Operation(kind, target)
