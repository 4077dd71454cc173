"""Methods of ``RunnerContext`` for prompts and MCP servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from flink_agents.api.common.awaited import Awaited
from flink_agents.api.common.places import caller_place
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.api.models.mcp import MCPServerClient
from flink_agents.api.resources import ChatMessage, Prompt, ResourceType


class FilledPrompt(Awaited[list[ChatMessage]]):
    """A prompt with its values. Await it for its messages; ``ctx.chat`` awaits it itself.

    Args:
        name: Name of the prompt.
        prompt: The declared prompt, with messages of its own or of an MCP server.
        values: A value for each of its variables, by name.
        server: Returns the MCP server of the agent with a name.

    Raises:
        AgentDefinitionError: A value is missing, belongs to no variable, or is invalid.
    """

    def __init__(
        self, name: str, prompt: Prompt, values: Mapping[str, Any], server: Callable[[str], MCPServerClient]
    ) -> None:
        self._source = prompt.mcp
        self._server = server
        self._local = prompt.filled(values, f"the prompt {name!r}", all_known=True)
        self._arguments = {} if self._source is None else self._source.filled(values, f"the prompt {name!r}")

    @override
    async def _result(self) -> list[ChatMessage]:
        if self._source is None:
            return list(self._local)
        server = self._server(self._source.server)
        return [*self._local, *await server.get_prompt(self._source.prompt, **self._arguments)]

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages of a prompt without an MCP server, for code that cannot await.

        Raises:
            AgentDefinitionError: They come from an MCP server.
        """
        if self._source is not None:
            raise AgentDefinitionError(
                f"the prompt {self._source.prompt!r} comes from the MCP server {self._source.server!r}",
                expected="an async def action, which can wait for the server",
                fix="write await ctx.prompt(...), or pass the prompt to ctx.chat",
            )
        return list(self._local)


class ServerMethods(ABC):
    """Base class of ``RunnerContext`` for prompts and MCP servers."""

    @abstractmethod
    def get_resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """Return the resource ``name`` of that type; each subtask creates it once."""

    def mcp_server(self, name: str) -> MCPServerClient:
        """Return the MCP server ``name``; its requests are durable steps of this action.

        Args:
            name: Name of the MCP server.

        Raises:
            ResourceNotFoundError: The agent has no such MCP server.
        """
        return self.get_resource(name, ResourceType.MCP_SERVER).calls_for(self)

    def prompt(self, prompt: str, /, **values: Any) -> FilledPrompt:
        """Return the declared prompt ``prompt`` with values for its variables.

        ``await ctx.prompt("greet", name="Ada")`` returns its messages, and ``ctx.chat("analyst",
        ctx.prompt("greet", name="Ada"))`` sends them to a chat model.

        Args:
            prompt: Name of the prompt.
            **values: A value for each of its variables.

        Raises:
            ResourceNotFoundError: The agent has no such prompt.
            AgentDefinitionError: A value is missing, belongs to no variable, or is invalid.
        """
        resource = self.get_resource(prompt, ResourceType.PROMPT)
        try:
            return FilledPrompt(prompt, resource, values, self.mcp_server)
        except AgentDefinitionError as error:
            raise error.at(caller_place(0)) from None
