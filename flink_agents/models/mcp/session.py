"""The session of a shared connection. It accepts an answer that is not what the server declares.

The library raises for such an answer, and the caller could not tell it from a lost connection. The call took
effect, so its text matters.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, cast

from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import CallToolRequest, CallToolResult, ContentBlock, TextContent
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.models.mcp import OnInvalidResult
from flink_agents.models.mcp.failures import InvalidAnswerError

_log = bounded_logger("flink_agents.mcp")

_answer: ContextVar[dict[str, Any]] = ContextVar("flink_agents_mcp_answer")
"""The latest answer to a call in this task, as the server gave it."""


class SharedTransport(ClientTransport):
    """A transport whose session accepts results of tools that are not what the server declares.

    Args:
        transport: The transport to the server.
        on_invalid_result: Policy for results that are not what the server declares.
    """

    def __init__(self, transport: ClientTransport, on_invalid_result: OnInvalidResult) -> None:
        self._transport = transport
        self._on_invalid_result: OnInvalidResult = on_invalid_result
        self.legacy_only = transport.legacy_only

    @override
    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
    ) -> AsyncGenerator[ClientSession]:
        options = transport_options or TransportOptions()
        session_class = _session_class(options.session_class, self._on_invalid_result)
        options = replace(options, session_class=session_class)
        async with self._transport.connect_session(transport_options=options, **session_kwargs) as session:
            yield session

    @override
    async def close(self) -> None:
        await self._transport.close()

    @override
    def get_session_id(self) -> str | None:
        return self._transport.get_session_id()


class _SharedDispatcher(JSONRPCDispatcher[Any]):
    """Remembers the latest answer to a tool call in each task, and asks for no progress reports."""

    @override
    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: Any = None,
    ) -> dict[str, Any]:
        options = cast("CallOptions", dict(opts or {}))
        # This package does not use progress, and a number in it that is too large ends the connection.
        options.pop("on_progress", None)
        answer = await super().send_raw_request(
            method, params, options, _related_request_id=_related_request_id
        )
        if method == "tools/call":
            _answer.set(answer)
        return answer


def _session_class(base: type[ClientSession], on_invalid_result: OnInvalidResult) -> type[ClientSession]:
    """Return a class of sessions that accepts results of tools which are not what the server declares.

    Args:
        base: The class of sessions to derive it from.
        on_invalid_result: Policy for such results: ``fail`` raises InvalidAnswerError.
    """

    class SharedSession(base):
        def __init__(self, read: Any, write: Any, **options: Any) -> None:
            super().__init__(dispatcher=_SharedDispatcher(read, write), **options)

        @override
        async def send_request(self, request: Any, result_type: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return await super().send_request(request, result_type, *arguments, **options)
            except ValidationError as error:
                if not isinstance(request, CallToolRequest):
                    raise
                result = _result_of(_answer.get())
                if on_invalid_result == "fail" and not result.is_error:
                    raise _invalid_answer_error(_answer.get(), error) from None
                return result

        @override
        async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
            try:
                await super().validate_tool_result(name, result)
            except RuntimeError as error:
                if on_invalid_result == "fail":
                    raise _invalid_answer_error(_answer.get(), error) from None
                if result.content:
                    result.structured_content = None
            except Exception as error:
                # It lists tools first. If the list fails, the answer may still be valid.
                _log.info("the result of %s was not checked: %s", name, type(error).__name__)

    return SharedSession


def _invalid_answer_error(answer: Mapping[str, Any], error: Exception) -> InvalidAnswerError:
    """Return the error about an invalid answer, with the first problem and the answer's texts."""
    texts = [block.text for block in _result_of(answer).content if isinstance(block, TextContent)]
    reason = str(error).partition("\n")[0]
    if isinstance(error, ValidationError):
        details = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, details['loc']))}: {details['msg']}"
    return InvalidAnswerError(f"{reason}; it answered: {' '.join(texts)}")


_BLOCK: TypeAdapter[Any] = TypeAdapter(ContentBlock)
"""Validates a block of content: a text, a picture, a resource."""


def _result_of(answer: Mapping[str, Any]) -> CallToolResult:
    """Return an answer that the protocol does not allow as the result of a tool, as far as it is readable."""
    content = answer.get("content")
    blocks: list[Any] = [
        _block_of(block) for block in (content if isinstance(content, list) else [content]) if block
    ]
    structured = answer.get("structuredContent")
    is_error = answer.get("isError") in (True, "true")
    if not blocks and structured is None:
        blocks = [] if content == [] else [_text_of(answer)]
    return CallToolResult(
        content=blocks, structured_content=None if blocks else structured, is_error=is_error
    )


def _block_of(block: Any) -> Any:
    """Return a block of content; an invalid one as a text with its JSON."""
    try:
        return _BLOCK.validate_python(block, by_name=False)
    except ValidationError:
        text = cast("dict[str, Any]", block).get("text") if isinstance(block, dict) else block
        return _text_of(text or block)


def _text_of(value: Any) -> TextContent:
    return TextContent(type="text", text=value if isinstance(value, str) else json.dumps(value))
