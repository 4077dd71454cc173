"""Counts objects in the worker. A module of its own, which workers import."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

SAMPLE_SECONDS = 10.0
MOST_TYPES = 60


class Sampler:
    """Counts the objects of this interpreter from time to time. One per process."""

    _lock = threading.Lock()
    _begun = False

    @classmethod
    def begin(cls, directory: str) -> None:
        """Start the thread, unless it runs."""
        with cls._lock:
            if cls._begun:
                return
            cls._begun = True
        gc.callbacks.append(_note_collection)
        threading.Thread(target=cls._sample, args=(Path(directory) / "objects",), daemon=True).start()

    @staticmethod
    def _sample(file: Path) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            gc.collect()
            sample = {
                "time": time.time(),
                "pid": os.getpid(),
                # Blocks of memory, since strings and numbers are objects that the collector does not know.
                "objects": sys.getallocatedblocks(),
                "cycles": _collected[0],
                # For people: what grows, if something does.
                "types": _types(),
            }
            with file.open("a") as lines:
                lines.write(json.dumps(sample) + "\n")


_collected = [0]
"""The number of objects that only the collector has freed."""


def _note_collection(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop":
        _collected[0] += info["collected"]


def _types() -> dict[str, int]:
    types = Counter(type(object_) for object_ in gc.get_objects())
    return {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in types.most_common(MOST_TYPES)}
