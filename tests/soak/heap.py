"""Measures the Java heap of a local job, in the process of its script."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from pyflink.java_gateway import get_gateway

SAMPLE_SECONDS = 10.0


def sample_heap(directory: str) -> None:
    """Start a thread that writes the used bytes of the heap from time to time, after a collection."""
    threading.Thread(target=_sample, args=(Path(directory) / "heap",), daemon=True).start()


def _sample(file: Path) -> None:
    gateway: Any = get_gateway()
    memory = gateway.jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    while True:
        time.sleep(SAMPLE_SECONDS)
        memory.gc()
        sample = {"time": time.time(), "heap": memory.getHeapMemoryUsage().getUsed() / 1024}
        with file.open("a") as lines:
            lines.write(json.dumps(sample) + "\n")
