"""The MCP server that ``ctx.get_resource`` returns: one of a subtask, with its tools for models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai.tools import ToolDefinition

from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import UnknownOutcome
from flink_agents.api.errors import MCPError, MCPOutcomeUnknownError
from flink_agents.api.models.chat import OnToolError
from flink_agents.api.models.mcp import MCPServerSpec, MCPTool
from flink_agents.api.resources.providers import DeclaredResource
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.mcp.calls import MCPServerCalls
from flink_agents.models.mcp.content import for_model
from flink_agents.models.mcp.failures import FailureKind
from flink_agents.models.mcp.requests import MCPRequests, RequestFailedError
from flink_agents.models.mcp.wire import NotSentError, json_arguments
from flink_agents.models.setup.descriptions import override_arguments, read_configured
from flink_agents.models.tools.calls import ModelTool, ToolOutcome, ToolPolicy, UnknownToolOutcome


class MCPModelTool:
    """A tool of an MCP server, as models call it in one execution of an action.

    Its outcome is the record of its call, including failures that are reported to the model.

    Args:
        server: The operations of the action on the server.
        tool: The tool as the server lists it.
        is_approved: True if no approval is requested, even if the server's description requires one.
        name: The name under which the model calls it. Default: the name of the tool.

    Attributes:
        on_name_taken: Policy if the model has another tool with its name.
    """

    def __init__(
        self, server: MCPServerCalls, tool: MCPTool, is_approved: bool = False, name: str | None = None
    ) -> None:
        self.name = name or tool.name
        self.on_name_taken = server.on_name_taken
        self._server = server
        self._tool = tool
        self._is_approved = is_approved or server.is_approved(tool)

    @property
    def needs_approval(self) -> bool:
        """True if :meth:`call` requests an approval first."""
        return not self._is_approved

    @property
    def approved(self) -> MCPModelTool:
        """The same tool without the need for approvals."""
        return MCPModelTool(self._server, self._tool, True, self.name)

    @property
    def prefixed(self) -> MCPModelTool:
        """The same tool, with the server's name and an underscore before its name."""
        name = f"{self._server.name}_{self.name}"
        return MCPModelTool(self._server, self._tool, self._is_approved, name)

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the tool for the model: name, description, schema of the arguments."""
        return ToolDefinition(
            name=self.name,
            description=self._tool.description or None,
            parameters_json_schema=dict(self._tool.parameters),
        )

    async def call(
        self, ctx: RunnerContext, arguments: Mapping[str, Any], policy: ToolPolicy
    ) -> ToolOutcome | UnknownToolOutcome:
        """Call the tool in a durable step, after an approval if it needs one, and return the outcome.

        Args:
            ctx: The context of the action.
            arguments: The arguments of the model by name, which the server checks.
            policy: Limits and policies of the conversation.

        Raises:
            MCPError: The server is unavailable, and the policy is to fail.
        """
        try:
            sent_arguments = json_arguments(arguments)
            if self.needs_approval:
                approval = await self._server.request_approval(self._tool, sent_arguments)
                if not approval.approved:
                    return ToolOutcome("denied", approval.text)
                sent_arguments = json_arguments(approval.arguments)
        except NotSentError as error:
            return ToolOutcome("retry", f"The arguments are no JSON, so the tool was not called: {error}")
        return await self._call(sent_arguments, policy, None)

    async def _call(
        self, tool_arguments: dict[str, Any], policy: ToolPolicy, key: str | None
    ) -> ToolOutcome | UnknownToolOutcome:
        """Call the tool; ``key`` is the idempotency key of the call that this one repeats."""
        step = f"call_tool:{self._tool.tool}"
        repeatable = self._server.is_repeatable(self._tool)

        async def call_tool(arguments: dict[str, Any], idempotency_key: str) -> list[Any]:
            try:
                timeout = policy.timeout
                answer = await self._server.ask_tool(self._tool.tool, arguments, idempotency_key, timeout)
            except RequestFailedError as error:
                if error.failure.kind is FailureKind.REFUSED:
                    return ["retry", error.failure.text or "The tool failed."]
                if error.failure.kind is FailureKind.INVALID:
                    return ["failed", f"The tool's result is invalid: {error.failure.text}"]
                if error.failure.kind is FailureKind.UNKNOWN and not repeatable:
                    return ["unknown", [error.failure.text, idempotency_key]]
                raise self._server.error_of(step, error, repeatable) from None
            try:
                return list(for_model(answer, policy.result_limit))
            except (ValueError, TypeError, RecursionError) as error:
                # The tool was called: after an error, the next attempt of the action would call it again.
                return ["failed", f"The tool gave a result that cannot be read: {error}"[:500]]

        unknown = UnknownOutcome(lambda reason, key: ["unknown", [reason, key]], repeats=repeatable)
        try:
            kind, content = await self._server.run_recorded(
                call_tool, step, tool_arguments, key=key, unknown=unknown
            )
        except MCPError as error:
            if policy.on_error is OnToolError.FAIL:
                raise
            return ToolOutcome("failed", f"{error.message}: {error.found}")
        if kind != "unknown":
            return ToolOutcome(kind, content)
        reason, call_key = content
        repeat_call = partial(self._call, tool_arguments, policy, call_key)
        tool_text = f"the tool {self._tool.tool!r} of the MCP server {self._server.name!r}"
        return UnknownToolOutcome(
            tool_text, self.name, reason, tool_arguments, repeat_call, MCPOutcomeUnknownError
        )


_OF_PROCESS = frozenset({"command", "args", "env", "cwd"})
_OF_ADDRESS = frozenset({"url", "headers", "auth"})
"""Fields of a description that belong to a process, and to a URL."""


class MCPServerResource:
    """An MCP server of a subtask. The first request opens a connection.

    Args:
        declared: The resource as its author declared it.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._arguments = declared.arguments
        self._spec_and_requests: tuple[MCPServerSpec, MCPRequests] | None = None
        self._calls: WeakKeyDictionary[RunnerContext, MCPServerCalls] = WeakKeyDictionary()

    def calls_for(self, ctx: RunnerContext) -> MCPServerCalls:
        """Return the operations of one execution of an action on the server; the same for each call."""
        calls = self._calls.get(ctx)
        if calls is None:
            if self._spec_and_requests is None:
                spec = configure_server(self.name, self._arguments, ctx.config)
                self._spec_and_requests = (spec, MCPRequests(self.name, spec))
            calls = self._calls[ctx] = MCPServerCalls(self.name, ctx, *self._spec_and_requests)
        return calls

    async def model_tools(self, ctx: RunnerContext) -> list[ModelTool]:
        """Return the tools of the server for a model; their list is a durable step."""
        server = self.calls_for(ctx)
        return [MCPModelTool(server, tool) for tool in await server.list_tools()]

    async def aclose(self) -> None:
        """Close the connections, and end the processes of the server."""
        if self._spec_and_requests is not None:
            _, requests = self._spec_and_requests
            await requests.aclose()


def configure_server(name: str, arguments: Mapping[str, Any], config: Configuration) -> MCPServerSpec:
    """Return the description of a server, overridden by the options of the job.

    An option with another kind of address replaces the whole address: a command replaces a URL, and vice
    versa.

    Args:
        name: Name of the server.
        arguments: The author's description, as JSON values.
        config: The options of the job, among them ``mcp-servers.NAME.*``.

    Raises:
        OptionError: An option is invalid.
    """
    values = override_arguments(AgentOptions.MCP_SERVERS, name, arguments, MCPServerSpec.model_fields, config)
    changed_addresses = {field for field in ("command", "url") if values.get(field) != arguments.get(field)}
    replaced_fields = frozenset[str]()
    if changed_addresses == {"url"}:
        replaced_fields = _OF_PROCESS
    elif changed_addresses == {"command"}:
        replaced_fields = _OF_ADDRESS
    if replaced_fields and "transport" in arguments and values["transport"] == arguments["transport"]:
        replaced_fields |= {"transport"}
    remaining = {field: value for field, value in values.items() if field not in replaced_fields}
    return read_configured(MCPServerSpec, remaining, name)
