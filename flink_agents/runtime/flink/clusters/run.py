"""Runs the script of a job on a cluster and reports what happens to the job until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.errors import (
    ClusterError,
    ClusterUnavailableError,
    JobFailedError,
    ModuleNotOnWorkersError,
    SubmissionError,
    UnknownJobError,
)
from flink_agents.runtime.flink.clusters.jobs import dead_letters, last_checkpoint, letter_lines
from flink_agents.runtime.flink.clusters.submission import JobRequest, Submission
from flink_agents.runtime.flink.following.console import new_log, shown_path
from flink_agents.runtime.flink.following.follower import JobFollower, JobUpdate
from flink_agents.runtime.flink.following.rest import ClusterRest

LOOK_SECONDS = 0.5
OUTPUT_SECONDS = 2.0

LETTERS_SECONDS = 5.0
"""Interval in which dead letters are counted: Flink asks the TaskManagers for the number."""

REFRESH_SECONDS = 3.2
"""Maximum age of answers if Flink does not report it: its default, and a little more."""

MARGIN_SECONDS = 0.2

UNREACHABLE_SECONDS = 60.0
"""Time that a followed job's cluster may be unreachable: replacing a JobManager takes some time."""

WAITING_SECONDS = 10.0
"""After this time, a job without slots is reported as waiting for them."""

MAX_OUTPUT_BYTES = 1 << 24
"""Longer output files are not followed."""

Say = Callable[[str], None]


def run_on_cluster(
    rest_client: ClusterRest, request: JobRequest, say: Say, show: Say, outputs: bool = True
) -> str | None:
    """Submit a job, and report its progress until it has ended.

    Args:
        rest_client: The cluster.
        request: The job to submit.
        say: Gets the reports.
        show: Gets the output of the script and, with ``outputs``, of the TaskManagers.
        outputs: True to show what TaskManagers print meanwhile.

    Returns:
        The last state of the last job, in Flink's words; None if the job is not followed, since it was
        submitted detached.

    Raises:
        ClusterUnavailableError: The cluster does not answer.
        SubmissionError: The script ended before it submitted a job, or failed after its last one.
        JobFailedError: The job failed.
    """
    rest_client.get("/overview")
    log = new_log(f"run {request.script.stem}")
    printed = _TaskOutput(rest_client, show) if outputs and not request.detached else None
    submission = Submission(request, rest_client.host_and_port, log, show)
    state: str | None = None
    try:
        while (job_id := submission.jobs.get()) is not None:
            say(f"job {job_id}: submitted to {rest_client.address}")
            if not request.detached:
                state = _Following(rest_client, job_id, say, printed).to_the_end()
    except BaseException:
        submission.end_client()
        raise
    status = submission.wait_for_end()
    if status != 0 and state not in ("CANCELED", "SUSPENDED"):
        where = "" if log is None else f"; its whole output is in {shown_path(log)}"
        raise SubmissionError(
            f"{request.script.name} ended with {status}",
            found="\n".join(submission.traceback) or submission.cause,
            fix=f"correct the script{where}",
        )
    return state


@dataclass
class _Following:
    """One job, from its submission to its end."""

    rest_client: ClusterRest
    job_id: str
    say: Say
    printed: _TaskOutput | None
    following_since: float = field(default_factory=time.monotonic)
    warned_of_slots: bool = False
    logged_letters: list[str] = field(default_factory=list[str])
    letters_due: float = 0.0
    checkpoint: str | None = None

    def to_the_end(self) -> str:
        """Follow the job, and return its last state."""
        name = self._job_name()
        follower = JobFollower(self.rest_client, self.job_id, name, answers_age=self._answers_age())
        answered = time.monotonic()
        while True:
            try:
                news = follower.poll_job()
                answered = time.monotonic()
                self._report_news(name, news)
                self._report_slots(news)
                self._report_letters(name, news)
            except ClusterUnavailableError:
                if time.monotonic() - answered > UNREACHABLE_SECONDS:
                    raise
            except ClusterError as error:
                raise self._lost_job_error(name, error) from None
            else:
                if self.printed is not None:
                    self.printed.show_new(at_once=news.ended)
                if news.ended:
                    return self._report_end(name, news)
            time.sleep(LOOK_SECONDS)

    def _report_news(self, name: str, news: JobUpdate) -> None:
        for restart in news.restarts:
            if isinstance(restart.failure, ModuleNotOnWorkersError) and restart.number == 1:
                # No restart brings the module, and a cluster may restart forever.
                with suppress(ClusterError):  # It may have ended meanwhile.
                    self.rest_client.patch(f"/jobs/{self.job_id}?mode=cancel")
                raise restart.failure
            self.say(str(restart))
        if news.changed:
            self.say(f"job {name!r}: {news.state}")

    def _report_end(self, name: str, news: JobUpdate) -> str:
        if news.state == "FAILED":
            raise news.failure or JobFailedError(f"job {name!r} failed, and Flink reports no reason")
        return news.state

    def _lost_job_error(self, name: str, error: ClusterError) -> ClusterError:
        """Return the error about a job that the cluster no longer knows; return any other error unchanged."""
        if not (error.found or "").startswith("404"):
            return error
        again = "run it again"
        if self.checkpoint is not None:
            again = f"run it again from its last checkpoint: --savepoint {self.checkpoint}"
        return UnknownJobError(
            f"the cluster at {self.rest_client.address} no longer knows job {name!r}",
            expected=f"job {self.job_id}, which ran there",
            found="a JobManager that was started again, and knows no earlier jobs",
            fix=again,
        )

    def _answers_age(self) -> float:
        with suppress(ClusterError, KeyError, TypeError):
            return self.rest_client.get("/config")["refresh-interval"] / 1000 + MARGIN_SECONDS
        return REFRESH_SECONDS

    def _job_name(self) -> str:
        with suppress(ClusterError, KeyError, TypeError):
            return str(self.rest_client.get(f"/jobs/{self.job_id}/config")["name"])
        return self.job_id

    def _report_slots(self, news: JobUpdate) -> None:
        """Report once that the job waits for slots, if there are none for it."""
        if self.warned_of_slots or news.ended or time.monotonic() - self.following_since < WAITING_SECONDS:
            return
        self.warned_of_slots = True
        with suppress(KeyError, TypeError):
            jobs = {job["jid"]: job for job in self.rest_client.get("/jobs/overview")["jobs"]}
            tasks: dict[str, Any] = jobs[self.job_id]["tasks"]
            free = self.rest_client.get("/overview")["slots-available"]
            if tasks["scheduled"] and not tasks["running"] and not tasks["initializing"] and not free:
                self.say("the job waits for slots, and none is free: start a TaskManager, or stop a job")

    def _report_letters(self, name: str, news: JobUpdate) -> None:
        """Report the number of dead letters if it is new, some seconds after the last time."""
        if news.ended or time.monotonic() < self.letters_due:
            return
        self.letters_due = time.monotonic() + LETTERS_SECONDS
        with suppress(ClusterError, KeyError, TypeError, AttributeError):
            self.checkpoint = last_checkpoint(self.rest_client, self.job_id) or self.checkpoint
        lines = letter_lines(dead_letters(self.rest_client, self.job_id))
        for line in lines:
            if line not in self.logged_letters:
                self.say(f"job {name!r}: {line}")
        self.logged_letters = lines


class _TaskOutput:
    """The standard output of TaskManagers, from now on.

    Args:
        rest_client: The cluster.
        show: Gets the lines.
    """

    def __init__(self, rest_client: ClusterRest, show: Say) -> None:
        self._rest_client = rest_client
        self._show = show
        self._shown: dict[str, int] = {}
        self._due = 0.0
        self._show_output(show=False)

    def show_new(self, at_once: bool) -> None:
        """Show new lines, if the last time was some seconds ago, or ``at_once``."""
        if at_once or time.monotonic() >= self._due:
            self._due = time.monotonic() + OUTPUT_SECONDS
            self._show_output(show=True)

    def _show_output(self, show: bool) -> None:
        with suppress(ClusterError, KeyError, TypeError):
            for manager in [
                taskmanager["id"] for taskmanager in self._rest_client.get("/taskmanagers")["taskmanagers"]
            ]:
                with suppress(ClusterError):
                    text = self._rest_client.text(f"/taskmanagers/{manager}/stdout")
                    if len(text) <= MAX_OUTPUT_BYTES:
                        self._show_after(manager, text, show)

    def _show_after(self, manager: str, text: bytes, show: bool) -> None:
        whole = text.rfind(b"\n") + 1
        if show:
            for line in text[self._shown.get(manager, 0) : whole].splitlines():
                self._show(line.decode("utf-8", "replace"))
        self._shown[manager] = whole
