"""MCP servers as authors declare them, and the operations of actions on them: free of MCP libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from flink_agents.api.common.awaited import AwaitedMethods
from flink_agents.api.common.policies import RateLimit, RetryTimes
from flink_agents.api.models.chat import RESPONSE_LIMIT, Public, Secret
from flink_agents.api.models.descriptions import written
from flink_agents.api.resources import ChatMessage, ResourceDescriptor
from flink_agents.api.settings import ToolSourceLimits

Transport = Literal["stdio", "streamable-http", "sse"]
"""The transport of messages to a server."""


OnNameTaken = Literal["skip", "prefix", "fail"]
"""Policy if the model has another tool with the name of a server's tool: omit the tool, prefix it with the
name of the server, or fail the conversation.
"""

OnInvalidResult = Literal["text", "fail"]
"""Policy if a tool's result is not what the server declares: use its text, or fail the call."""


class MCPServerSpec(ToolSourceLimits):
    """The description of an MCP server. ``docs/mcp.md`` explains each field."""

    command: str | None = Field(default=None, min_length=1, description="The program of the server.")
    args: tuple[str | Secret | Public, ...] = Field(default=(), description="Its arguments.")
    env: dict[str, str | Secret | Public] = Field(
        default_factory=dict, description="Its environment variables."
    )
    cwd: str | None = Field(default=None, description="Its working directory.")
    url: str | None = Field(default=None, pattern=r"^https?://", description="Address of the server.")
    transport: Transport | None = Field(default=None, description="Default: by command and url.")
    headers: dict[str, str | Secret | Public] = Field(
        default_factory=dict, description="Headers of each request."
    )
    auth: Secret | None = Field(default=None, description="A bearer token of each request.")
    prefix: str = Field(default="", description="Prefix of the names of its tools, before '_'.")
    tools: tuple[str, ...] | None = Field(default=None, description="Tools to include, such as 'read_*'.")
    exclude: tuple[str, ...] = Field(default=(), description="Tools to exclude, such as 'delete_*'.")
    on_name_taken: OnNameTaken = Field(default="skip", description="If a model has a tool of that name.")
    on_invalid_result: OnInvalidResult = Field(
        default="text", description="If a result is not what the server declares."
    )
    connect_timeout: float = Field(default=30.0, gt=0, description="Seconds until it is ready.")
    timeout: float = Field(default=60.0, gt=0, description="Timeout of a request, in seconds.")
    tools_ttl: float = Field(default=60.0, ge=0, description="Seconds until tools are listed again.")
    retry: RetryTimes = Field(default=RetryTimes(), description="Policy for failed requests.")
    retry_after_limit: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        description="Longest wait that the server may ask for, in seconds.",
    )
    response_limit: int = Field(default=2 * RESPONSE_LIMIT, ge=1, description="Limit of an answer, in bytes.")

    @model_validator(mode="after")
    def _check_address(self) -> MCPServerSpec:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has either a command or a url")
        if (self.way == "stdio") == (self.command is None):
            raise ValueError(f"the transport {self.way} needs {'a url' if self.command else 'a command'}")
        return self

    @property
    def way(self) -> Transport:
        """The transport of messages to the server: the declared one, or that of the command or URL.

        A URL that ends with ``/sse`` means SSE.
        """
        if self.transport is not None:
            return self.transport
        if self.url is None:
            return "stdio"
        return "sse" if urlsplit(self.url).path.rstrip("/").endswith("/sse") else "streamable-http"


class MCPServerOptions(TypedDict, total=False):
    """Keywords of :class:`MCPServer`: the fields of :class:`MCPServerSpec`."""

    command: str | None
    args: Sequence[str | Secret | Mapping[str, str]]
    env: Mapping[str, str | Secret | Mapping[str, str]]
    cwd: str | None
    url: str | None
    transport: Transport | None
    headers: Mapping[str, str | Secret | Mapping[str, str]]
    auth: Secret | Mapping[str, str] | None
    prefix: str
    tools: Sequence[str] | None
    exclude: Sequence[str]
    on_name_taken: OnNameTaken
    on_invalid_result: OnInvalidResult
    connect_timeout: float
    timeout: float
    tools_ttl: float
    retry: RetryTimes | Mapping[str, Any]
    retry_after_limit: float
    response_limit: int
    max_concurrency: int | None
    rate_limit: RateLimit | None
    needs_approval: bool | Sequence[str]
    approval_timeout: float | timedelta | None
    idempotent: bool | Sequence[str]


class MCPServer(ResourceDescriptor):
    """An MCP server, as the result of a ``@mcp_server`` method or an argument of ``add_resource``.

    ``MCPServer(command="python", args=["server.py"])`` is a process of each subtask, and
    ``MCPServer(url="https://example.com/mcp")`` is a service.

    Args:
        **options: The fields of ``MCPServerSpec``.

    Raises:
        AgentDefinitionError: An option is unknown, or its value is invalid.
    """

    def __init__(self, **options: Unpack[MCPServerOptions]) -> None:
        super().__init__(clazz="", **written(MCPServerSpec, options, "the MCP server"))


@dataclass(frozen=True)
class MCPTool:
    """A tool of an MCP server.

    Attributes:
        name: The name for models: with the prefix of the server.
        tool: Its name in the server, for :meth:`MCPServerClient.call_tool`.
        description: The server's text about its purpose; empty if there is none.
        parameters: JSON schema of its arguments.
        repeatable: True if the server declares that repeated calls have no further effect.
    """

    name: str
    tool: str
    description: str
    parameters: Mapping[str, Any]
    repeatable: bool = False


@dataclass(frozen=True)
class MCPResource:
    """A resource of an MCP server.

    Attributes:
        uri: Its address, for :meth:`MCPServerClient.read_resource`.
        name: The server's name for it.
        description: The server's text about it; empty if there is none.
        media_type: Its media type, such as ``text/plain``, if the server declares it.
    """

    uri: str
    name: str
    description: str = ""
    media_type: str | None = None


@dataclass(frozen=True)
class MCPPrompt:
    """A prompt of an MCP server.

    Attributes:
        name: Its name in the server, for :meth:`MCPServerClient.get_prompt`.
        description: The server's text about its purpose; empty if there is none.
        required: Names of the arguments that it needs.
        optional: Names of its optional arguments.
    """

    name: str
    description: str = ""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = field(default=())


class MCPServerClient(AwaitedMethods, ABC):
    """An MCP server in an ``async def`` action; from ``ctx.mcp_server(name)``.

    Each method is a durable step: a replay returns the recorded answer, without the server.
    """

    called_as = "ctx.mcp_server(...)"

    @abstractmethod
    async def list_tools(self) -> list[MCPTool]:
        """Return the tools of the server, without those that its description excludes.

        Raises:
            MCPServerUnavailableError: The server did not answer in any attempt.
            MCPRequestError: The server rejected the request.
        """

    @abstractmethod
    async def call_tool(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool, and return its result: JSON values, and binary content as bytes.

        Args:
            tool: Name of the tool in the server.
            **arguments: Its arguments; JSON values by name.

        Raises:
            ApprovalDeniedError: The tool needs an approval, and was not approved.
            MCPServerUnavailableError: The server could not be reached in any attempt.
            MCPRequestError: The tool failed, the server has no tool of that name, or an argument is no JSON,
                so that nothing was sent.
            MCPOutcomeUnknownError: The connection was lost during the call, or the server did not answer in
                time. The call may have taken effect.
            MCPResultError: The answer cannot be used; the call took effect.
        """

    @abstractmethod
    async def list_resources(self) -> list[MCPResource]:
        """Return the resources of the server; errors as in :meth:`list_tools`."""

    @abstractmethod
    async def read_resource(self, uri: str) -> str | bytes | list[str | bytes]:
        """Return the content of a resource; a list if it has several parts, or none.

        Raises:
            MCPServerUnavailableError: The server did not answer in any attempt.
            MCPRequestError: The server has no such resource.
        """

    @abstractmethod
    async def list_prompts(self) -> list[MCPPrompt]:
        """Return the prompts of the server; errors as in :meth:`list_tools`."""

    @abstractmethod
    async def get_prompt(self, prompt: str, /, **arguments: str) -> list[ChatMessage]:
        """Return the messages of a prompt that the server fills in.

        Args:
            prompt: Name of the prompt in the server.
            **arguments: Texts for its arguments, by name.

        Raises:
            MCPServerUnavailableError: The server did not answer in any attempt.
            MCPRequestError: The server has no such prompt, or the arguments are invalid.
            MCPResultError: The prompt has content that is not text.
        """
