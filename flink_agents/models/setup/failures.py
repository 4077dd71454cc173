"""What a failed request to a service says: whether another attempt may succeed, and when it may begin."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from pydantic import ValidationError

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import RetryableError

_log = bounded_logger("flink_agents.models")

_AGAIN_STATUS = frozenset({408, 409, 425, 429})

_NOT_IMPLEMENTED = 501

_MOST_MISTAKES = 100
"""How many mistakes of an answer are told one by one."""


def may_succeed_again(status: int) -> bool:
    """True if the same request may succeed after an answer with this status of HTTP."""
    return status in _AGAIN_STATUS or (status >= 500 and status != _NOT_IMPLEMENTED)


def text_of(error: BaseException) -> str:
    """Return what an exception says, as text that can be encoded, even if its ``__str__`` fails."""
    if isinstance(error, ValidationError) and error.error_count() > _MOST_MISTAKES:
        # The library has a kilobyte to say of each.
        return f"{error.error_count()} validation errors for {error.title}"
    try:
        text = str(error)
    except Exception as failed:
        text = f"(its text cannot be made: {type(failed).__name__})"
    return text.encode("utf-8", "replace").decode()


def retry_after_of(headers: Mapping[str, str] | None) -> float | None:
    """Seconds for which the headers of an answer ask to be left alone; None if they do not."""
    known = {name.lower(): value for name, value in (headers or {}).items()}
    milliseconds = seconds_of(known.get("retry-after-ms"))
    return seconds_of(known.get("retry-after")) if milliseconds is None else milliseconds / 1000


def seconds_of(value: object) -> float | None:
    """Seconds that a header ``Retry-After`` means: a number of them, or a date. None if it is neither."""
    text = str(value).strip() if value is not None else ""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def failed_attempt(what: str, text: str, retry_after: float | None, limit: float) -> RetryableError | None:
    """The failure of an attempt after which another one may begin; None if the service asks to wait too long.

    Args:
        what: Who asks, for the log: ``the chat model 'analyst'``.
        text: What failed, without secrets.
        retry_after: Seconds for which the service asks to be left alone, or None.
        limit: Seconds to wait at most.
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
