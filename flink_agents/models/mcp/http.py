"""The HTTP client of a connection: an exchange that fails is the failure of one request, not of all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, cast

import httpx2
from fastmcp.client.transports import ClientTransport, SSETransport, StreamableHttpTransport
from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT
from mcp_types import CONNECTION_CLOSED
from typing_extensions import override

from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.models.mcp.failures import NOT_CONNECTED, HTTPAnswers
from flink_agents.models.setup.bodies import BodyLimit
from flink_agents.models.setup.failures import text_of

_NOTIFICATION_SECONDS = 5.0
"""Seconds that a server may take to accept a notification. Until then, the library sends no other message."""


def http_transport(spec: MCPServerSpec, headers: dict[str, str], http: HTTPAnswers) -> ClientTransport:
    """Create the transport to a server with a URL.

    Args:
        spec: The description of the server.
        headers: HTTP headers of each request by name, secrets included.
        http: Receives HTTP errors, and the calls that leave.
    """
    assert spec.url is not None
    client = _client_factory(spec, http)
    if spec.way == "sse":
        # Events are rare: silence between them must not end the connection.
        return SSETransport(spec.url, headers, sse_read_timeout=24 * 3600, httpx_client_factory=client)
    return StreamableHttpTransport(
        spec.url,
        headers,
        httpx_client_factory=client,
        # The library's own limit, 1 MiB, ends the connection.
        max_sse_event_size=spec.response_limit,
    )


def _client_factory(spec: MCPServerSpec, http: HTTPAnswers) -> Callable[..., httpx2.AsyncClient]:
    """Return a function that creates clients which report requests and answers to ``http``."""

    async def note_request(request: httpx2.Request) -> None:
        http.note_left(_message_in(request))

    async def note_answer(response: httpx2.Response) -> None:
        http.note_answer(response.request.content, response.status_code, response.headers.get("retry-after"))

    def create_client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
        **_: Any,
    ) -> httpx2.AsyncClient:
        timeouts = timeout or httpx2.Timeout(MCP_DEFAULT_TIMEOUT, read=MCP_DEFAULT_SSE_READ_TIMEOUT)
        limit_body = BodyLimit(spec.response_limit, events=True)
        hooks = {"request": [note_request], "response": [note_answer, limit_body]}
        return _SharedClient(http, headers=headers, timeout=timeouts, auth=auth, event_hooks=hooks)

    return create_client


class _SharedClient(httpx2.AsyncClient):
    """Answers a message whose exchange raises with an error of the protocol.

    The library runs the exchanges of all requests in one group of tasks, so one exception ends them all.

    Args:
        http: Receives the calls that did not reach the server.
        **options: Arguments of the HTTP client.
    """

    def __init__(self, http: HTTPAnswers, **options: Any) -> None:
        super().__init__(**options)
        self._http = http

    @override
    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method != "POST":
            return await super().send(request, **options)
        message = _message_in(request)
        is_notification = "id" not in message
        try:
            async with asyncio.timeout(_NOTIFICATION_SECONDS if is_notification else None):
                response = await super().send(request, **options)
                if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                    # The library would read it outside of this function.
                    await _read_body(response)
                return response
        except Exception as error:
            if type(error).__name__ in NOT_CONNECTED:
                self._http.note_left(message, False)
            if not {"id", "method"} <= message.keys():
                return httpx2.Response(202, request=request)
            text = f"{type(error).__name__}: {text_of(error)}"
            failure = {"code": CONNECTION_CLOSED, "message": text}
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": failure}
            return httpx2.Response(200, json=answer, request=request)


async def _read_body(response: httpx2.Response) -> None:
    """Read the body of a response into memory, and close the response if that fails."""
    try:
        await response.aread()
    except BaseException:
        await response.aclose()
        raise


def _message_in(request: httpx2.Request) -> dict[str, Any]:
    """Return the message of the protocol in the body of a request; empty if there is none."""
    with contextlib.suppress(ValueError, RecursionError, httpx2.RequestNotRead):
        message = json.loads(request.content)
        if isinstance(message, dict):
            return cast("dict[str, Any]", message)
    return {}
