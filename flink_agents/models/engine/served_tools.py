"""Tools of pydantic-ai's own ``MCPToolset`` in recorded runs: their idempotency keys, and lost calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import AbstractToolset

from flink_agents.models.engine.server_failures import ServerFailedError
from flink_agents.models.engine.tool_calls import being_made
from flink_agents.models.mcp.failures import IDEMPOTENCY_KEY, Failure, FailureKind, HTTPAnswers, failure_of
from flink_agents.models.setup.failures import text_of
from flink_agents.models.tools.calls import OutcomeUnknown

Call = Callable[..., Awaitable[Any]]

_WATCHES = "__flink_agents_watches__"


def watch(toolset: AbstractToolset[Any]) -> None:
    """Add idempotency keys to recorded calls of a toolset, and detect lost calls."""
    if isinstance(toolset, MCPToolset) and not hasattr(toolset.process_tool_call, _WATCHES):
        toolset.process_tool_call = _through(toolset.process_tool_call)


def _through(author: Any) -> Any:
    """Wrap the author's function for tool calls, if there is one, around a call with a key."""

    async def process(ctx: Any, call: Call, name: str, arguments: dict[str, Any]) -> Any:
        made = being_made.get()
        if made is None:
            return await (call(name, arguments) if author is None else author(ctx, call, name, arguments))

        async def keyed(name: str, args: dict[str, Any], metadata: Any = None, **others: Any) -> Any:
            said = {IDEMPOTENCY_KEY: made.key, **(metadata or {})}
            try:
                return await call(name, args, metadata=said, **others)
            except Exception as error:
                failure = _failure(error)
                if failure.kind is not FailureKind.UNKNOWN:
                    raise
                if made.repeatable:
                    # The model would make another call, with another key.
                    raise ServerFailedError(failure.text) from error
                raise OutcomeUnknown(failure.text) from error

        return await (keyed(name, arguments) if author is None else author(ctx, keyed, name, arguments))

    setattr(process, _WATCHES, True)
    return process


def _failure(error: Exception) -> Failure:
    """Return the failure that caused ``error``."""
    if isinstance(error, ModelRetry):
        # The tool itself reported an error, unless the library reports a lost connection in this way.
        cause = error.__cause__
        return (
            Failure(FailureKind.REFUSED, text_of(error))
            if cause is None
            else failure_of(cause, HTTPAnswers(), of_call=True)
        )
    return failure_of(error, HTTPAnswers(), of_call=True)
