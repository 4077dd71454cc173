"""Finds the lines in a log that say something as JSON: trace records, the watchdog's, answers to requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def marked(log: bytes, mark: str) -> Iterator[dict[str, Any]]:
    """Yield what the lines of a log say behind ``mark``. A line that was cut, or is no JSON, is left out."""
    wanted = mark.encode()
    start = log.find(wanted)
    while start >= 0:
        end = log.find(b"\n", start)
        end = len(log) if end < 0 else end
        try:
            value = json.loads(log[start + len(wanted) : end])
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        start = log.find(wanted, end)
