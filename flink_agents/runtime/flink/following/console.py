"""What a local job writes to the console: lines on stderr and, where that is a terminal, bars of progress."""

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
    """Return True if somebody watches stderr."""
    # Whatever stands in the place of stderr may have less than files have: in a worker it only writes.
    asks = getattr(sys.stderr, "isatty", None)
    return asks is not None and bool(asks())


class Progress(AbstractContextManager["Progress"]):
    """A bar for each agent: how many of its inputs it has taken.

    It begins with the first numbers, and vanishes at the end; lines that others write stand above it.

    Args:
        totals: How many inputs an agent will get, by its name; an agent whose number nobody knows
            has a counter instead of a bar.
    """

    def __init__(self, totals: Mapping[str, int]) -> None:
        # Typer, on which the command line stands, needs rich.
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
        """Show how many inputs each agent has taken."""
        if read and not self._tasks:
            self._bars.start()
        for name, count in read.items():
            if name not in self._tasks:
                total = self._totals.get(name)
                self._tasks[name] = self._bars.add_task(f"agent {name}", total=total)
            self._bars.update(self._tasks[name], completed=count)
