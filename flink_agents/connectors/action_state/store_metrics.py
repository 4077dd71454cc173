"""Metrics of a store, which the runtime shows in the store's metric group."""

from __future__ import annotations

import threading
from collections import deque

WINDOW = 512
"""The number of turns over which the median is taken."""


class StoreMetrics:
    """Counters and times. Thread-safe.

    Attributes:
        appends: Appends and removals that were written or rejected.
        data_bytes: The size of their encoded data.
        errors: Failures of the system that stores the records.
        rebuild_records: Records that were read.
        rebuild_seconds: How long reading took.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self.appends = 0
        self.data_bytes = 0
        self.errors = 0
        self.rebuild_records = 0
        self.rebuild_seconds = 0.0

    def appended(self, count: int, data_bytes: int, seconds: float) -> None:
        """Note a turn of a writer with a number of appends."""
        with self._lock:
            self.appends += count
            self.data_bytes += data_bytes
            self._turns.append((count, seconds))

    def failed(self) -> None:
        """Note a failure."""
        with self._lock:
            self.errors += 1

    def values(self) -> dict[str, int]:
        """Return all measurements by name, with times in microseconds."""
        with self._lock:
            counts = sorted(count for count, _ in self._turns)
            times = sorted(seconds for _, seconds in self._turns)
        return {
            "appends": self.appends,
            "append_bytes": self.data_bytes,
            "append_errors": self.errors,
            "append_batch": counts[len(counts) // 2] if counts else 0,
            "append_micros": int(times[len(times) // 2] * 1e6) if times else 0,
            "rebuild_records": self.rebuild_records,
            "rebuild_millis": int(self.rebuild_seconds * 1e3),
        }
