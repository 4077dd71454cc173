"""The MCP server that ``ctx.get_resource`` returns: one of a subtask, with its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from flink_agents.api.context import RunnerContext
from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.api.resources.providers import DeclaredResource
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.mcp.calls import MCPServerCalls
from flink_agents.models.mcp.requests import MCPRequests
from flink_agents.models.mcp.tool import MCPModelTool
from flink_agents.models.setup.descriptions import overridden, read_configured
from flink_agents.models.tools.calls import ModelTool

_OF_PROCESS = frozenset({"command", "args", "env", "cwd"})
_OF_ADDRESS = frozenset({"url", "headers", "auth"})


class MCPServerResource:
    """An MCP server of a subtask. The first request opens a connection.

    Args:
        declared: The resource as its author declared it.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._arguments = declared.arguments
        self._begun: tuple[MCPServerSpec, MCPRequests] | None = None
        self._calls: WeakKeyDictionary[RunnerContext, MCPServerCalls] = WeakKeyDictionary()

    def of(self, ctx: RunnerContext) -> MCPServerCalls:
        """Return the server for one execution of one action."""
        calls = self._calls.get(ctx)
        if calls is None:
            if self._begun is None:
                spec = configured(self.name, self._arguments, ctx.config)
                self._begun = (spec, MCPRequests(self.name, spec))
            calls = self._calls[ctx] = MCPServerCalls(self.name, ctx, *self._begun)
        return calls

    async def model_tools(self, ctx: RunnerContext) -> list[ModelTool]:
        """Return the tools of the server for a model."""
        server = self.of(ctx)
        return [MCPModelTool(server, tool) for tool in await server.list_tools()]

    async def aclose(self) -> None:
        """Close the connections, and end the processes of the server."""
        if self._begun is not None:
            await self._begun[1].aclose()


def configured(name: str, arguments: Mapping[str, Any], config: Configuration) -> MCPServerSpec:
    """Return the description of a server, overridden by the options of the job.

    An option with another kind of address replaces the whole address: a command replaces a URL, and vice
    versa.

    Raises:
        OptionError: An option is invalid.
    """
    said = overridden(AgentOptions.MCP_SERVERS, name, arguments, MCPServerSpec.model_fields, config)
    new = {field for field in ("command", "url") if said.get(field) != arguments.get(field)}
    if new == {"url"}:
        gone = _OF_PROCESS
    elif new == {"command"}:
        gone = _OF_ADDRESS
    else:
        gone = frozenset[str]()
    if gone and "transport" in arguments and said["transport"] == arguments["transport"]:
        gone |= {"transport"}
    return read_configured(MCPServerSpec, {k: v for k, v in said.items() if k not in gone}, name)
