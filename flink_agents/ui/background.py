"""Slow values: a thread reads them, while pages show the last ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

STALE_SECONDS = 10.0
"""Age from which pages say how old a value is."""

PATIENCE_SECONDS = 0.15
"""Time that a page waits for a value that was never read."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The last known state of a value that a thread reads.

    Attributes:
        value: The value, as last read; None if it was never read.
        problem: Error of the last read; empty if it succeeded.
        age: Seconds since the value was read.
    """

    value: T | None
    problem: str
    age: float

    @property
    def is_stale(self) -> bool:
        """True if the value is so old that pages say how old it is."""
        return self.value is not None and self.age >= STALE_SECONDS

    @property
    def is_loading(self) -> bool:
        """True if the first read has not ended."""
        return self.value is None and not self.problem


class Background(Generic[T]):
    """A value that a thread reads when a page needs it and the last one is too old.

    Args:
        make: Returns the value; may block and raise.
        seconds: Age in seconds from which a value is read again.
    """

    def __init__(self, make: Callable[[], T], seconds: float = 2.0) -> None:
        self._make = make
        self._seconds = seconds
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._value: T | None = None
        self._problem = ""
        self._read_at = 0.0
        self._tried = 0.0

    def read(self, patience: float = PATIENCE_SECONDS) -> Reading[T]:
        """Return the last known state; start a read if it is too old.

        Args:
            patience: Maximum number of seconds to wait for that read.
        """
        with self._changed:
            is_old = time.monotonic() - self._tried >= self._seconds or not self._tried
            if is_old and self._thread is None:
                self._thread = threading.Thread(
                    target=self._read_value, name="flink-agents-ui-read", daemon=True
                )
                self._thread.start()
            if self._value is None and not self._problem:
                self._changed.wait_for(lambda: self._value is not None or bool(self._problem), patience)
            elif is_old and self._read_at:
                # A page that shows a value as it was misleads, so most reads end before it is shown.
                self._changed.wait_for(lambda: self._thread is None, patience)
            return Reading(
                self._value, self._problem, time.monotonic() - self._read_at if self._read_at else 0.0
            )

    def read_now(self, patience: float = 10.0) -> Reading[T]:
        """Read the value again, and return it.

        Args:
            patience: Seconds after which to return what was known before.
        """
        with self._changed:
            start_seconds = time.monotonic()
            # One that is being read may be from before.
            self._changed.wait_for(lambda: self._thread is None, patience)
            self._tried = 0.0
        self.read(0)
        with self._changed:
            self._changed.wait_for(lambda: self._tried >= start_seconds, patience)
        return self.read(0)

    def _read_value(self) -> None:
        value = None
        problem = ""
        try:
            value = self._make()
        except Exception as error:  # whatever a service that is away leads to
            problem = str(error) or type(error).__name__
        with self._changed:
            self._tried = time.monotonic()
            self._problem = problem
            if not problem:
                self._value = value
                self._read_at = self._tried
            self._thread = None
            self._changed.notify_all()
