"""Values that take long to get: asked for in a thread, while pages show the last ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 0.15
"""How long a page waits for a value that it never had."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """What is known of a value.

    Attributes:
        value: The value as it was last; None if there was none yet.
        problem: Why it could not be read the last time; empty if it could.
        age: How old the value is, in seconds.
    """

    value: T | None
    problem: str
    age: float

    @property
    def loading(self) -> bool:
        """True if nothing is known yet."""
        return self.value is None and not self.problem


class Background(Generic[T]):
    """Gets a value in a thread of its own whenever it is wanted and old.

    Args:
        make: Gets the value. It may block and raise.
        seconds: How old a value may become.
    """

    def __init__(self, make: Callable[[], T], seconds: float = 2.0) -> None:
        self._make = make
        self._seconds = seconds
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._value: T | None = None
        self._problem = ""
        self._made = 0.0
        self._tried = 0.0

    def read(self, patience: float = PATIENCE_SECONDS) -> Reading[T]:
        """Return what is known now, and let it be renewed if it is old."""
        with self._changed:
            old = time.monotonic() - self._tried >= self._seconds or not self._tried
            if old and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flink-agents-ui-read", daemon=True)
                self._thread.start()
            if self._value is None and not self._problem:
                self._changed.wait_for(lambda: self._value is not None or bool(self._problem), patience)
            return Reading(self._value, self._problem, time.monotonic() - self._made if self._made else 0.0)

    def renew(self, patience: float = 10.0) -> Reading[T]:
        """Return a value that is read from now on; what was known if that takes too long."""
        with self._changed:
            asked = time.monotonic()
            # One that is being read may be from before.
            self._changed.wait_for(lambda: self._thread is None, patience)
            self._tried = 0.0
        self.read(0)
        with self._changed:
            self._changed.wait_for(lambda: self._tried >= asked, patience)
        return self.read(0)

    def _run(self) -> None:
        value, problem = None, ""
        try:
            value = self._make()
        except Exception as error:  # whatever a service that is away leads to
            problem = str(error) or type(error).__name__
        with self._changed:
            self._tried = time.monotonic()
            self._problem = problem
            if not problem:
                self._value, self._made = value, self._tried
            self._thread = None
            self._changed.notify_all()
