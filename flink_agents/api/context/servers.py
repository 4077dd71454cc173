"""Methods of ``RunnerContext`` for prompts and MCP servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from flink_agents.api.common.places import caller_place
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.models.mcp import MCPServerClient
from flink_agents.api.models.prompts import FilledPrompt
from flink_agents.api.resources import ResourceType


class ServerMethods(ABC):
    """Base class of ``RunnerContext`` for prompts and MCP servers."""

    @abstractmethod
    def get_resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """Return the resource ``name`` of that type; each subtask creates it once."""

    def mcp_server(self, name: str) -> MCPServerClient:
        """Return the MCP server ``name``, for this action.

        Args:
            name: Name of the MCP server.

        Raises:
            ResourceNotFoundError: The agent has no such MCP server.
        """
        return self.get_resource(name, ResourceType.MCP_SERVER).of(self)

    def prompt(self, prompt: str, /, **values: Any) -> FilledPrompt:
        """Return the prompt ``prompt`` with its variables filled in.

        ``await ctx.prompt("greet", name="Ada")`` returns its messages, and ``ctx.chat("analyst",
        ctx.prompt("greet", name="Ada"))`` sends them to a chat model.

        Args:
            prompt: Name of the prompt.
            **values: A value for each of its variables.

        Raises:
            ResourceNotFoundError: The agent has no such prompt.
            AgentDefinitionError: A value is missing, belongs to no variable, or is invalid.
        """
        found = self.get_resource(prompt, ResourceType.PROMPT)
        try:
            return FilledPrompt(prompt, found, values, self.mcp_server)
        except AgentDefinitionError as error:
            raise error.at(caller_place(0)) from None
