"""Transports to a server, from its description: a process, streamable HTTP, or SSE."""

from __future__ import annotations

from typing import Any

import httpx2
from fastmcp.client.transports import ClientTransport, SSETransport, StreamableHttpTransport
from mcp.shared._httpx_utils import create_mcp_http_client

from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.models.mcp.failures import HTTPAnswers
from flink_agents.models.mcp.process_guardian import ProcessGuardian
from flink_agents.models.mcp.stdio import BoundedStdio
from flink_agents.models.setup.bodies import BodyLimit
from flink_agents.models.setup.secrets import Secrets


def transport_of(
    spec: MCPServerSpec, secrets: Secrets, lifeline: ProcessGuardian | None, http: HTTPAnswers
) -> ClientTransport:
    """Return the transport of a description.

    Args:
        spec: The description.
        secrets: Resolves its secrets.
        lifeline: Belongs to the process, if the server is one.
        http: Receives HTTP errors, and answers that are too large.

    Raises:
        ResourceUnavailableError: A secret is missing.
    """
    if lifeline is not None:
        assert spec.command is not None
        command, arguments = lifeline.guarded(
            spec.command, [secrets.text(one, "an argument") for one in spec.args]
        )
        return BoundedStdio(
            command,
            arguments,
            env=secrets.headers(spec.env),
            cwd=spec.cwd,
            errors=lifeline.errors,
            limit=spec.response_limit,
            too_large=http.note_too_large,
        )
    assert spec.url is not None
    headers = secrets.headers(spec.headers)
    if spec.auth is not None:
        headers["Authorization"] = f"Bearer {secrets.read(spec.auth)}"

    async def note(response: httpx2.Response) -> None:
        http.note(response.request.content, response.status_code, response.headers.get("retry-after"))

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
        **_: Any,
    ) -> httpx2.AsyncClient:
        made = create_mcp_http_client(headers=headers, timeout=timeout, auth=auth)
        made.event_hooks.setdefault("response", []).extend(
            (note, BodyLimit(spec.response_limit, events=True))
        )
        return made

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
