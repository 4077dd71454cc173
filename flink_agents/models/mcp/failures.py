"""Failures of a server: it rejected a request, was not reached, or was lost during the request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, cast

from fastmcp.exceptions import (
    McpError,  # pyright: ignore[reportPrivateImportUsage]
    ToolError,
)
from pydantic_ai.mcp import MCPError as PydanticMCPError

from flink_agents.api.common.durations import requested_pause
from flink_agents.models.setup.failures import may_succeed_again, text_of
from flink_agents.redaction import hide_beyond


class FailureKind(Enum):
    """The kinds of failed requests.

    Attributes:
        REFUSED: The server rejected the request, and would reject it again.
        NOT_DONE: The request did not reach the server, or the server did not start it; another attempt may
            succeed.
        UNKNOWN: The connection ended or the request timed out; the server may have executed it.
        INVALID: The server executed it, and its answer is not what it declares.
    """

    REFUSED = auto()
    NOT_DONE = auto()
    UNKNOWN = auto()
    INVALID = auto()


IDEMPOTENCY_KEY = "flink-agents/idempotency-key"
"""Entry of a call's metadata that all attempts of the call share."""

_CONNECTION_CODES = frozenset({-32000, -32001, -32600, -32700})
"""Error codes of MCP libraries for a lost connection or an invalid answer."""

_INTERNAL_ERROR = -32603
"""Code of an error of a server, or of the library if a server's HTTP answer is an error."""

_REJECTED_CODES = frozenset({-32601, -32602, -32002, -32042})
"""Codes of a server that did not begin: unknown method, tool or resource; wrong arguments; no login."""

_ENDED_CODES = frozenset({0, -32800})
"""Codes of a server whose code raised, and of one that was interrupted."""

_RESERVED_CODES = range(-32768, -31999)
"""Codes that JSON-RPC keeps for servers and their libraries. Others are a tool's own answer."""

_BY_STATUS = "Server returned an error response"
"""The library's message for an HTTP answer that is not an MCP message; it does not contain the status."""

_NO_SESSION = "Session terminated"
"""The library's message if a restarted server does not know the session."""

_NOT_BEGUN = frozenset({425, 429})
"""Statuses of HTTP that mean that nothing was started: too early, too many requests."""

_BUSY = 503
"""Means that nothing was started, if it has ``Retry-After``. Proxies also send it for interrupted calls."""

NOT_CONNECTED = ("ConnectError", "ConnectTimeout", "PoolTimeout")
"""Exceptions of HTTP clients before anything was sent."""

_MOST_CHARACTERS = 1000
"""Maximum number of characters of a failure's text."""

_MOST_ERRORS = 1000
"""Maximum number of HTTP errors that are kept until they are read."""


@dataclass(frozen=True)
class Failure:
    """The failure of a request.

    Attributes:
        kind: What the failure means for another attempt.
        text: The message, for errors and models.
        retry_after: Seconds that the server asks to wait; None if it does not ask.
    """

    kind: FailureKind
    text: str
    retry_after: float | None = None


class InvalidAnswerError(Exception):
    """A server's answer is not what the protocol or the tool's own schema declares."""


class HTTPAnswers:
    """The HTTP errors of a connection, and its calls that did not leave yet; the library reports neither.

    Requests share a connection. A call of a tool is judged by the answer to itself: that to another request
    would say of a payment that it was rejected.

    Attributes:
        too_large: The error of a process that wrote a line longer than the limit; None if none did.
    """

    def __init__(self) -> None:
        self.too_large: Exception | None = None
        self._errors: dict[str | None, tuple[int, float | None]] = {}
        self._has_left: dict[str, bool] = {}

    def begin_call(self, key: str | None) -> None:
        """Note that a call with this idempotency key begins, and nothing of it left yet; None is no call."""
        if key is not None:
            self._has_left[key] = False

    def note_left(self, message: object, has_left: bool = True) -> None:
        """Note that a message leaves for the server, or that it did not reach the server.

        Args:
            message: The message as JSON values. Only calls of tools count, by their idempotency keys.
            has_left: False if the server was not reached.
        """
        key = key_of(message)
        if key in self._has_left:
            self._has_left[key] = has_left

    def end_call(self, key: str | None) -> bool:
        """Forget a call that ended; return True if nothing of it left for the server.

        Args:
            key: Idempotency key of the call; None for other requests, for which the result is False.
        """
        return key is not None and not self._has_left.pop(key, True)

    def note_too_large(self, error: Exception) -> None:
        """Keep the reason why the connection to a process ended: it wrote too long a line."""
        self.too_large = error

    def note_answer(self, sent: bytes, status: int, retry_after: object) -> None:
        """Remember the answer to a request, if it is an error.

        Args:
            sent: The body of the request. One without a body listens only, and is not remembered.
            status: The status of HTTP.
            retry_after: The header ``Retry-After`` of the answer; None if it has none.
        """
        if status >= 400 and sent:
            if len(self._errors) >= _MOST_ERRORS:
                self._errors.clear()
            self._errors[key_of(_parse_message(sent))] = status, requested_pause(retry_after)

    def take_error(self, key: str | None) -> tuple[int, float | None] | None:
        """Return and forget the latest HTTP error: its status, and the seconds to wait. None without one.

        Args:
            key: The idempotency key of a call; None for all other requests.
        """
        return self._errors.pop(key, None)


def key_of(message: object) -> str | None:
    """Return the idempotency key in a message of the protocol, as JSON values; None if it calls no tool."""
    try:
        key = cast("Any", message)["params"]["_meta"][IDEMPOTENCY_KEY]
    except (TypeError, LookupError):
        return None
    return key if isinstance(key, str) else None


def _parse_message(sent: bytes) -> object:
    """Return the JSON value in the body of a request; None if it is not JSON."""
    try:
        return json.loads(sent)
    except (ValueError, RecursionError):
        return None


def failure_of(
    error: BaseException, http: HTTPAnswers, key: str | None = None, of_call: bool | None = None
) -> Failure:
    """Return the failure that an exception of the libraries reports.

    Args:
        error: The exception that a request raised.
        http: The HTTP errors of the connection.
        key: Idempotency key of the call of a tool; None for other requests.
        of_call: True if the request was the call of a tool. Default: True if there is a key.
    """
    is_call = key is not None if of_call is None else of_call
    leaf = _most_specific(error)
    text = hide_beyond(f"{type(leaf).__name__}: {text_of(leaf)}", _MOST_CHARACTERS)
    # It ended the connection, so whatever the library raises is only a consequence.
    if http.too_large is not None:
        return Failure(FailureKind.UNKNOWN, f"{type(http.too_large).__name__}: {http.too_large}")
    if isinstance(leaf, InvalidAnswerError):
        return Failure(FailureKind.INVALID, hide_beyond(text_of(leaf), _MOST_CHARACTERS))
    if isinstance(leaf, ToolError):
        return Failure(FailureKind.REFUSED, hide_beyond(text_of(leaf), _MOST_CHARACTERS))
    if isinstance(leaf, McpError):
        return _failure_of_code(leaf.error.code, leaf.error.message, http.take_error(key), is_call)
    if isinstance(leaf, PydanticMCPError):
        return _failure_of_code(leaf.code, leaf.message, http.take_error(key), is_call)
    # Errors of HTTP clients are recognised by attributes and names, without an import of their packages.
    response = getattr(leaf, "response", None)
    if response is not None:
        retry_after = requested_pause(response.headers.get("retry-after"))
        return _failure_of_status(response.status_code, text, retry_after)
    if type(leaf).__name__ in NOT_CONNECTED or isinstance(leaf, FileNotFoundError | PermissionError):
        return Failure(FailureKind.NOT_DONE, text)
    return Failure(FailureKind.UNKNOWN, text)


def _failure_of_code(
    code: int, message: str, http_error: tuple[int, float | None] | None, is_call: bool
) -> Failure:
    """Return the failure that an error of the protocol reports.

    Args:
        code: The code of the error.
        message: The message of the error.
        http_error: Status, and seconds to wait, of the HTTP answer behind it; None if there is none.
        is_call: True if the request was the call of a tool.
    """
    if code == _INTERNAL_ERROR and message == _BY_STATUS and http_error is not None:
        status, retry_after = http_error
        return _failure_of_status(status, f"HTTP status {status}", retry_after)
    if message == _NO_SESSION:
        return Failure(FailureKind.NOT_DONE, message)
    is_unknown = code in _CONNECTION_CODES or (is_call and _may_have_begun(code))
    kind = FailureKind.UNKNOWN if is_unknown else FailureKind.REFUSED
    return Failure(kind, hide_beyond(message, _MOST_CHARACTERS))


def _may_have_begun(code: int) -> bool:
    """Return True if a server that answers a call with this code may have executed some of it."""
    if code in _REJECTED_CODES:
        return False
    # Some servers use a status of HTTP as the code.
    is_unclear_status = code < 600 and may_succeed_again(code) and code not in _NOT_BEGUN
    return code in _ENDED_CODES or code in _RESERVED_CODES or is_unclear_status


def _failure_of_status(status: int, text: str, retry_after: float | None) -> Failure:
    """Return the failure that an HTTP status reports; ``retry_after`` is in seconds."""
    if status in _NOT_BEGUN or (status == _BUSY and retry_after is not None):
        return Failure(FailureKind.NOT_DONE, text, retry_after)
    kind = FailureKind.UNKNOWN if may_succeed_again(status) else FailureKind.REFUSED
    return Failure(kind, text, retry_after)


def _most_specific(error: BaseException) -> BaseException:
    """Return the most specific exception: the first one of a group, or the cause of a bare RuntimeError."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif type(error) is RuntimeError and isinstance(error.__cause__, Exception):
            error = error.__cause__
        else:
            return error
