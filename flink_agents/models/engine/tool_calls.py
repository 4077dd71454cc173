"""Tool calls in the run of a Pydantic AI agent: idempotency keys, and calls with an unknown outcome.

A call that timed out, or whose server was lost, may have taken effect. Its outcome is recorded as unknown,
and the run ends with an error: the model is not asked to try again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset

from flink_agents.api.common.policies import RetryPolicy
from flink_agents.api.context import RunnerContext
from flink_agents.api.context.current import current_context
from flink_agents.api.durable import IDEMPOTENCY_KEY, DurableCallable, RetryableError, UnknownOutcome
from flink_agents.api.errors import ActionTimeoutError, MCPServerUnavailableError
from flink_agents.api.models.chat import OnUnknownOutcome
from flink_agents.models.engine.effects import Effects
from flink_agents.models.mcp import failures as mcp_failures
from flink_agents.models.mcp.failures import Failure, FailureKind, HTTPAnswers, failure_of
from flink_agents.models.mcp.wire import NotSentError, json_arguments
from flink_agents.models.setup.failures import text_of
from flink_agents.models.tools.calls import (
    OutcomeUnknown,
    ToolOutcome,
    ToolPolicy,
    UnknownToolOutcome,
    resolve_outcome,
)
from flink_agents.redaction import hide

_NOT_CONNECTED = "Client failed to connect"
"""Start of the client's error message if it did not reach its server."""

_LIBRARIES = frozenset({"fastmcp", "httpcore", "httpx", "httpx2", "mcp", "pydantic_core"})
"""Packages whose exceptions mean that a server failed, or that its answer is invalid."""

_MOST_CHARACTERS = 1000
"""Maximum number of characters of a server's failure in an error."""


class ServerFailedError(RetryableError):
    """A server was not reached, or its answer is unreadable. The request can be sent again."""


async def reaching_servers(body: Callable[[], Awaitable[object]], reads: bool) -> object:
    """Await ``body()``, and name the failure of an MCP server as one that can be repeated.

    Args:
        body: Lists the tools of a toolset, or calls one; it connects to the server if there is no connection.
        reads: True if it lists tools. Then it can be repeated after any failure.

    Raises:
        ServerFailedError: The server was not reached, or its list is unreadable.
    """
    try:
        return await body()
    except Exception as error:
        if not (_is_unreached(error) or (reads and _is_of_server(error))):
            raise
        text = hide(f"{type(error).__name__}: {text_of(error)}")
        raise ServerFailedError(text[:_MOST_CHARACTERS]) from error


def server_unavailable_error(name: str, error: ServerFailedError) -> MCPServerUnavailableError:
    """Return the error of a durable step whose server failed in all attempts.

    Args:
        name: Name of the durable step.
        error: The failure of the last attempt.
    """
    return MCPServerUnavailableError(
        f"an MCP server did not answer to {name!r}",
        expected="a running server that answers in time",
        found=str(error),
        fix="check the server; raise read_timeout of the toolset, or retry of tool_calls",
    )


def _is_of_server(error: BaseException) -> bool:
    """Return True if an error means that a server failed, did not answer, or answered what is invalid."""
    return type(error).__module__.partition(".")[0] in _LIBRARIES or isinstance(error, TimeoutError)


def _is_unreached(error: BaseException) -> bool:
    """Return True if an error means that the client did not reach its server."""
    return type(error) is RuntimeError and text_of(error).startswith(_NOT_CONNECTED)


_UNKNOWN = "flink-agents/unknown-outcome"
"""Key of the record of a call whose outcome is unknown."""

_TIMED_OUT = re.compile(r"Timed out after [\d.e+-]+ seconds\.")
"""Message of pydantic-ai to the model if a function exceeds the ``timeout`` of its tool."""

_KEYED = "flink-agents/idempotency-key"
"""Metadata entry of a tool whose parameter ``idempotency_key`` is hidden from the model."""


@dataclass(frozen=True)
class CallBeingMade:
    """The tool call to which the running code belongs.

    Attributes:
        key: Idempotency key of the call.
        repeatable: True if the call may be repeated when its outcome is unknown.
    """

    key: str
    repeatable: bool


being_made: ContextVar[CallBeingMade | None] = ContextVar("flink_agents_tool_call", default=None)
"""The current tool call; None outside of recorded tool calls."""


async def call_tool(
    context: RunnerContext,
    name: str,
    body: Callable[[], Awaitable[object]],
    config: Mapping[str, Any],
    digest: str,
    text: str,
    on_unknown: OnUnknownOutcome,
    effects: Effects,
) -> object:
    """Call a tool in a durable step, and return its result or the recorded one.

    Args:
        context: The context of the action.
        name: Name of the durable step.
        body: Calls the tool.
        config: ``CallSettings`` of the call.
        digest: Digest of the request, by which a replay recognises the step.
        text: Text of the request in records.
        on_unknown: Policy if it is unknown whether the call took effect.
        effects: Notes the changes that the call makes in the agent's run, and applies recorded ones.

    Raises:
        ToolOutcomeUnknownError: It is unknown whether the call took effect.
    """
    repeatable = bool(config.get("idempotent"))

    async def call(request: str, idempotency_key: str) -> object:
        token = being_made.set(CallBeingMade(idempotency_key, repeatable))
        try:
            with effects.watch_changes():
                payload = await body()
        except OutcomeUnknown as unknown:
            return _unknown_record(str(unknown), idempotency_key)
        finally:
            being_made.reset(token)
        timeout_message = _timeout_message(payload)
        if timeout_message is None or repeatable:
            return effects.record_of(payload)
        return _unknown_record(timeout_message, idempotency_key)

    unknown_outcome = UnknownOutcome(_unknown_record, repeats=repeatable)
    step = DurableCallable(call, name=name, unknown=unknown_outcome, **_step_settings(config))
    vars(step)["request"] = text

    async def attempt(key: str | None) -> object:
        """Make the step; ``key`` is the idempotency key of the call that it repeats, or None."""
        key_argument: dict[str, Any] = {} if key is None else {IDEMPOTENCY_KEY: key}
        try:
            payload = await context.durable_execute_async(step, digest, **key_argument)
        except ServerFailedError as error:
            raise server_unavailable_error(name, error) from None
        if not (isinstance(payload, dict) and payload.keys() == {_UNKNOWN}):
            return effects.apply_record(payload)
        reason, call_key = cast("dict[str, Any]", payload)[_UNKNOWN]
        undecided = UnknownToolOutcome(
            f"the tool of {name!r}", name, reason, {}, partial(_repeat_attempt, attempt, call_key)
        )
        outcome = await resolve_outcome(context, undecided, ToolPolicy(on_unknown=on_unknown))
        # A person decided: this is the result, or the call is not repeated and the model gets an error.
        return outcome.content if outcome.kind == "success" else _failed_record(str(outcome.content))

    return await attempt(None)


def _step_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a tool call's durable step from its ``CallSettings``.

    ``idempotent`` decides what follows a timeout, or a crash during the call.
    """
    settings = dict(config)
    idempotent = settings.pop("idempotent", None)
    if idempotent:
        settings.setdefault("retry", RetryPolicy(retry_on=(ActionTimeoutError,)))
    elif idempotent is False:
        settings["reconciler"] = _answer_lost_call
    return settings


async def _repeat_attempt(attempt: Callable[[str | None], Awaitable[object]], key: str) -> ToolOutcome:
    """Make another attempt with the idempotency key of an earlier one, and wait for its outcome."""
    return ToolOutcome("success", await attempt(key))


def _unknown_record(reason: str, key: str | None) -> dict[str, Any]:
    """Return the record of a call whose outcome is unknown, with its idempotency key."""
    return {_UNKNOWN: [reason, key]}


def _answer_lost_call(request: str, idempotency_key: str) -> dict[str, Any]:
    """Return the record of a call that must not be repeated after the worker crashed during it."""
    return _unknown_record("the worker died during the call", idempotency_key)


def _failed_record(text: str) -> dict[str, Any]:
    """Return pydantic-ai's record of a tool that raised ``ToolFailed``."""
    return {"message": text, "kind": "tool_failed"}


def _timeout_message(payload: object) -> str | None:
    """Return pydantic-ai's message to the model about a timeout; None if the function did not time out."""
    if not isinstance(payload, dict):
        return None
    failure = cast("dict[str, Any]", payload)
    if failure.get("kind") != "model_retry" or not _TIMED_OUT.fullmatch(str(failure.get("message"))):
        return None
    return str(failure["message"])


def with_hints(config: Mapping[str, Any], tool: Any) -> Mapping[str, Any]:
    """Return the ``CallSettings`` of a tool with ``idempotent`` from the hints of its MCP server.

    Args:
        config: The settings of the author, which win if they have ``idempotent``.
        tool: The tool of pydantic-ai.
    """
    metadata: Mapping[str, Any] = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
    hints = metadata.get("annotations")
    if "idempotent" in config or not isinstance(hints, Mapping):
        return config
    server_hints = cast("Mapping[str, Any]", hints)
    if server_hints.get("readOnlyHint") or server_hints.get("idempotentHint"):
        return {**config, "idempotent": True}
    return config


# -- the parameter idempotency_key --------------------------------------------------------


def without_key(tool: ToolDefinition) -> ToolDefinition:
    """Return the definition of a tool for the model: without the parameter ``idempotency_key``."""
    schema = tool.parameters_json_schema
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if IDEMPOTENCY_KEY not in properties or _is_served(tool):
        return tool
    shown_properties = {name: value for name, value in properties.items() if name != IDEMPOTENCY_KEY}
    shown_schema = {**schema, "properties": shown_properties}
    if "required" in schema:
        shown_schema["required"] = [name for name in schema["required"] if name != IDEMPOTENCY_KEY]
        if not shown_schema["required"]:
            del shown_schema["required"]
    metadata = {**(tool.metadata or {}), _KEYED: True}
    return replace(tool, parameters_json_schema=shown_schema, metadata=metadata)


def _is_served(tool: ToolDefinition) -> bool:
    """Return True if a tool is an MCP server's, which gets the key in the metadata of a call."""
    return "annotations" in (tool.metadata or {})


def takes_key(tool: ToolDefinition) -> bool:
    """Return True if a call of the tool gets its idempotency key as an argument."""
    return bool((tool.metadata or {}).get(_KEYED))


def with_placeholder(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a model's arguments with a placeholder for the key, so that they pass validation.

    Args:
        arguments: The arguments, or their JSON. Invalid JSON is returned as it is.
    """
    try:
        parsed_arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(parsed_arguments, dict):
        return arguments
    return {**cast("dict[str, Any]", parsed_arguments), IDEMPOTENCY_KEY: ""}


def new_key() -> str:
    """Return a new idempotency key; in an action it is the same on replay."""
    context = current_context()
    return uuid.uuid4().hex if context is None else context.uuid4().hex


Call = Callable[..., Awaitable[Any]]
"""Calls a tool of an MCP server by name, with its arguments and metadata."""

_WATCHES = "__flink_agents_watches__"
"""Attribute of functions that :func:`watch_toolset` made."""


def watch_toolset(toolset: AbstractToolset[Any]) -> None:
    """Let recorded calls of an MCP toolset carry idempotency keys, and report calls with unknown outcomes.

    Other toolsets stay as they are.
    """
    if isinstance(toolset, MCPToolset) and not hasattr(toolset.process_tool_call, _WATCHES):
        toolset.process_tool_call = _wrap_process(toolset.process_tool_call)


def _wrap_process(author: Any) -> Any:
    """Return a ``process_tool_call`` that calls tools with idempotency keys, inside of the author's one.

    Args:
        author: The author's ``process_tool_call``; None if there is none.
    """

    async def process(ctx: Any, call: Call, name: str, arguments: dict[str, Any]) -> Any:
        current_call = being_made.get()
        if current_call is None:
            return await (call(name, arguments) if author is None else author(ctx, call, name, arguments))

        async def call_with_key(
            name: str, args: dict[str, Any], metadata: Any = None, **keyword_arguments: Any
        ) -> Any:
            key_metadata = {mcp_failures.IDEMPOTENCY_KEY: current_call.key, **(metadata or {})}
            try:
                sent_arguments = json_arguments(args)
            except NotSentError as error:
                raise ModelRetry(f"The arguments are no JSON, so the tool was not called: {error}") from None
            try:
                return await call(name, sent_arguments, metadata=key_metadata, **keyword_arguments)
            except Exception as error:
                failure = _failure_behind(error)
                if failure.kind is not FailureKind.UNKNOWN:
                    raise
                if current_call.repeatable:
                    # The model would make another call, with another key.
                    raise ServerFailedError(failure.text) from error
                raise OutcomeUnknown(failure.text) from error

        if author is None:
            return await call_with_key(name, arguments)
        return await author(ctx, call_with_key, name, arguments)

    setattr(process, _WATCHES, True)
    return process


def _failure_behind(error: Exception) -> Failure:
    """Return the failure of a tool call that caused an error of pydantic-ai or of a library."""
    cause: BaseException | None = error
    if isinstance(error, ModelRetry):
        # The tool itself reported an error, unless the library reports a lost connection in this way.
        cause = error.__cause__
    if cause is None:
        return Failure(FailureKind.REFUSED, text_of(error))
    return failure_of(cause, HTTPAnswers(), of_call=True)
