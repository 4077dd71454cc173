"""MCP servers that fail in runs of Pydantic AI agents: failed attempts, and the error after the last one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flink_agents.api.durable import RetryableError
from flink_agents.api.errors import MCPServerUnavailableError
from flink_agents.models.setup.failures import text_of
from flink_agents.redaction import hide

_NOT_CONNECTED = "Client failed to connect"
"""Start of the client's error message if it did not reach its server."""

_LIBRARIES = frozenset({"fastmcp", "httpcore", "httpx", "httpx2", "mcp", "pydantic_core"})
"""Packages whose exceptions mean that a server failed, or that its answer is invalid."""

_MOST_CHARACTERS = 1000


class ServerFailedError(RetryableError):
    """A server was not reached, or its answer is unreadable. The request can be sent again."""


async def reaching_servers(body: Callable[[], Awaitable[object]], reads: bool) -> object:
    """Await ``body``, which connects to a server if there is no connection yet.

    Args:
        body: Lists the tools of a toolset, or calls one.
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


def unavailable(name: str, error: ServerFailedError) -> MCPServerUnavailableError:
    """Return the error of a durable call whose server failed in all attempts."""
    return MCPServerUnavailableError(
        f"an MCP server did not answer to {name!r}",
        expected="a running server that answers in time",
        found=str(error),
        fix="check the server; raise read_timeout of the toolset, or retry of tool_calls",
    )


def _is_of_server(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _LIBRARIES or isinstance(error, TimeoutError)


def _is_unreached(error: BaseException) -> bool:
    return type(error) is RuntimeError and text_of(error).startswith(_NOT_CONNECTED)
