"""Prevents a module that is imported for its definitions from running its job."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import MissingMainGuardError

_IN_WORKERS = "_pemja"
"""A module that only the interpreter of a Flink worker has."""

_readers: list[str] = []


@contextmanager
def without_jobs(who: str) -> Generator[None]:
    """Reject jobs while the user's modules are imported.

    Args:
        who: The importing component, for the error.
    """
    _readers.append(who)
    try:
        yield
    finally:
        _readers.remove(who)


def check_may_run() -> None:
    """Check that a job may run here and now.

    Raises:
        MissingMainGuardError: A module is being imported for its definitions.
    """
    who = "a worker of the job" if _IN_WORKERS in sys.modules else next(iter(_readers), None)
    if who is None:
        return
    raise MissingMainGuardError(
        f"a job would start because {who} imports the module that runs it",
        expected='a module that runs its job only as a script: under if __name__ == "__main__":',
        found="execute() while the module is imported",
        fix='write if __name__ == "__main__": above the lines that define and execute the job',
        where=authors_place(),
    )
