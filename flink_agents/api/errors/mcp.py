"""Errors of MCP servers. The tree is in ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError
from flink_agents.api.errors.models import ToolOutcomeUnknownError


class MCPError(AgentsError):
    """An MCP server did not do what it was asked for."""

    code = "FA9200"


class MCPServerUnavailableError(MCPError):
    """An MCP server could not be started or reached, or gave no answer, in all attempts."""

    code = "FA9201"


class MCPRequestError(MCPError):
    """An MCP server answered that it does not do it."""

    code = "FA9202"


class MCPOutcomeUnknownError(MCPError, ToolOutcomeUnknownError):
    """The connection was lost, or time ran out, while a tool of an MCP server was called."""

    code = "FA9203"


class MCPResultError(MCPError):
    """An MCP server answered something that cannot be used here."""

    code = "FA9204"
