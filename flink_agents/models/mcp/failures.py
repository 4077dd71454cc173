"""What went wrong with a server: whether it refused, was not reached, or was lost in the middle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from fastmcp.exceptions import (
    McpError,  # pyright: ignore[reportPrivateImportUsage]
    ToolError,
)
from pydantic_ai.mcp import MCPError as PydanticMCPError

from flink_agents.models.setup.failures import may_succeed_again, seconds_of, text_of
from flink_agents.redaction import hide


class Kind(Enum):
    """What is known of a request that failed.

    Attributes:
        REFUSED: The server answered that it does not do it, and would answer so again.
        NOT_DONE: It did not come to the server, or the server did not begin it; another attempt may succeed.
        UNKNOWN: The connection ended, or time ran out, and the server may have done it.
    """

    REFUSED = auto()
    NOT_DONE = auto()
    UNKNOWN = auto()


_CONNECTION_CODES = frozenset({-32000, -32001, -32600, -32700})
"""Codes by which the libraries of MCP say that a connection ended, or that what came is no answer."""

_INTERNAL_ERROR = -32603

_BY_STATUS = "Server returned an error response"
"""The words of the library for an answer of HTTP that is no message of MCP: it keeps the status to itself."""

_NO_SESSION = "Session terminated"
"""The words of the library where a server was started again, and does not know who asks."""

_NOT_BEGUN = frozenset({425, 429})

_BUSY = 503
"""Says that nothing was begun if it comes with a time to wait. Proxies say it of calls that were cut, too."""

_NOT_CONNECTED = ("ConnectError", "ConnectTimeout", "PoolTimeout")
"""Exceptions of clients for HTTP that are raised before anything is sent."""

_MOST_CHARACTERS = 1000


@dataclass(frozen=True)
class Failure:
    """What a request failed by.

    Attributes:
        kind: What is known of the request.
        text: What a reader is told, without secrets.
        retry_after: Seconds that the server asks to wait, or None.
    """

    kind: Kind
    text: str
    retry_after: float | None = None


@dataclass
class HTTPAnswer:
    """The latest answer of HTTP that was an error; the library of MCP tells no more than that there was one.

    Attributes:
        status: Its status, or None.
        retry_after: What the server asked for, or None.
        too_large: Set if a process wrote a line that is longer than the limit.
    """

    status: int | None = None
    retry_after: float | None = None
    too_large: Exception | None = None

    def note_too_large(self, error: Exception) -> None:
        """Keep why the connection to a process ended: it wrote too long a line."""
        self.too_large = error

    def note(self, status: int, retry_after: object) -> None:
        """Keep an answer, if it is an error."""
        if status >= 400:
            self.status, self.retry_after = status, seconds_of(retry_after)


def failure_of(error: BaseException, http: HTTPAnswer) -> Failure:
    """What an exception of the libraries says.

    Args:
        error: The exception.
        http: The latest error of HTTP.
    """
    leaf = _leaf(error)
    text = hide(f"{type(leaf).__name__}: {text_of(leaf)}")[:_MOST_CHARACTERS]
    if http.too_large is not None:
        return Failure(Kind.UNKNOWN, f"{type(http.too_large).__name__}: {http.too_large}")
    if isinstance(leaf, ToolError):
        return Failure(Kind.REFUSED, hide(text_of(leaf))[:_MOST_CHARACTERS])
    if isinstance(leaf, McpError):
        return _of_code(leaf.error.code, leaf.error.message, http)
    if isinstance(leaf, PydanticMCPError):
        return _of_code(leaf.code, leaf.message, http)
    response = getattr(leaf, "response", None)
    if response is not None:
        return _of_status(response.status_code, text, seconds_of(response.headers.get("retry-after")))
    if type(leaf).__name__ in _NOT_CONNECTED or isinstance(leaf, FileNotFoundError | PermissionError):
        return Failure(Kind.NOT_DONE, text)
    return Failure(Kind.UNKNOWN, text)


def _of_code(code: int, message: str, http: HTTPAnswer) -> Failure:
    if code == _INTERNAL_ERROR and message == _BY_STATUS and http.status is not None:
        return _of_status(http.status, f"HTTP status {http.status}", http.retry_after)
    if message == _NO_SESSION:
        return Failure(Kind.NOT_DONE, message)
    kind = Kind.UNKNOWN if code in _CONNECTION_CODES else Kind.REFUSED
    return Failure(kind, hide(message)[:_MOST_CHARACTERS])


def _of_status(status: int, text: str, retry_after: float | None) -> Failure:
    if status in _NOT_BEGUN or (status == _BUSY and retry_after is not None):
        return Failure(Kind.NOT_DONE, text, retry_after)
    return Failure(Kind.UNKNOWN if may_succeed_again(status) else Kind.REFUSED, text, retry_after)


def _leaf(error: BaseException) -> BaseException:
    """The exception that says most: of a group its first one, and of a bare RuntimeError its cause."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif type(error) is RuntimeError and isinstance(error.__cause__, Exception):
            error = error.__cause__
        else:
            return error
