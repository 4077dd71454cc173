"""Sends requests to one server, over a connection that all keys share, and compares its lists of tools.

A connection is opened by the first request. A connection that is lost, or on which a request timed out, gets
no further requests. Its requests in flight continue, and the next request opens another connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import mcp_types
from pydantic_ai.mcp import MCPToolset

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import AgentsError
from flink_agents.api.models.mcp import MCPServerSpec
from flink_agents.models.mcp.connection import GRACE_SECONDS, Connection
from flink_agents.models.mcp.content import is_repeatable
from flink_agents.models.mcp.failures import Failure, FailureKind, failure_of
from flink_agents.models.setup.limiter import RequestLimiter
from flink_agents.models.setup.secrets import Secrets

T = TypeVar("T")

Request = Callable[[MCPToolset[Any]], Awaitable[T]]


class RequestFailedError(Exception):
    """A request failed.

    Args:
        failure: The failure; its text holds no secrets.
        timed_out: True if no answer came in time.
    """

    def __init__(self, failure: Failure, timed_out: bool = False) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.timed_out = timed_out


_log = bounded_logger("flink_agents.mcp")

_MOST_NAMED = 10

_ANSWERED = frozenset({FailureKind.REFUSED, FailureKind.INVALID})
"""Failures after which the connection can be used."""


def digest_of(listed: Sequence[Any]) -> str:
    """Return a digest of a list of tools: 32 hexadecimal digits."""
    data = json.dumps(listed, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class SeenTools:
    """The tools in a server's latest list; logs what changes.

    The description of a tool steers a model, so a change while the job runs is logged.

    Args:
        server: Name of the server.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._tools: dict[str, str] | None = None
        self._digest = ""

    def compare_tools(self, listed: Iterable[mcp_types.Tool]) -> None:
        """Compare tools with the previous ones."""
        tools = {tool.name: digest_of([tool.description, dict(tool.input_schema)]) for tool in listed}
        digest = digest_of(sorted(tools.items()))
        previous_tools = self._tools
        self._tools = tools
        former = self._digest
        self._digest = digest
        if previous_tools is None:
            _log.info("the MCP server %s has %d tools, digest %s", self._server, len(tools), digest)
        elif former != digest:
            changed = [
                name for name in tools if name in previous_tools and tools[name] != previous_tools[name]
            ]
            kinds = {
                "new": [name for name in tools if name not in previous_tools],
                "gone": [name for name in previous_tools if name not in tools],
                "described differently": changed,
            }
            changes = "; ".join(
                f"{kind}: {', '.join(names[:_MOST_NAMED])}" for kind, names in kinds.items() if names
            )
            _log.warning(
                "the MCP server %s changed its tools, digest %s in place of %s: %s",
                self._server,
                digest,
                former,
                changes,
            )


class MCPRequests:
    """Sends requests to an MCP server. All of it runs on the agent loop.

    Args:
        name: Name of the server.
        spec: Its description.
    """

    def __init__(self, name: str, spec: MCPServerSpec) -> None:
        self._name = name
        self._spec = spec
        self._secrets = Secrets(f"the MCP server {name!r}")
        self._limiter = RequestLimiter(spec.max_concurrency, spec.rate_limit)
        self._current: Connection | None = None
        self._connections: set[Connection] = set()
        self._tools: tuple[Connection, float, Any] | None = None
        self._seen_tools = SeenTools(name)

    async def send(
        self, request: Request[T], timeout: float | None = None, idempotency_key: str | None = None
    ) -> T:
        """Send a request, and wait for its answer.

        Args:
            request: Sends it with what speaks with the server.
            timeout: Seconds that it may take. Default: those of the server.
            idempotency_key: That of the call, if it calls a tool.

        Raises:
            RequestFailedError: There was no answer, or one that says no.
            AgentsError: A secret is missing.
        """
        async with self._limiter.wait_for_turn():
            connection = self._connection()
            with connection.in_use():
                toolset = await self._await_opened(connection)
                connection.http.begin_call(idempotency_key)
                deadline = asyncio.timeout(timeout or self._spec.timeout)
                try:
                    async with deadline:
                        return await request(toolset)
                except Exception as error:
                    has_expired = isinstance(error, TimeoutError) and deadline.expired()
                    if has_expired:
                        text = f"it gave no answer within {timeout or self._spec.timeout:g} seconds"
                        failure = Failure(FailureKind.UNKNOWN, text)
                    else:
                        failure = failure_of(error, connection.http, idempotency_key)
                    if connection.http.end_call(idempotency_key):
                        failure = Failure(FailureKind.NOT_DONE, f"it was not sent: {failure.text}")
                    if failure.kind not in _ANSWERED:
                        connection.retire()
                        self._forget_connection(connection)
                        # Its error output comes through another pipe, a moment later.
                        await asyncio.sleep(0)
                    raise self._failed_request_error(connection, failure, has_expired) from None
                finally:
                    connection.http.end_call(idempotency_key)

    async def list_tools(self) -> Any:
        """Return the tools of the server; list them again after a time, or if the server reports a change."""
        now = asyncio.get_running_loop().time()
        if self._tools is not None:
            connection, listed, tools = self._tools
            fresh = now - listed < self._spec.tools_ttl and not connection.tools_changed
            if fresh and connection is self._current and not connection.is_dead:
                return tools
        tools = await self.send(lambda toolset: toolset.list_tools())
        self._seen_tools.compare_tools(tools)
        if self._current is not None:
            self._current.tools_changed = False
            self._tools = (self._current, now, tools)
        return tools

    async def is_repeatable(self, tool: str) -> bool:
        """Return True if the server declares that repeated calls of ``tool`` have no further effect."""
        try:
            listed = await self.list_tools()
        except (RequestFailedError, AgentsError):
            return False
        return any(is_repeatable(listed_tool) for listed_tool in listed if listed_tool.name == tool)

    async def aclose(self) -> None:
        """Close all connections, in bounded time."""
        self._current = None
        tasks = [connection.task for connection in self._connections]
        for connection in self._connections:
            connection.retire()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=2 * GRACE_SECONDS)
        for connection in [candidate for candidate in self._connections if candidate.task in late]:
            connection.kill()
        if late:
            await asyncio.wait(late, timeout=GRACE_SECONDS / 2)

    def _connection(self) -> Connection:
        if self._current is not None and self._current.is_dead:
            self._current.retire()
            self._current = None
        if self._current is None:
            connection = self._current = Connection(self._name, self._spec, self._secrets)
            self._connections.add(connection)
            connection.task.add_done_callback(lambda _: self._connections.discard(connection))
        return self._current

    async def _await_opened(self, connection: Connection) -> MCPToolset[Any]:
        # A caller may be cancelled while others still wait.
        opened = await asyncio.shield(connection.opened)
        if opened.toolset is not None:
            return opened.toolset
        self._forget_connection(connection)
        if opened.error is not None:
            raise opened.error
        assert opened.failure is not None
        raise self._failed_request_error(connection, opened.failure)

    def _forget_connection(self, connection: Connection) -> None:
        if self._current is connection:
            self._current = None

    def _failed_request_error(
        self, connection: Connection, failure: Failure, timed_out: bool = False
    ) -> RequestFailedError:
        text = failure.text
        if failure.kind not in _ANSWERED and not timed_out and (lines := connection.last_lines()):
            text = f"{text}; it wrote: {lines[-1000:]}"
        hidden = Failure(failure.kind, self._secrets.hide(text), failure.retry_after)
        return RequestFailedError(hidden, timed_out)
