"""Reads what a job and its files use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.soak.slopes import Limit

COMPARATOR = b"leveldb.BytewiseComparator"
"""What RocksDB's log of its files begins with."""

LIMITS = {
    "threads": Limit(0.1, 0.01),
    "open files": Limit(0.2, 0.02),
    # Caches of some thousand keys fill for hours. A reference for each input would be 1,000.
    "Python objects": Limit(300, 4),
    "Python cycles": Limit(100, 1),
    "Java heap": Limit(32, 0.2),
    "RSS": Limit(256, 2),
    "journal rows": Limit(5, 0.05),
    "journal bytes": Limit(8, 0.1),
    "state bytes": Limit(2, 0.02),
}
"""What may grow by how much. Bytes are in KiB."""

LOG_MB = 1
LOG_FILES = 2
TRACE_MB = 2

CAPS = {"log bytes": 1024 * (LOG_MB * LOG_FILES * 3 + 1) * 2, "trace bytes": 1024 * (TRACE_MB + 2)}
"""The most KiB of what has an option for it, with the file that is being written.

Each of the two starts has a log, and one of RocksDB for each operator with state.
"""


def of_processes(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """Return threads, open files and KiB of memory of processes together."""
    threads = files = resident = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
            threads += process.num_threads()
            files += process.num_fds()
            resident += process.memory_info().rss
    return {"threads": threads, "open files": files, "RSS": resident / 1024}


def newest(file: Path, since: float, names: Mapping[str, str]) -> dict[str, float]:
    """Return what a process last wrote to a file; empty if it has not since then.

    Args:
        file: The file, with an object of JSON in each line.
        since: A time, in seconds since the epoch.
        names: The names in the file of the measures.
    """
    lines = file.read_text().splitlines() if file.exists() else []
    sample: dict[str, Any] = json.loads(lines[-1]) if lines else {"time": 0}
    return {name: sample[key] for name, key in names.items()} if sample["time"] >= since else {}


def of_sqlite(folder: Path) -> dict[str, float]:
    """Return rows and KiB of a journal in SQLite."""
    for file in folder.rglob("*.sqlite"):
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            (rows,) = database.execute("SELECT count(*) FROM records").fetchone()
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            (unused,) = database.execute("PRAGMA freelist_count").fetchone()
            (size,) = database.execute("PRAGMA page_size").fetchone()
            return {"journal rows": rows, "journal bytes": (pages - unused) * size / 1024}
    return {}


def size_of(folder: Path) -> float:
    """Return the KiB of files."""
    return sum(map(_bytes_of, folder.glob("**/*"))) / 1024


def of_checkpoint(folder: Path) -> dict[str, float]:
    """Return the KiB of the newest checkpoint, with the files that checkpoints share.

    RocksDB's log of its own files, which each checkpoint extends up to 1 GB or the next start, is no state.
    """
    with suppress(OSError, ValueError):
        newest = max(folder.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime).parent
        files = [*newest.iterdir(), *(newest.parent / "shared").iterdir()]
        return {"state bytes": sum(_bytes_of(path) for path in files if not _is_log_of_files(path)) / 1024}
    return {}


def _bytes_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0


def _is_log_of_files(path: Path) -> bool:
    with path.open("rb") as file:
        return COMPARATOR in file.read(100)
