"""Answers of a server, as values for records and for models."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import mcp_types
from pydantic_ai.mcp import EmbeddedResource, PromptResult
from pydantic_ai.messages import BinaryContent, TextContent
from pydantic_core import to_jsonable_python

from flink_agents.api.errors import MCPResultError
from flink_agents.api.models.mcp import MCPServerSpec, MCPTool
from flink_agents.models.tools.results import for_model as result_for_model


def tools_of(spec: MCPServerSpec, listed: Iterable[mcp_types.Tool]) -> list[dict[str, Any]]:
    """Return the tools that a description selects, as JSON values; :func:`read_tool` reads them.

    Args:
        spec: The description of the server.
        listed: All tools that the server lists.
    """
    selected_tools: list[dict[str, Any]] = []
    for tool in listed:
        is_included = spec.tools is None or _matches_pattern(tool.name, spec.tools)
        if not is_included or _matches_pattern(tool.name, spec.exclude):
            continue
        selected_tools.append(
            {
                "name": tool_name(spec, tool.name),
                "tool": tool.name,
                "description": tool.description or "",
                "parameters": dict(tool.input_schema),
                "repeatable": is_repeatable(tool),
            }
        )
    return selected_tools


def tool_name(spec: MCPServerSpec, tool: str) -> str:
    """Return the name under which a model calls a tool of a server."""
    return f"{spec.prefix}_{tool}" if spec.prefix else tool


def is_repeatable(tool: mcp_types.Tool) -> bool:
    """Return True if the server declares that repeated calls of the tool have no further effect."""
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def read_tool(recorded: dict[str, Any]) -> MCPTool:
    """Return a tool from its JSON value in a record, as :func:`tools_of` returns it."""
    return MCPTool(**recorded)


def _matches_pattern(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def plain_value(value: Any) -> Any:
    """Return an answer of a server as JSON values, with binary content as bytes."""
    if isinstance(value, BinaryContent):
        return value.data
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    return to_jsonable_python(value)


def for_model(value: Any, limit: int) -> tuple[str, Any]:
    """Return the result of a tool for a model: ``success`` and the answer, or ``retry`` and why not.

    Args:
        value: The answer of the server.
        limit: Maximum size of the answer, in bytes of JSON.
    """
    return result_for_model(value, limit, allow_nan=True)


def messages_of(server: str, prompt: str, result: PromptResult) -> list[list[str]]:
    """Return the messages of a prompt, each as a list of role and text.

    Args:
        server: Name of the server, for the error.
        prompt: Name of the prompt, for the error.
        result: The server's answer.

    Raises:
        MCPResultError: A message is not text.
    """
    messages: list[list[str]] = []
    for message in result.messages:
        content: Any = message.content
        text = content.content if isinstance(content, TextContent | EmbeddedResource) else content
        if not isinstance(text, str):
            raise MCPResultError(
                f"the prompt {prompt!r} of the MCP server {server!r} has content that is not text",
                expected="messages with text, or with a resource that is text",
                found=type(content).__name__,
                fix="read pictures and sounds as resources, and pass them to the model as separate messages",
            )
        messages.append([message.role, text])
    return messages
