"""Finds lines with JSON in a log: trace records, lines of the watchdog, and answers to requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def read_marked(log: bytes, mark: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON that follows ``mark`` in the lines of a log. Invalid and truncated lines are skipped."""
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
