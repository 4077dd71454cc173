"""Durations: seconds or a timedelta, and their texts for people."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_tz
from numbers import Real
from typing import Any, cast

LONGEST = timedelta(days=365_000)
"""The longest duration, about a thousand years: each time that it leads to is a valid date."""

_UNITS = (("d", 86_400, 86_400), ("h", 3600, 3600), ("min", 60, 600))
"""Units with their lengths, and the shortest duration that a text shows in each; both in seconds."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)


def duration_text(seconds: float) -> str:
    """Return seconds as text for people and options, in the longest unit that divides them: ``2 h``."""
    for unit, length, least in _UNITS:
        if seconds >= least and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def seconds_of(duration: object, refuse: Callable[[str], Exception], least: float | None = None) -> float:
    """Return an author's duration in seconds, at most :data:`LONGEST`.

    Args:
        duration: A number of seconds, or a timedelta.
        refuse: Returns the error to raise for an invalid duration; it gets the value as text.
        least: Minimum number of seconds. Default: any number, and numbers below 0 count as 0.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise refuse(f"{type(duration).__qualname__} {duration!r}"[:200])
    number = cast("float", seconds)
    # This is false for NaN, too.
    if not (-math.inf if least is None else least) <= number <= LONGEST.total_seconds():
        # A huge int cannot be converted to text.
        bits = number.bit_length() if isinstance(number, int) else 0
        raise refuse(f"an int of {bits} bits" if bits > 64 else f"{number!r} seconds")
    # Not by `float`: a huge int below 0 has none.
    return float(number) if number > 0 else 0.0


def plain_seconds(value: object) -> object:
    """Return a timedelta in seconds and any other value as it is, for fields of models.

    Raises:
        ValueError: It is a bool, which would count as a number.
    """
    if isinstance(value, bool):
        raise ValueError("a bool is no duration")
    return value.total_seconds() if isinstance(value, timedelta) else value


def requested_pause(value: Any) -> float | None:
    """Return the seconds for which a service or an error asks to wait; None if it does not say.

    Args:
        value: A number of seconds, a timedelta, or the value of a ``Retry-After`` header: seconds, or a date
            in a form of RFC 9110. All other values count as no request.

    A time in the past counts as 0, a longer pause than ``LONGEST`` as that.
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        if isinstance(value, timedelta):
            seconds = value.total_seconds()
        else:
            seconds = _seconds_of_header(value.strip()) if isinstance(value, str) else float(value)
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    return max(0.0, min(seconds, LONGEST.total_seconds())) if math.isfinite(seconds) else None


def _seconds_of_header(text: str) -> float:
    """Return the seconds from now of a ``Retry-After`` header; ValueError if it has another form."""
    if _NUMBER.fullmatch(text):
        # With too many digits, it is infinite as a float.
        return min(float(text), LONGEST.total_seconds())
    date = parsedate_tz(text)
    if date is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, *_, offset = date
    # A leap second is the 60th. The form of asctime has no zone and -0000 names none: both are in UTC.
    time_s = datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp() + second - (offset or 0)
    return time_s - time.time()
