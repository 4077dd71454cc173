"""Creates a log file for each local job, in ``.flink-agents/logs`` of the working directory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

DIRECTORY = Path(".flink-agents") / "logs"

KEPT = 50
"""The number of files to keep; the oldest are removed."""


def new_log(job_name: str, directory: Path = DIRECTORY) -> Path | None:
    """Create a file for the log of a job, and remove the oldest files if there are many.

    Args:
        job_name: The job; the file's name starts with it.
        directory: Where the files are.

    Returns:
        The file; None if it cannot be created there.
    """
    name = re.sub(r"[^\w.]+", "-", job_name).strip("-.")[:60] or "job"
    begun = time.strftime("%Y%m%d-%H%M%S")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            again = f"-{number}" if number else ""
            path = directory / f"{name}-{begun}-{os.getpid()}{again}.log"
            if not path.exists():
                path.touch()
                break
            number += 1
        _remove_oldest(directory)
    except OSError:
        return None
    return path.absolute()


def shown(path: Path) -> str:
    """Return the path as you would type it in the console."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _remove_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in files[:-KEPT]:
        path.unlink(missing_ok=True)
