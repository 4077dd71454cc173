"""Lists, stops and cancels the jobs of a cluster, and counts their dead letters."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from flink_agents.api.errors import (
    ClusterError,
    ModuleNotOnWorkersError,
    SavepointFailedError,
    UnknownJobError,
)
from flink_agents.runtime.flink.following.rest import (
    ENDED,
    FAILED,
    ClusterRest,
    JobFollower,
    jobs_in,
    sleep_until_next_poll,
)
from flink_agents.runtime.flink.job_errors import in_one_line

SAVEPOINT_SECONDS = 600.0
"""Time in which a savepoint has to complete."""

END_SECONDS = 180.0
"""Time to wait for the end of a job that was stopped or cancelled."""


@dataclass(frozen=True)
class ClusterJob:
    """A job of a cluster.

    Attributes:
        id: Flink's id of the job.
        name: Its name.
        state: Its state, in Flink's words.
    """

    id: str
    name: str
    state: str

    @property
    def ended(self) -> bool:
        """True if the job has reached a final state."""
        return self.state in ENDED


def jobs_of(rest_client: ClusterRest) -> list[ClusterJob]:
    """Return the jobs that a cluster knows, the newest first.

    Raises:
        ClusterError: The cluster does not answer, or rejects the request.
    """
    jobs = sorted(jobs_in(rest_client.get), key=lambda job: -job["start-time"])
    return [ClusterJob(job["jid"], job["name"], job["state"]) for job in jobs]


def last_failure(rest_client: ClusterRest, job: ClusterJob) -> str | None:
    """Return the failure that a job last restarted from, or that ended it, in one line, or None.

    A job that has finished, or that a user cancelled, has none, because it needs no action. A job that
    ``run`` cancelled, because no restart could help, has that failure.
    """
    if job.state == "FINISHED":
        return None
    try:
        news = JobFollower(rest_client, job.id, job.name).poll_job()
    except ClusterError:
        return None
    if news.failure is not None:
        return in_one_line(news.failure)
    if not news.restarts:
        return None
    last = news.restarts[-1]
    if not job.ended:
        return str(last)
    return in_one_line(last.failure) if isinstance(last.failure, ModuleNotOnWorkersError) else None


def shown_state(job: ClusterJob, failure: str | None) -> str:
    """Return the displayed state of a job: one that was cancelled because of a failure has failed."""
    return FAILED if job.state == "CANCELED" and failure is not None else job.state


def find_job(rest_client: ClusterRest, job: str | None) -> ClusterJob:
    """Return the job with a name or an id; if none is given, the only running job.

    Raises:
        UnknownJobError: There is no such job, or more than one.
        ClusterError: The cluster does not answer, or rejects the request.
    """
    running = [cluster_job for cluster_job in jobs_of(rest_client) if not cluster_job.ended]
    # Each id starts with the empty text, as of a variable that is not set.
    start = job.lower() if job else None
    matches = [
        cluster_job
        for cluster_job in running
        if job is None or job == cluster_job.name or (start and cluster_job.id.startswith(start))
    ]
    if len(matches) == 1:
        return matches[0]
    if job is None:
        message = (
            "no job is running" if not running else f"{len(running)} jobs are running, and none was named"
        )
    else:
        message = f"{'no' if not matches else 'more than one'} running job matches {job!r}"
    raise UnknownJobError(
        f"{message} on the cluster at {rest_client.address}",
        expected="the id or the name of one of them" if running else "a running job",
        found="; ".join(
            f"{cluster_job.id} {cluster_job.name!r} {cluster_job.state}" for cluster_job in running
        )
        or None,
    )


def stop_with_savepoint(
    rest_client: ClusterRest, job: ClusterJob, directory: str | None = None, drain: bool = False
) -> str:
    """Stop a job with a savepoint, wait for its end, and return the path of the savepoint.

    Args:
        rest_client: The cluster.
        job: The job.
        directory: Directory or URL of the savepoint. Default: the cluster's setting.
        drain: True to fire windows and timers of event time first, for a job that is
            never resumed.

    Raises:
        SavepointFailedError: There is no savepoint; the job was not stopped.
        ClusterError: The cluster does not answer, or rejects the request.
    """
    body: dict[str, Any] = {"drain": drain}
    if directory is not None:
        body["targetDirectory"] = directory
    trigger = rest_client.post(f"/jobs/{job.id}/stop", body)["request-id"]

    def completed() -> dict[str, Any] | None:
        answer = rest_client.get(f"/jobs/{job.id}/savepoints/{trigger}")
        return answer["operation"] if answer["status"]["id"] == "COMPLETED" else None

    operation = _wait_for_result(completed, SAVEPOINT_SECONDS)
    if operation is None or "location" not in operation:
        cause = (operation or {}).get("failure-cause", {}).get("stack-trace", "")
        raise SavepointFailedError(
            f"the job {job.name!r} was not stopped with a savepoint",
            found=innermost_cause(cause) or f"no answer in {SAVEPOINT_SECONDS:g} s",
            fix="pass a directory that JobManager and TaskManagers share as --savepoint-dir. The job keeps "
            "running; 'flink-agents cancel' ends it without its state",
        )
    wait_for_end(rest_client, job)
    return operation["location"]


@dataclass(frozen=True)
class RetainedCheckpoint:
    """A checkpoint that Flink retains when the job is cancelled.

    Attributes:
        place: Its path.
        time: When it was completed, in UTC.
    """

    place: str
    time: str


def retained_checkpoint(rest_client: ClusterRest, job: ClusterJob) -> RetainedCheckpoint | None:
    """Return the last checkpoint of a job, if Flink retains it on cancellation; None if not.

    Raises:
        ClusterError: The cluster does not answer, or rejects the request.
    """
    try:
        external = rest_client.get(f"/jobs/{job.id}/checkpoints/config").get("externalization", {})
        last = (rest_client.get(f"/jobs/{job.id}/checkpoints").get("latest") or {}).get("completed")
    except ClusterError as error:
        if (error.found or "").startswith("404"):
            # A job without checkpoints has neither.
            return None
        raise
    # Flink shows words in angle brackets if there is no path.
    if not last or ":/" not in (last.get("external_path") or ""):
        return None
    if not external.get("enabled") or external.get("delete_on_cancellation"):
        return None
    at = datetime.fromtimestamp(last["latest_ack_timestamp"] / 1000, UTC)
    return RetainedCheckpoint(last["external_path"], at.isoformat(" ", "seconds"))


def last_checkpoint(rest_client: ClusterRest, job_id: str) -> str | None:
    """Return the path of the last checkpoint of a job; None if it has none.

    Raises:
        ClusterError: The cluster does not answer, or rejects the request.
    """
    last = (rest_client.get(f"/jobs/{job_id}/checkpoints").get("latest") or {}).get("completed") or {}
    place = last.get("external_path") or ""
    # For a checkpoint without a path, Flink returns words in angle brackets.
    return place if ":/" in place else None


def cancel(rest_client: ClusterRest, job: ClusterJob) -> None:
    """Cancel a job without a savepoint, and wait for its end.

    Raises:
        ClusterError: The cluster does not answer, or rejects the request.
    """
    rest_client.patch(f"/jobs/{job.id}?mode=cancel")
    wait_for_end(rest_client, job)


def wait_for_end(rest_client: ClusterRest, job: ClusterJob) -> None:
    """Wait until a job has ended in any way, for at most :data:`END_SECONDS`."""
    _wait_for_result(
        lambda: rest_client.get(f"/jobs/{job.id}/status")["status"] in ENDED or None, END_SECONDS
    )


def innermost_cause(java_text: str) -> str:
    """Return the innermost cause in a Java stack trace, in one line."""
    causes = [line for line in java_text.splitlines() if line and not line.startswith(("\t", " "))]
    return causes[-1].removeprefix("Caused by: ") if causes else ""


def _wait_for_result(condition: Callable[[], Any], seconds: float) -> Any:
    """Call ``condition`` repeatedly until its result is not None, and return that; None after ``seconds``."""
    began = time.monotonic()
    while (result := condition()) is None and time.monotonic() < began + seconds:
        sleep_until_next_poll(began)
    return result


MOST_SHOWN = 3
"""The number of reasons to show for an agent."""

_METRIC = re.compile(r"\.flink_agents\.(?P<agent>.+)\.runtime\.dead_letters\.(?P<reason>\w+@.*)$")


def dead_letters(rest_client: ClusterRest, job_id: str) -> dict[str, Counter[str]]:
    """Return the number of dead letters for each reason, ``ERROR@PLACE``, by agent.

    Numbers that Flink does not have are left out.

    Args:
        rest_client: The cluster.
        job_id: The job.
    """
    counts: dict[str, Counter[str]] = {}
    with suppress(ClusterError, KeyError, TypeError):
        for vertex in rest_client.get(f"/jobs/{job_id}")["vertices"]:
            path = f"/jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics"
            wanted = [
                listed_metric["id"]
                for listed_metric in rest_client.get(path)
                if _METRIC.search(listed_metric["id"])
            ]
            if not wanted:
                continue
            # Flink would take a name with a comma for two names, so that number is left out.
            names = ",".join(quote(name, safe="") for name in wanted if "," not in name)
            for total in rest_client.get(f"{path}?get={names}&agg=sum"):
                metric = _METRIC.search(total["id"])
                if metric is not None and total["sum"]:
                    counts.setdefault(metric["agent"], Counter())[metric["reason"]] += int(total["sum"])
    return counts


def letter_lines(letters: Mapping[str, Counter[str]]) -> list[str]:
    """Return a line for each agent that has sent dead letters."""
    return [f"agent {agent}: {reasons_text(reasons)}" for agent, reasons in sorted(letters.items())]


def reasons_text(reasons: Counter[str]) -> str:
    """Return the number of dead letters and the most frequent reasons, in one line.

    Args:
        reasons: The number of dead letters for each ``ERROR@PLACE``.
    """
    shown = [f"{count} by {_describe_reason(reason)}" for reason, count in reasons.most_common(MOST_SHOWN)]
    other_count = reasons.total() - sum(count for _, count in reasons.most_common(MOST_SHOWN))
    shown += [f"{other_count} by others"] if other_count else []
    return f"{reasons.total()} dead letters: {', '.join(shown)}"


def _describe_reason(reason: str) -> str:
    error, _, place = reason.partition("@")
    return f"{error} in {place}" if place else error
