"""Sends requests to one server, over a connection that all keys share, and compares its lists of tools.

A connection is opened by the first request. A connection that is lost, or on which a request timed out, gets
no further requests. Its requests in flight continue, and the next request opens another connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
"""Sends a request with the client of a server, and returns its answer when awaited."""


class RequestFailedError(Exception):
    """A request failed.

    Args:
        failure: What happened; its text holds no secrets.
        timed_out: True if no answer came in time.
    """

    def __init__(self, failure: Failure, timed_out: bool = False) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.timed_out = timed_out


_log = bounded_logger("flink_agents.mcp")

_MOST_NAMED = 10
"""Maximum number of changed tools that a log names, of each kind of change."""

_ANSWERED = frozenset({FailureKind.REFUSED, FailureKind.INVALID})
"""Failures after which the connection can be used."""


def digest_of(listed: Sequence[Any]) -> str:
    """Return a digest of a list of JSON values, such as tools: 32 hexadecimal digits."""
    json_text = json.dumps(listed, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(json_text.encode(), digest_size=16).hexdigest()


class SeenTools:
    """Remembers the tools in a server's latest list, and logs changes.

    The description of a tool steers a model, so a change while the job runs is logged.

    Args:
        server: Name of the server.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._tools: dict[str, str] | None = None
        self._digest = ""

    def compare_tools(self, listed: Iterable[mcp_types.Tool]) -> None:
        """Compare a new list of tools with the previous one, and log the differences."""
        digests = {tool.name: digest_of([tool.description, dict(tool.input_schema)]) for tool in listed}
        list_digest = digest_of(sorted(digests.items()))
        previous_digests = self._tools
        self._tools = digests
        previous_list_digest = self._digest
        self._digest = list_digest
        if previous_digests is None:
            _log.info("the MCP server %s has %d tools, digest %s", self._server, len(digests), list_digest)
        elif previous_list_digest != list_digest:
            _log.warning(
                "the MCP server %s changed its tools, digest %s in place of %s: %s",
                self._server,
                list_digest,
                previous_list_digest,
                _describe_changes(previous_digests, digests),
            )


def _describe_changes(previous: Mapping[str, str], current: Mapping[str, str]) -> str:
    """Return the names of new, removed and changed tools as text; both have digests by name."""
    names_by_change = {
        "new": [name for name in current if name not in previous],
        "gone": [name for name in previous if name not in current],
        "described differently": [
            name for name in current if name in previous and current[name] != previous[name]
        ],
    }
    return "; ".join(
        f"{change}: {', '.join(names[:_MOST_NAMED])}" for change, names in names_by_change.items() if names
    )


class MCPRequests:
    """Sends requests to an MCP server. All of it runs on the agent loop.

    Args:
        name: Name of the server.
        spec: Its description, with the options of the job.
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
        """Send a request, and wait for its answer, also for its turn and for the connection.

        Args:
            request: Sends the request with the client of the server.
            timeout: Seconds that it may take. Default: those of the server.
            idempotency_key: Key of the call, if it calls a tool.

        Raises:
            RequestFailedError: There was no answer in time, or the server rejected the request.
            AgentsError: A secret is missing.
        """
        seconds = timeout or self._spec.timeout
        async with self._limiter:
            connection = self._usable_connection()
            with connection.in_use():
                toolset = await self._await_opened(connection)
                connection.http.begin_call(idempotency_key)
                deadline = asyncio.timeout(seconds)
                try:
                    async with deadline:
                        return await request(toolset)
                except Exception as error:
                    has_expired = isinstance(error, TimeoutError) and deadline.expired()
                    if has_expired:
                        text = f"it gave no answer within {seconds:g} seconds"
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
        """Return the tools of the server, cached for ``tools_ttl``, or until the server reports a change.

        Raises:
            RequestFailedError: The request failed.
            AgentsError: A secret is missing.
        """
        now = asyncio.get_running_loop().time()
        if self._tools is not None:
            connection, listed_at, tools = self._tools
            is_fresh = now - listed_at < self._spec.tools_ttl and not connection.tools_changed
            if is_fresh and connection is self._current and not connection.is_dead:
                return tools
        tools = await self.send(lambda toolset: toolset.list_tools())
        self._seen_tools.compare_tools(tools)
        if self._current is not None:
            self._current.tools_changed = False
            self._tools = (self._current, now, tools)
        return tools

    async def is_repeatable(self, tool: str) -> bool:
        """Return True if the server declares that repeated calls of a tool have no further effect.

        It may wait for the list of tools; False if there is none.
        """
        try:
            tools = await self.list_tools()
        except (RequestFailedError, AgentsError):
            return False
        return any(is_repeatable(listed_tool) for listed_tool in tools if listed_tool.name == tool)

    async def aclose(self) -> None:
        """Close all connections; wait for at most 2.5 seconds, and kill processes that do not end."""
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

    def _usable_connection(self) -> Connection:
        """Return the present connection; a new one if there is none, or it has ended."""
        if self._current is not None and self._current.is_dead:
            self._current.retire()
            self._current = None
        if self._current is None:
            connection = self._current = Connection(self._name, self._spec, self._secrets)
            self._connections.add(connection)
            connection.task.add_done_callback(lambda _: self._connections.discard(connection))
        return self._current

    async def _await_opened(self, connection: Connection) -> MCPToolset[Any]:
        """Wait until a connection is open, and return its client; raise the reason if it cannot be opened."""
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
        """Let the next request open another connection."""
        if self._current is connection:
            self._current = None

    def _failed_request_error(
        self, connection: Connection, failure: Failure, timed_out: bool = False
    ) -> RequestFailedError:
        """Return the error of a failed request, without secrets, with the last output of the process."""
        text = failure.text
        if failure.kind not in _ANSWERED and not timed_out and (lines := connection.last_lines()):
            text = f"{text}; it wrote: {lines[-1000:]}"
        hidden = Failure(failure.kind, self._secrets.hide(text), failure.retry_after)
        return RequestFailedError(hidden, timed_out)
