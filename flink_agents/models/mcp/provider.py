"""Provides MCP servers. It imports MCP libraries only when a server is requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.api.resources.providers import CheckedOptions, DeclaredResource, ResourceProvider
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.setup.classes import check_ready
from flink_agents.models.setup.descriptions import checked_options, read_description
from flink_agents.models.setup.extras import check_modules

if TYPE_CHECKING:
    from flink_agents.models.mcp.resource import MCPServerResource


class MCPServerProvider(ResourceProvider):
    """Creates MCP servers from their descriptions."""

    @override
    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        if clazz:
            raise ValueError("an MCP server has no class; describe it by a command or a url")
        read_description(MCPServerSpec, arguments)
        _check_installed(name)

    @override
    def check_options(self, declared: DeclaredResource, config: Configuration) -> CheckedOptions:
        from flink_agents.models.mcp.resource import configure_server

        configure_server(declared.name, declared.arguments, config)
        fields = MCPServerSpec.model_fields
        return checked_options(AgentOptions.MCP_SERVERS, declared.name, fields, config)

    @override
    def load(self) -> None:
        _check_installed("")
        import flink_agents.models.mcp.resource  # noqa: F401

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        from flink_agents.models.mcp.resource import configure_server

        spec = configure_server(declared.name, declared.arguments, config)
        check_ready(f"the MCP server {declared.name!r}", "", spec.model_dump(mode="json", exclude_unset=True))

    @override
    def provide(self, declared: DeclaredResource) -> MCPServerResource:
        _check_installed(declared.name)
        from flink_agents.models.mcp.resource import MCPServerResource

        return MCPServerResource(declared)


def _check_installed(name: str) -> None:
    """Raise MissingExtraError if a package that the MCP server ``name`` needs is not installed."""
    check_modules(("pydantic_ai", "fastmcp", "mcp"), "mcp", f"the MCP server {name!r}")
