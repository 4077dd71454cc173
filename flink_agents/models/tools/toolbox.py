"""The tools of one conversation: names them, finds those that a model calls, calls them, and counts errors.

Names are unique. The author's own tools keep theirs. A server can add a tool of any name while the job runs,
so its option ``on_name_taken`` decides how a tool is handled whose name is taken.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from pydantic_ai.messages import RetryInfo, ToolCallPart, ToolReturnPart
from pydantic_ai.tools import ToolDefinition

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import DuplicateNameError, ResourceNotFoundError, ToolRetriesExceededError
from flink_agents.api.resources import ResourceType, Tool
from flink_agents.models.tools.calls import ModelTool, ToolOutcome, ToolPolicy, ToolSource, resolve_outcome
from flink_agents.models.tools.functions import FunctionTool


async def tools_of(ctx: RunnerContext, requested_tools: Iterable[Any]) -> list[ModelTool]:
    """Return the tools of a conversation; waits for the lists of sources such as MCP servers.

    Args:
        ctx: The context of the action.
        requested_tools: Names of tools or of their sources, ``Tool`` objects, functions, or other tools.

    Raises:
        ResourceNotFoundError: The agent has no tool with a name.
        ActionSignatureError: A function cannot be a tool.
        AgentsError: A source cannot list its tools.
    """
    tools: list[ModelTool] = []
    for tool in requested_tools:
        if isinstance(tool, str):
            tools += await _tools_named(ctx, tool)
        else:
            tools.append(_tool_of(tool))
    return tools


async def _tools_named(ctx: RunnerContext, name: str) -> list[ModelTool]:
    """Return the tool of a name, or all tools of the source with that name."""
    try:
        return [FunctionTool(ctx.get_resource(name, ResourceType.TOOL))]
    except ResourceNotFoundError:
        with contextlib.suppress(ResourceNotFoundError):
            source: ToolSource = ctx.get_resource(name, ResourceType.MCP_SERVER)
            return list(await source.model_tools(ctx))
        raise


def tool_named(ctx: RunnerContext, name: str) -> ModelTool | None:
    """Return the agent's tool with a requested name; None if there is none."""
    try:
        return FunctionTool(ctx.get_resource(name, ResourceType.TOOL))
    except ResourceNotFoundError:
        return None


def _tool_of(tool: Any) -> ModelTool:
    """Return a ``Tool``, a function, or an object with the interface of tools as a tool for models."""
    if isinstance(tool, Tool):
        return FunctionTool(tool)
    if hasattr(tool, "definition") and hasattr(tool, "call"):
        return tool
    return FunctionTool(Tool(tool))


class Toolbox:
    """Finds and calls the tools of a conversation, and counts their failures.

    Args:
        ctx: The context of the action.
        tools: The tools of the conversation.
        policy: Limits and policies of calls.
        retries: Maximum number of consecutive steps with wrong calls of one tool that may be corrected.
        now: The timestamp of results.

    Raises:
        DuplicateNameError: Two tools of the author have the same name.
    """

    def __init__(
        self, ctx: RunnerContext, tools: Sequence[ModelTool], policy: ToolPolicy, retries: int, now: datetime
    ) -> None:
        self._ctx = ctx
        self._tools = {tool.name: tool for tool in with_names(tools)}
        self._policy = policy
        self._retries = retries
        self._now = now
        self._wrong_steps: dict[str, int] = {}

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The definitions of the tools for the model, in their order."""
        return [tool.definition for tool in self._tools.values()]

    async def call_all(self, calls: Sequence[ToolCallPart]) -> list[ToolReturnPart]:
        """Call tools concurrently, and return their results as messages for the model.

        Records and results have the order of the calls.

        Raises:
            ToolRetriesExceededError: The model called a tool wrongly too often.
            Exception: It ends the conversation.
        """
        outcomes = await self.outcomes(calls)
        self._count_wrong_steps(calls, outcomes)
        return [self._return_part(call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]

    async def outcomes(self, calls: Sequence[ToolCallPart]) -> list[ToolOutcome]:
        """Call tools concurrently, and return their outcomes in the order of the calls.

        Raises:
            Exception: One of them raised it.
        """
        if len(calls) == 1:
            # Without a new task: most responses call one tool.
            return [await self._call_tool(calls[0])]
        return await self._ctx.gather(*map(self._call_tool, calls))

    async def _call_tool(self, call: ToolCallPart) -> ToolOutcome:
        """Call a tool, and return the outcome; a ``retry`` if there is no such tool, or no JSON object."""
        tool = self._tools.get(call.tool_name)
        if tool is None:
            names = ", ".join(map(repr, self._tools)) or "none"
            return ToolOutcome(
                "retry", f"There is no tool {call.tool_name!r}. The tools are: {names}.", "unknown_tool"
            )
        try:
            arguments = call.args_as_dict(raise_if_invalid=True)
        except (ValueError, AssertionError, RecursionError) as error:
            return ToolOutcome("retry", f"The arguments are no JSON object: {error}", "validation_error")
        outcome = await tool.call(self._ctx, arguments, self._policy)
        return await resolve_outcome(self._ctx, outcome, self._policy)

    def _count_wrong_steps(self, calls: Sequence[ToolCallPart], outcomes: Sequence[ToolOutcome]) -> None:
        """Count, for each tool, the consecutive steps in which all its calls were wrong.

        Calls of one step count once: the model gets no result before it has made them all.

        Raises:
            ToolRetriesExceededError: The model called a tool wrongly in too many steps.
        """
        first_errors: dict[str, ToolOutcome] = {}
        for call, outcome in zip(calls, outcomes, strict=True):
            if outcome.kind == "retry":
                first_errors.setdefault(call.tool_name, outcome)
        for call, outcome in zip(calls, outcomes, strict=True):
            if outcome.kind != "retry":
                first_errors.pop(call.tool_name, None)
                self._wrong_steps.pop(call.tool_name, None)
        for name, outcome in first_errors.items():
            self._wrong_steps[name] = self._wrong_steps.get(name, 0) + 1
            if self._wrong_steps[name] > self._retries:
                raise ToolRetriesExceededError(
                    f"the tool {name!r} was called wrongly {self._wrong_steps[name]} times",
                    expected=f"a valid call after at most {self._retries} steps with wrong ones",
                    found=str(outcome.content)[:500],
                    fix="describe the tool and its parameters better, or raise tool_retries",
                )

    def _return_part(self, call: ToolCallPart, outcome: ToolOutcome) -> ToolReturnPart:
        """Return the outcome of a call as a part of a message for the model."""
        if outcome.kind == "retry":
            return retry_part(call, outcome, self._now)
        return tool_return(call, outcome.content, self._now, outcome.kind)


def tool_return(call: ToolCallPart, content: Any, now: datetime, outcome: Any = "success") -> ToolReturnPart:
    """Return the result of a call as a part of a message for the model.

    Args:
        call: The call.
        content: The result; a JSON value.
        now: The timestamp of the part.
        outcome: The kind of a ``ToolOutcome``, except ``retry``.
    """
    return ToolReturnPart(call.tool_name, content, call.tool_call_id, timestamp=now, outcome=outcome)


def retry_part(call: ToolCallPart, outcome: ToolOutcome, now: datetime) -> ToolReturnPart:
    """Return the problem of a wrong call as a part of a message, which asks the model for another call."""
    return ToolReturnPart(
        call.tool_name,
        outcome.content,
        call.tool_call_id,
        timestamp=now,
        outcome="retried",
        retry=RetryInfo(cause=outcome.cause),
    )


_log = bounded_logger("flink_agents.mcp")


def with_names(tools: Sequence[ModelTool]) -> list[ModelTool]:
    """Return a model's tools in their order, each with a unique name.

    Raises:
        DuplicateNameError: Two tools of the author have the same name, or a server's policy is to fail.
    """
    own_names = [tool.name for tool in tools if not _is_served(tool)]
    reserved_names = set(own_names)
    if len(reserved_names) < len(own_names):
        counts = Counter(own_names)
        raise duplicate_names_error([name for name, count in counts.items() if count > 1])
    named_tools = list[ModelTool]()
    for tool in tools:
        named_tool = _with_free_name(tool, reserved_names) if _is_served(tool) else tool
        if named_tool is not None:
            named_tools.append(named_tool)
            reserved_names.add(named_tool.name)
    return named_tools


def _is_served(tool: ModelTool) -> bool:
    """Return True if a tool is a server's, which chooses its name."""
    return hasattr(tool, "on_name_taken")


def _with_free_name(tool: Any, reserved_names: set[str]) -> ModelTool | None:
    """Return a server's tool under a name that is not reserved; None if its policy is to omit it.

    Raises:
        DuplicateNameError: Its name is reserved, and its policy is to fail.
    """
    if tool.name not in reserved_names:
        return tool
    if tool.on_name_taken == "fail":
        raise duplicate_names_error([tool.name])
    if tool.on_name_taken == "prefix" and (prefixed_tool := tool.prefixed).name not in reserved_names:
        _log.warning(
            "a model has a tool %r already: the tool of an MCP server is %r", tool.name, prefixed_tool.name
        )
        return prefixed_tool
    _log.warning("a model has a tool %r already: the tool of an MCP server is omitted", tool.name)
    return None


def duplicate_names_error(names: Sequence[str]) -> DuplicateNameError:
    """Return the error about names that two tools have."""
    return DuplicateNameError(
        "a model got two tools with the same name",
        expected="tools of different names",
        found=", ".join(map(repr, names)),
        fix="rename one of them: Tool(function, name=...); set a prefix of an MCP server, or "
        "on_name_taken='prefix'",
    )
