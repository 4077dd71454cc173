"""Error handling of commands, and what it needs to know of their parameters."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    """Wrap a command: it prints an error of this package without a traceback, and exits with 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except AgentsError as error:
            typer.echo(f"{type(error).__name__}: {error}", err=True)
            raise typer.Exit(ERROR_EXIT) from None

    return run


BROKEN_PIPE_EXIT = 141
"""Exit code of a command whose reader has left: 128 + SIGPIPE, as of other programs."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def reports_lost_output() -> Iterator[None]:
    """Exit without a traceback if the block cannot write its output: the reader left, or the disk is full."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE:
            _discard_output()
            raise SystemExit(BROKEN_PIPE_EXIT) from None
        if error.errno not in _FULL or error.filename is not None:
            raise
        with suppress(OSError):
            typer.echo(f"flink-agents: cannot write the output: {error.strerror}", err=True)
        _discard_output()
        raise SystemExit(ERROR_EXIT) from None


def _discard_output() -> None:
    """Redirect unwritable streams to the null device: at its end, the interpreter flushes them again."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def report_errors(failures: set[str]) -> Iterator[None]:
    """Print an error of this package that the block raises to stderr, and continue after the block.

    Args:
        failures: The texts of printed errors, each of which is printed once; this adds to them.
    """
    try:
        yield
    except AgentsError as error:
        text = f"{type(error).__name__}: {error}"
        if text not in failures:
            failures.add(text)
            typer.echo(text, err=True)


def runs_no_jobs(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: modules that it imports for their agents cannot start jobs meanwhile."""
    name = command.__name__.replace("_", " ")

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with without_jobs(f"flink-agents {name}"):
            return command(*args, **kwargs)

    return run


def from_command_line(context: typer.Context) -> list[str]:
    """Return the names of the parameters that were given on the command line, not by defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
