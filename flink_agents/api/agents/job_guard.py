"""Rejects a job of a module that is imported for its definitions, and a job whose name names nothing."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from flink_agents.api.common.option_values import NAME_RULE, is_name
from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import JobDefinitionError, MissingMainGuardError

_IN_WORKERS = "_pemja"
"""A module that only the interpreter of a Flink worker has."""

_readers: list[str] = []
"""The components that import modules of the user at present, in words."""


@contextmanager
def without_jobs(who: str) -> Generator[None]:
    """Reject each job that code of the block would start, while it imports modules of the user.

    Args:
        who: The importing component in words, for the error.
    """
    _readers.append(who)
    try:
        yield
    finally:
        _readers.remove(who)


def check_may_run(job_name: str | None = None) -> None:
    """Check that a job may run: its name is valid, and no module is being imported for its definitions.

    Args:
        job_name: The name that was passed to ``execute``; None for a job without a name.

    Raises:
        MissingMainGuardError: A module is being imported for its definitions.
        JobDefinitionError: The name cannot name a job.
    """
    if job_name is not None and not is_name(job_name):
        # It would also name a folder: the empty one is that of all jobs.
        raise JobDefinitionError(
            "this text cannot name a job",
            expected=f"a string, {NAME_RULE}, such as 'orders'; or no name",
            found=repr(job_name),
            fix="name the job: env.execute('orders')",
            where=authors_place(),
        )
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
