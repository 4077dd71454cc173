"""Local jobs that commands find near the current directory, or near a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flink_agents.trace.records import UNFINISHED

if TYPE_CHECKING:
    from flink_agents.runtime.flink.resume.local_jobs import LocalJobState
    from flink_agents.trace.reading import RunTrace


def local_jobs(traces: Path | None = None) -> dict[str, LocalJobState]:
    """Return the local jobs near here by identity, which the records of their runs have.

    Args:
        traces: Directory or file of a trace; the jobs that write it come first. None for none.
    """
    from flink_agents.runtime.flink.resume.local_jobs import jobs_of

    return {job.run.identifier: job for job in jobs_of([state_directory()], traces)}


def state_directory() -> Path:
    """Return the directory with the folders of local jobs: that of the options, else the default here."""
    from flink_agents.api.settings.options import AgentOptions, Configuration
    from flink_agents.runtime.flink.resume.job_run import STATE_DIR

    return Path(Configuration.load().get(AgentOptions.STATE_DIR) or STATE_DIR).expanduser()


def stopped_jobs(runs: Iterable[RunTrace], jobs: Mapping[str, LocalJobState]) -> list[LocalJobState]:
    """Return the local jobs of unfinished runs that do not run now, each once."""
    identities = {run.last.job: None for run in runs if run.status in UNFINISHED}
    return [jobs[identity] for identity in identities if identity in jobs and not jobs[identity].runs]
