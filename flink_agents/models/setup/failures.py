"""Failed requests to a service: whether another attempt may succeed, and when it may start."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping

from pydantic import ValidationError

from flink_agents.api.common.durations import requested_pause
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import RetryableError
from flink_agents.api.resources.raised_notes import message_of

_log = bounded_logger("flink_agents.models")

_AGAIN_STATUS = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which a request may succeed: timeout, conflict, too early, too many requests."""

_NOT_IMPLEMENTED = 501
"""The only status from 500 on that another attempt does not change."""

_MOST_MISTAKES = 100
"""The largest number of validation errors of an answer that a message lists."""


def may_succeed_again(status: int) -> bool:
    """Return True if the same request may succeed after an answer with this HTTP status."""
    return status in _AGAIN_STATUS or (status >= 500 and status != _NOT_IMPLEMENTED)


def text_of(error: BaseException) -> str:
    """Return the message of an exception as encodable text, even if its ``__str__`` fails.

    A model gets it as the error of a tool, so that of a group shows its causes.
    """
    return message_of(error, _text_of)


def _text_of(error: BaseException) -> str:
    """Return the message of a single exception as encodable text."""
    if isinstance(error, ValidationError) and error.error_count() > _MOST_MISTAKES:
        # The library has a kilobyte to say of each.
        return f"{error.error_count()} validation errors for {error.title}"
    try:
        text = str(error)
    except Exception as failed:
        text = f"(its message is unavailable: {type(failed).__name__})"
    return text.encode("utf-8", "replace").decode()


_WRITERS = frozenset({"build_request", "_build_request", "encode_request", "encode_json"})
"""Functions of HTTP clients that write a request before it is sent."""


def was_not_sent(error: BaseException) -> bool:
    """Return True if an error means that a request could not be written.

    Then nothing was sent, and each attempt would fail.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnicodeEncodeError):
            return True
        if isinstance(cause, TypeError | ValueError) and _was_raised_by_writer(cause):
            return True
        cause = cause.__cause__
    return False


def _was_raised_by_writer(error: BaseException) -> bool:
    """Return True if an exception left a function that writes requests."""
    return any(frame.f_code.co_name in _WRITERS for frame, _ in traceback.walk_tb(error.__traceback__))


def retry_after_of(headers: Mapping[str, str] | None) -> float | None:
    """Return the seconds in ``Retry-After`` or a similar header of an answer; None without one."""
    lowercase_headers = {name.lower(): value for name, value in (headers or {}).items()}
    milliseconds = requested_pause(lowercase_headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    return requested_pause(lowercase_headers.get("retry-after"))


def failed_attempt(what: str, text: str, retry_after: float | None, limit: float) -> RetryableError | None:
    """Return the error of a failed attempt that may be repeated; None if the service asks to wait too long.

    Args:
        what: The resource, for the log: ``the chat model 'analyst'``.
        text: Text of the failure, without secrets.
        retry_after: Seconds that the service asks to wait; None if it does not ask.
        limit: The longest wait, in seconds. If the service asks for more, a WARNING is logged.
    """
    if retry_after is None or not math.isfinite(retry_after) or retry_after <= limit:
        return RetryableError(text, retry_after)
    _log.warning(
        "%s is asked to wait %.0f s before it sends the request again, longer than retry_after_limit=%g: the "
        "request fails",
        what,
        retry_after,
        limit,
    )
    return None
