"""Waits with a deadline, and a report if it passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05


def wait_until(
    what: str, condition: Callable[[], T | None], seconds: float, report: Callable[[], str] = lambda: ""
) -> T:
    """Wait until ``condition`` returns something that is true, and return that.

    Args:
        what: What is waited for, as a noun.
        condition: Is called again and again. Raises where waiting has become useless.
        seconds: How long.
        report: Describes the situation if the time passes.

    Raises:
        AssertionError: It did not happen in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}\n{report()}")
        time.sleep(POLL_SECONDS)


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a file, under its name."""
    if not path.exists():
        return f"--- {path}: not there"
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"--- {path}, last {lines} of {len(text)} lines", *text[-lines:]])
