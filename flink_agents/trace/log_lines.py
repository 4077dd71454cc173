"""Finds lines with JSON in a log: trace records, lines of the watchdog, and answers to requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def read_marked(log: bytes, mark: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that follow ``mark`` in the lines of a log.

    Other and incomplete lines are skipped.
    """
    mark_bytes = mark.encode()
    start = log.find(mark_bytes)
    while start >= 0:
        end = log.find(b"\n", start)
        end = len(log) if end < 0 else end
        try:
            value = json.loads(log[start + len(mark_bytes) : end])
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        start = log.find(mark_bytes, end)
