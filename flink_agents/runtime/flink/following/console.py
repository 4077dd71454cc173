"""The console output of a local job: lines on stderr and, on a terminal, progress bars."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from typing_extensions import override


def say(line: str) -> None:
    """Write a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def is_terminal() -> bool:
    """Return True if stderr is a terminal."""
    # A replacement of stderr may lack methods of files: in a worker, it can only write.
    asks = getattr(sys.stderr, "isatty", None)
    return asks is not None and bool(asks())


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

    def show(self, read: Mapping[str, int]) -> None:
        """Show the number of inputs that each agent has taken."""
        if read and not self._tasks:
            self._bars.start()
        for name, count in read.items():
            if name not in self._tasks:
                total = self._totals.get(name)
                self._tasks[name] = self._bars.add_task(f"agent {name}", total=total)
            self._bars.update(self._tasks[name], completed=count)
