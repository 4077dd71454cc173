"""Error handling of commands, and what it needs to know of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import typer

from flink_agents.api.agents.job_guard import without_jobs
from flink_agents.api.errors import AgentsError

P = ParamSpec("P")
R = TypeVar("R")

ERROR_EXIT = 2
"""Exit code of all errors of this package; 1 is a failed check or demo, or nothing found."""


def prints_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command print an error of this package without a traceback, and exit with 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except AgentsError as error:
            typer.echo(f"{type(error).__name__}: {error}", err=True)
            raise typer.Exit(ERROR_EXIT) from None

    return run


@contextmanager
def reported(failures: set[str]) -> Iterator[None]:
    """Print an error of this package, each one once, and continue. ``failures`` collects them."""
    try:
        yield
    except AgentsError as error:
        text = f"{type(error).__name__}: {error}"
        if text not in failures:
            failures.add(text)
            typer.echo(text, err=True)


def runs_no_jobs(command: Callable[P, R]) -> Callable[P, R]:
    """Make a command reject jobs in modules that it imports for their definitions."""
    name = command.__name__.replace("_", " ")

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with without_jobs(f"flink-agents {name}"):
            return command(*args, **kwargs)

    return run


def from_command_line(context: typer.Context) -> list[str]:
    """Return the names of the parameters that the command line has."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
