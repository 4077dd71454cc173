"""Tells what a recorded call is: a request to a model, a tool, an MCP request, a retrieval, ...

The runtime names each call that it makes for an author, such as ``chat:claude`` or
``mcp:files:call_tool:read``.
"""

from __future__ import annotations

from typing import NamedTuple

CHAT, TOOL, MCP, EMBEDDING, RETRIEVAL, MEMORY = (
    "chat",
    "tool",
    "mcp",
    "embedding",
    "retrieval",
    "vector-store",
)

_KINDS = {"chat": CHAT, "tool": TOOL, "mcp": MCP, "embed": EMBEDDING, "vector_store": MEMORY}
_READS = ("query", "search", "get", "find", "count")
"""What the methods of vector stores that only read begin with."""


class Operation(NamedTuple):
    """What a call is.

    Attributes:
        kind: ``chat``, ``tool``, ``mcp``, ``embedding``, ``retrieval``, ``vector-store`` for what changes
            one; or empty for a durable step of the author.
        target: Name of the model, tool, server or store; for a durable step, the function.
        request: What an MCP server or a vector store is asked for, such as ``call_tool:read``; else empty.
    """

    kind: str
    target: str
    request: str = ""


def operation_of(function: str) -> Operation:
    """Return what a call is, by the name of its function."""
    prefix, colon, rest = function.partition(":")
    kind = _KINDS.get(prefix) if colon else None
    if kind is None:
        return Operation("", function)
    if kind == MCP:
        server, _, request = rest.partition(":")
        return Operation(MCP, server, request)
    if kind == MEMORY:
        store, _, method = rest.rpartition(".")
        return Operation(RETRIEVAL if method.startswith(_READS) else MEMORY, store or rest, method)
    return Operation(kind, rest)
