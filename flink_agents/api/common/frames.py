"""Reads frames of other threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()


@contextmanager
def no_collection() -> Generator[None]:
    """Let no garbage collection begin in a block that reads frames which another thread executes.

    Python 3.11 makes the object of a frame when the frame is first read. That may start a collection, which
    may let the other thread run. If it leaves the frame then, the object refers to memory of other frames,
    and the process crashes. The block must not let the thread wait.
    """
    with _lock:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()
