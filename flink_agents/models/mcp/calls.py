"""Operations of an action on a server. Each request is one durable step with a permanent name."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from typing_extensions import override

from flink_agents import redaction
from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable, RetryableError, UnknownOutcome
from flink_agents.api.errors import (
    MCPError,
    MCPOutcomeUnknownError,
    MCPRequestError,
    MCPResultError,
    MCPServerUnavailableError,
)
from flink_agents.api.events.approvals import ApprovalOutcome, checked_later
from flink_agents.api.models.mcp import MCPPrompt, MCPResource, MCPServerClient, MCPServerSpec, MCPTool
from flink_agents.api.resources import ChatMessage
from flink_agents.api.resources.tools import ask_approval
from flink_agents.models.mcp.content import messages_of, plain_value, read_tool, tool_name, tools_of
from flink_agents.models.mcp.failures import IDEMPOTENCY_KEY, FailureKind
from flink_agents.models.mcp.requests import MCPRequests, Request, RequestFailedError
from flink_agents.models.mcp.wire import NotSentError, json_arguments
from flink_agents.models.setup.failures import failed_attempt

_UNKNOWN = "flink-agents/unknown-outcome"
"""Key of the record of a call whose outcome is unknown."""


_UNREADABLE = "flink-agents/unreadable-answer"
"""Key of the record of a call that took effect, but whose answer is unreadable."""

_CUT_OFF = "flink-agents/cut-off"
"""Key of the record of a call whose action was cancelled meanwhile: the reason and the idempotency key."""


def _cut_off(reason: str, key: str | None) -> dict[str, Any]:
    """Return the record of a call whose action was cancelled meanwhile."""
    return {_CUT_OFF: [reason, key]}


def _value_at(marker: str, answer: Any) -> Any:
    """Return the value in a record that has only the key ``marker``; None if it is an answer of a tool."""
    return answer[marker] if isinstance(answer, dict) and answer.keys() == {marker} else None


class MCPServerCalls(MCPServerClient):
    """A server, for one execution of one action.

    Args:
        name: Name of the server.
        ctx: The context of the action.
        spec: Description of the server, with the options of the job.
        requests: Sends the requests of the subtask.

    Attributes:
        name: Name of the server.
        on_name_taken: Policy if a model has another tool with the name of a server's tool.
    """

    def __init__(self, name: str, ctx: RunnerContext, spec: MCPServerSpec, requests: MCPRequests) -> None:
        self.name = name
        self._ctx = ctx
        self._spec = spec
        self._requests = requests
        self.on_name_taken = spec.on_name_taken
        self._retry = RetryPolicy(**spec.retry.model_dump(), retry_on=(RetryableError,))
        # By task: on replay, another branch of the action may come first.
        self._tools_by_task: WeakKeyDictionary[asyncio.Task[Any], list[MCPTool]] = WeakKeyDictionary()

    @override
    async def list_tools(self) -> list[MCPTool]:
        async def list_tools() -> list[dict[str, Any]]:
            try:
                return tools_of(self._spec, await self._requests.list_tools())
            except RequestFailedError as error:
                raise self.error_of("list_tools", error, True) from None

        task = asyncio.current_task()
        assert task is not None
        if task not in self._tools_by_task:
            # Further lists of the same execution need no record. The list has kilobytes, so the store shares
            # it between runs.
            recorded = await self.run_recorded(list_tools, "list_tools", shared=True)
            self._tools_by_task[task] = [read_tool(record) for record in recorded]
        return self._tools_by_task[task]

    @override
    async def call_tool(self, tool: str, /, **arguments: Any) -> Any:
        async def call_tool(arguments: dict[str, Any], idempotency_key: str) -> Any:
            try:
                return plain_value(await self.ask_tool(tool, arguments, idempotency_key))
            except (ValueError, TypeError, RecursionError) as error:
                # The tool was called, as below.
                return {_UNREADABLE: f"{type(error).__name__}: {error}"[:500]}
            except RequestFailedError as error:
                if error.failure.kind is FailureKind.INVALID:
                    return {_UNREADABLE: error.failure.text}
                repeatable = self._spec.is_idempotent(tool) or await self._requests.is_repeatable(tool)
                if error.failure.kind is FailureKind.UNKNOWN and not repeatable:
                    # As a result: after an error, the next attempt of the action would make the call again.
                    return {_UNKNOWN: error.failure.text}
                raise self.error_of(f"call_tool:{tool}", error, repeatable) from None

        step = f"call_tool:{tool}"
        arguments = self.json_arguments(step, arguments)
        if not self._spec.is_approved(tool):
            shown_name = tool_name(self._spec, tool)
            timeout = self._spec.approval_timeout
            outcome = await ask_approval(self._ctx, shown_name, arguments, timeout, checked_later)
            arguments = self.json_arguments(step, outcome.arguments)
        cut_off = UnknownOutcome(_cut_off, repeats=self._spec.is_idempotent(tool))
        answer = await self.run_recorded(call_tool, step, arguments, unknown=cut_off)
        while (cut := _value_at(_CUT_OFF, answer)) is not None:
            reason, key = cut
            if not await self._has_repeatable_hint(tool):
                raise self._unknown_outcome_error(step, reason)
            answer = await self.run_recorded(call_tool, step, arguments, key=key, unknown=cut_off)
        if (reason := _value_at(_UNKNOWN, answer)) is not None:
            raise self._unknown_outcome_error(step, reason)
        if (failure_text := _value_at(_UNREADABLE, answer)) is not None:
            raise self._unreadable_error(step, failure_text)
        return answer

    async def _has_repeatable_hint(self, tool: str) -> bool:
        """Return True if the server's hint, as recorded in this run, allows to repeat a call of a tool."""
        try:
            tools = await self.list_tools()
        except MCPError:
            return False
        return any(listed_tool.repeatable for listed_tool in tools if listed_tool.tool == tool)

    def is_repeatable(self, tool: MCPTool) -> bool:
        """Return True if a call of a tool may be repeated when its outcome is unknown."""
        return tool.repeatable or self._spec.is_idempotent(tool.tool)

    def is_approved(self, tool: MCPTool) -> bool:
        """Return True if a call of a tool needs no approval."""
        return self._spec.is_approved(tool.tool)

    async def request_approval(self, tool: MCPTool, arguments: Mapping[str, Any]) -> ApprovalOutcome:
        """Request the approval of a model's call, and wait for the answer.

        Args:
            tool: The tool that the model calls.
            arguments: The arguments of the call by name, as JSON values.
        """
        timeout = self._spec.approval_timeout
        return await self._ctx.request_approval(
            f"tool {tool.name}", arguments, timeout=timeout, check=checked_later
        )

    async def ask_tool(
        self, tool: str, arguments: Mapping[str, Any], idempotency_key: str, timeout: float | None = None
    ) -> Any:
        """Send a call of a tool to the server, inside a durable step, and return its answer.

        Args:
            tool: Name of the tool in the server.
            arguments: Arguments by name, as JSON values.
            idempotency_key: Key that all attempts of the call share; the server gets it as metadata.
            timeout: Seconds that the call may take. Default: those of the server.

        Raises:
            RequestFailedError: The request failed.
        """
        return await self._requests.send(
            lambda toolset: toolset.direct_call_tool(
                tool, dict(arguments), metadata={IDEMPOTENCY_KEY: idempotency_key}
            ),
            timeout,
            idempotency_key,
        )

    @override
    async def list_resources(self) -> list[MCPResource]:
        async def list_resources() -> list[list[Any]]:
            resources = await self._ask_server("list_resources", lambda toolset: toolset.list_resources())
            return [
                [resource.uri, resource.name, resource.description or "", resource.mime_type]
                for resource in resources
            ]

        return [MCPResource(*row) for row in await self.run_recorded(list_resources, "list_resources")]

    @override
    async def read_resource(self, uri: str) -> str | bytes | list[str | bytes]:
        async def read_resource(uri: str) -> Any:
            return plain_value(
                await self._ask_server("read_resource", lambda toolset: toolset.read_resource(uri))
            )

        step = "read_resource"
        return await self.run_recorded(read_resource, step, self.json_arguments(step, {"uri": uri})["uri"])

    @override
    async def list_prompts(self) -> list[MCPPrompt]:
        async def list_prompts() -> list[list[Any]]:
            prompts = await self._ask_server("list_prompts", lambda toolset: toolset.list_prompts())
            return [
                [
                    prompt.name,
                    prompt.description or "",
                    [argument.name for argument in prompt.arguments or () if argument.required],
                    [argument.name for argument in prompt.arguments or () if not argument.required],
                ]
                for prompt in prompts
            ]

        rows = await self.run_recorded(list_prompts, "list_prompts")
        return [
            MCPPrompt(name, description, tuple(required), tuple(optional))
            for name, description, required, optional in rows
        ]

    @override
    async def get_prompt(self, prompt: str, /, **arguments: str) -> list[ChatMessage]:
        async def get_prompt(arguments: dict[str, str]) -> list[list[str]]:
            result = await self._ask_server(
                f"get_prompt:{prompt}", lambda toolset: toolset.get_prompt(prompt, arguments)
            )
            return messages_of(self.name, prompt, result)

        step = f"get_prompt:{prompt}"
        rows = await self.run_recorded(get_prompt, step, self.json_arguments(step, arguments))
        return [ChatMessage(role=role, content=text) for role, text in rows]

    async def _ask_server(self, step: str, request: Request[Any]) -> Any:
        """Send a request that changes nothing, inside the durable step ``step``, and return the answer.

        Raises:
            Exception: The request failed; the error is one that :meth:`error_of` returns.
        """
        try:
            return await self._requests.send(request)
        except RequestFailedError as error:
            raise self.error_of(step, error, True) from None

    async def run_recorded(
        self,
        function: Callable[..., Awaitable[Any]],
        what: str,
        *arguments: Any,
        key: str | None = None,
        unknown: UnknownOutcome | None = None,
        shared: bool = False,
    ) -> Any:
        """Call a function as a durable step of this server, with its retries, and return the result.

        Args:
            function: Sends a request to the server.
            what: Name of the step, within this server's: ``call_tool:NAME``.
            *arguments: Arguments of the function; JSON values, which identify the step.
            key: Idempotency key of the call that this one repeats; None for a new call.
            unknown: The result to record if the outcome is unknown.
            shared: True if many runs get the same result, so that the store holds it once.

        Raises:
            MCPServerUnavailableError: The server could not be reached in any attempt.
            MCPResultError: The answer cannot be read.
        """

        @functools.wraps(function)
        async def without_secrets(*step_arguments: Any, **named: Any) -> Any:
            # A server may repeat a secret from a request in its answer, which must not reach the model or the
            # records.
            return redaction.hidden(await function(*step_arguments, **named), known_only=True)

        name = f"mcp:{self.name}:{what}"
        call = DurableCallable(without_secrets, name=name, retry=self._retry, unknown=unknown, shared=shared)
        key_argument: dict[str, Any] = {} if key is None else {"idempotency_key": key}
        try:
            return await self._ctx.durable_execute_async(call, *arguments, **key_argument)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise self._unreadable_error(what, f"{type(error).__name__}: {error}"[:500]) from None
        except RetryableError as error:
            raise MCPServerUnavailableError(
                f"the MCP server {self.name!r} did not answer to {what}",
                expected="a running server that answers in time",
                found=str(error),
                fix="check the server and its address or command; raise retry or timeout of the resource",
            ) from None

    def json_arguments(self, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values, before a step is recorded.

        Args:
            what: Name of the request, which JSON has to hold as well.
            arguments: The author's arguments by name.

        Raises:
            MCPRequestError: A name or a value has no form in JSON.
        """
        try:
            json_arguments({"its name": what})
            return json_arguments(arguments)
        except NotSentError as error:
            raise MCPRequestError(
                f"{ascii(what)[1:-1]} was not sent to the MCP server {self.name!r}",
                expected="arguments that JSON can hold",
                found=str(error),
                fix="correct the argument; the server did not get the request",
            ) from None

    def error_of(self, what: str, error: RequestFailedError, repeatable: bool) -> Exception:
        """Return the error of a failed attempt, in a form that a replay can restore.

        Args:
            what: Name of the request, for the error.
            error: The failure of the attempt.
            repeatable: True if the request may be repeated when its outcome is unknown.
        """
        failure = error.failure
        if failure.kind is FailureKind.REFUSED:
            return MCPRequestError(
                f"the MCP server {self.name!r} rejected {what}",
                found=failure.text,
                fix="correct the request; it is not sent again",
            )
        if failure.kind is FailureKind.NOT_DONE or repeatable:
            limit = self._spec.retry_after_limit
            who = f"the MCP server {self.name!r}"
            again = failed_attempt(who, failure.text, failure.retry_after, limit)
            return again or MCPServerUnavailableError(
                f"{who} asks to wait too long before {what} is sent again",
                expected=f"at most {limit:g} seconds, which is retry_after_limit",
                found=f"{failure.retry_after:g} seconds; {failure.text}",
                fix="raise retry_after_limit of the resource",
            )
        return self._unknown_outcome_error(what, failure.text)

    def _unreadable_error(self, what: str, found: str) -> MCPResultError:
        return MCPResultError(
            f"the MCP server {self.name!r} gave an answer to {what} that cannot be read",
            expected="a valid answer of the protocol",
            found=found,
            fix="check the server's answer",
        )

    def _unknown_outcome_error(self, what: str, reason: str) -> MCPOutcomeUnknownError:
        return MCPOutcomeUnknownError(
            f"it is unknown whether the MCP server {self.name!r} executed {what}",
            expected="an answer, or a tool that is declared repeatable",
            found=reason,
            fix="let the tool use the idempotency key, and declare it with the annotation idempotentHint",
        )
