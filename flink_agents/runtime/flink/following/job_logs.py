"""A file for the log of each local job, in ``.flink-agents/logs`` of the working directory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

DIRECTORY = Path(".flink-agents") / "logs"

KEPT = 50
"""How many files stay; the oldest are removed."""


def new_log(job_name: str, directory: Path = DIRECTORY) -> Path | None:
    """Make a file for the log of a job, and remove the oldest of many.

    Args:
        job_name: The job, whose name the file's begins with.
        directory: Where the files are.

    Returns:
        The file; None if it cannot be made there.
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
    """Return the path as a reader of the console would write it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _remove_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in files[:-KEPT]:
        path.unlink(missing_ok=True)
