"""The console output of a local job: lines on stderr and, on a terminal, progress bars; the files of logs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from typing_extensions import override


def print_line(line: str) -> None:
    """Write a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def is_terminal() -> bool:
    """Return True if stderr is a terminal."""
    # A replacement of stderr may lack methods of files: in a worker, it can only write.
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and bool(isatty())


class ProgressBars(AbstractContextManager["ProgressBars"]):
    """A progress bar for each agent, with the number of inputs that it has taken.

    It appears with the first numbers, and vanishes at the end; other lines appear above it.

    Args:
        totals: The number of inputs that each agent will get, by its name; if it is unknown, the agent
            has a counter instead of a bar.
    """

    def __init__(self, totals: Mapping[str, int]) -> None:
        # Typer, which the command line uses, needs rich.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TextColumn

        self._totals = totals
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("inputs"))
        self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, Any] = {}

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks:
            self._bars.refresh()
            self._bars.stop()

    def show_progress(self, read: Mapping[str, int]) -> None:
        """Show the number of inputs that each agent has taken."""
        if read and not self._tasks:
            self._bars.start()
        for name, count in read.items():
            if name not in self._tasks:
                total = self._totals.get(name)
                self._tasks[name] = self._bars.add_task(f"agent {name}", total=total)
            self._bars.update(self._tasks[name], completed=count)


DIRECTORY = Path(".flink-agents") / "logs"
"""The directory of the logs of jobs, below the working directory."""

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
    started = time.strftime("%Y%m%d-%H%M%S")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            again = f"-{number}" if number else ""
            path = directory / f"{name}-{started}-{os.getpid()}{again}.log"
            if not path.exists():
                path.touch()
                break
            number += 1
        _remove_oldest(directory)
    except OSError:
        return None
    return path.absolute()


def shown_path(path: Path) -> str:
    """Return the path as you would type it in the console."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _remove_oldest(directory: Path) -> None:
    files = sorted(directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
    if len(files) > KEPT:
        # RocksDB's logs are there, too, under names of their own.
        oldest_mtime = files[-KEPT].stat().st_mtime
        for path in directory.glob("*_LOG*"):
            if path.stat().st_mtime < oldest_mtime:
                path.unlink(missing_ok=True)
    for path in files[:-KEPT]:
        for part in (path, *directory.glob(f"{path.name}.*")):
            part.unlink(missing_ok=True)


_LOG_END_BYTES = 1 << 18
"""The size of the part of a log in which the last error is looked for."""


def last_error(log: Path) -> str | None:
    """Return the message of the last ERROR or FATAL line near the end of a log; None if there is none.

    The log may just have rolled, so the file before it is read as well.
    """
    return _last_error(log) or _last_error(log.with_name(f"{log.name}.1"))


def _last_error(log: Path) -> str | None:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _LOG_END_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    errors = re.findall(r"^.*? (?:ERROR|FATAL) +(.*)$", text, re.MULTILINE)
    return errors[-1] if errors else None
