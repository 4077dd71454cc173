"""Durations: seconds or a timedelta, and their texts for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from numbers import Real
from typing import cast

LONGEST = timedelta(days=365_000)
"""The longest duration, about a thousand years: each time that it leads to is a valid date."""

_UNITS = (("d", 86_400, 86_400), ("h", 3600, 3600), ("min", 60, 600))
"""Units with their lengths, and the shortest duration in each; both in seconds."""


def duration_text(seconds: float) -> str:
    """Return a duration as text for people and options: in the longest unit that divides it."""
    for unit, length, least in _UNITS:
        if seconds >= least and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def seconds_of(duration: object, refuse: Callable[[str], Exception], least: float | None = None) -> float:
    """Return a duration in seconds.

    Args:
        duration: The duration.
        refuse: Returns the error for an invalid duration; it gets the value that was found.
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
    return max(0.0, float(number)) if least is None else float(number)
