"""Keeps the folders of tests in memory if there is room: SQLite and Kafka wait for a disk at each record.

``PYTEST_DEBUG_TEMPROOT`` says another place.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = "PYTEST_DEBUG_TEMPROOT"
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 6 * 1024**3
"""What the folders of three runs need; pytest keeps so many."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
        os.environ.setdefault(ROOT, str(MEMORY))
