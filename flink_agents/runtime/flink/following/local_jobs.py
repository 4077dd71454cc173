"""A job in the minicluster of this process: its console output, and its end.

One thread waits for the job's end, another one polls the job once a second. So the console reports each job,
however it was submitted. A job that can never end, since its TaskManager is gone, is ended.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.datastream import StreamExecutionEnvironment

from flink_agents import redaction
from flink_agents.api.errors import ClusterError, JobFailedError, TaskManagerLostError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following import console
from flink_agents.runtime.flink.following.console import last_error, shown_path
from flink_agents.runtime.flink.following.rest import POLL_SECONDS, RUNNING, ClusterRest, JobFollower
from flink_agents.runtime.flink.job_errors import job_failed
from flink_agents.runtime.flink.launch import gateway

TROUBLE_POLL_SECONDS = 0.25
"""The interval of polls while the job does not run, or has no TaskManager; otherwise ``POLL_SECONDS``."""

PROGRESS_SECONDS = 1.0
"""The interval at which progress bars change."""

END_SECONDS = 5.0
"""Time that a caller which met a consequence of a failure waits for the failure itself."""

REPORT_SECONDS = 1.0
"""Time that the end of a job waits for its last reports."""

LOST_SECONDS = 1.0
"""A job that had a TaskManager, and then has none for this time, has lost it."""

REFRESH = {"web.refresh-interval": "200 ms"}
"""Flink's options for a local job: by default, answers are up to three seconds old."""

_CANCELLED = ("JobCancellationException", "JobStopException")


@dataclass(frozen=True)
class JobFacts:
    """Facts about a job that are known before it runs.

    Attributes:
        name: Its name.
        log: The file of its log; None if it has none.
        untimed: Names of agents whose outputs may have no timestamp.
        totals: The number of inputs that each agent will get, by its name, as far as it is known.
        bounded: True if all its inputs end.
        typed: The lines where you declare the types of a stream's values.
        java_trace: True to print Flink's whole message for a failure.
    """

    name: str
    log: Path | None = None
    untimed: Sequence[str] = ()
    totals: Mapping[str, int] = field(default_factory=dict[str, int])
    bounded: bool = False
    typed: Sequence[str] = ()
    java_trace: bool = False
    _printed: list[bool] = field(default_factory=list[bool])

    def job_error(self, java_text: str) -> JobFailedError:
        """Return the job's error for a failure that Flink describes in ``java_text``."""
        self.print_trace(java_text)
        return job_failed(self.name, java_text, self.untimed, self.typed)

    def lost_task_manager_error(self, what: str) -> TaskManagerLostError:
        """Return the error of the job, of which a part is gone.

        Args:
            what: The part, such as "the JVM".
        """
        return TaskManagerLostError(
            f"{what} of the local job {self.name!r} is gone",
            found=None if self.log is None else last_error(self.log),
            fix="run the script again; the log has the reason"
            + ("" if self.log is None else f": {shown_path(self.log)}"),
        )

    def print_trace(self, java_text: str) -> None:
        """Print Flink's whole message for a failure once, if ``java_trace`` is set."""
        # Several threads and callers can meet the same failure, each with a different first line.
        if self.java_trace and java_text and not self._printed:
            self._printed.append(True)
            console.print_line(f"Flink's message for job {self.name!r}:\n{redaction.hide(java_text)}")


class LocalJob:
    """A job that was submitted to a minicluster.

    Args:
        client: Java's client of the job.
        facts: The facts about it.
        may_restart: Called after a failure; returns False if the job must end instead of restarting. None if
            it may always restart.

    Attributes:
        id: Flink's id of the job.
    """

    def __init__(self, client: Any, facts: JobFacts, may_restart: Callable[[], bool] | None = None) -> None:
        self._client = client
        self._facts = facts
        self._may_restart = may_restart
        self._ended = threading.Event()
        self._last_reported = threading.Event()
        self._reported = False
        self._result: Any = None
        self._error: Exception | None = None
        self.id = str(client.getJobID().toString())

    def start(self) -> None:
        """Start the threads that wait for the end of the job and report on it; return at once."""
        if self._facts.log is not None:
            console.print_line(f"job {self._facts.name!r}: log in {shown_path(self._facts.log)}")
        for target in (self._wait_for_end, self._follow_job):
            threading.Thread(target=target, name=f"local-job-{target.__name__}", daemon=True).start()

    def wait_for_result(self) -> Any:
        """Wait for the end of the job, and return Java's result.

        Raises:
            JobFailedError: The job failed.
        TaskManagerLostError: Its JVM or TaskManager is gone.
        """
        self._reported = True
        self._ended.wait()
        self._last_reported.wait(REPORT_SECONDS)
        if self._error is not None:
            raise self.explain_error(self._error) from None
        return self._result

    def explain_error(self, error: Exception) -> Exception:
        """Return this package's error for a Java error that the job's failure caused.

        Waits for some seconds, since the job's own error says more than its consequences.
        """
        self._ended.wait(END_SECONDS)
        error = self._error or error
        if isinstance(error, Py4JJavaError):
            return self._facts.job_error(flink_compat.java_text(error))
        if isinstance(error, Py4JError):
            gateway.leave_alone()
            return self._facts.lost_task_manager_error("the JVM")
        if isinstance(error, JobFailedError):
            self._facts.print_trace(error.java_trace)
        return error

    def reports_itself(self) -> None:
        """Do not print the job's error: the caller raises it."""
        self._reported = True

    # -- threads ----------------------------------------------------------------------

    def _wait_for_end(self) -> None:
        try:
            result = self._client.getJobExecutionResult().get()
        except Exception as error:
            self._note_end(None, error)
        else:
            self._note_end(result, None)

    def _note_end(self, result: Any, error: Exception | None) -> None:
        """Record the first end of the job, and print its error unless a caller raises it."""
        if self._ended.is_set():
            return
        self._result = result
        self._error = error
        self._ended.set()
        if isinstance(error, Py4JError | JobFailedError) and not self._reported:
            explained = self.explain_error(error)
            if not any(mark in str(error) for mark in _CANCELLED):
                console.print_line(f"\n{type(explained).__name__}: {explained}\n")

    def _follow_job(self) -> None:
        # An error in this thread must not stop the job.
        with contextlib.ExitStack() as stack:
            stack.callback(self._last_reported.set)
            stack.enter_context(contextlib.suppress(Exception))
            rest_client = ClusterRest(flink_compat.rest_address(self._client))
            facts = self._facts
            follower = JobFollower(rest_client, self.id, facts.name, list(facts.untimed))
            progress: console.ProgressBars | None = None
            if console.is_terminal() and facts.bounded:
                progress = stack.enter_context(console.ProgressBars(facts.totals))
            self._poll_until_end(rest_client, follower, progress)

    def _poll_until_end(
        self, rest_client: ClusterRest, follower: JobFollower, progress: console.ProgressBars | None
    ) -> None:
        """Print restarts and progress until the job ends; end it if it cannot continue."""
        had_task_manager = False
        missing_since: float | None = None
        progress_due = time.monotonic() + PROGRESS_SECONDS
        has_ended = False
        interval = TROUBLE_POLL_SECONDS
        while not has_ended:
            # A last poll finds restarts of the last moment, if Flink still answers.
            has_ended = self._ended.wait(interval)
            try:
                news = follower.poll_job()
                if news.restarts and self._may_restart is not None and not self._may_restart():
                    return self._end_failed(news.restarts[0].failure)
                for restart in news.restarts:
                    console.print_line(str(restart))
                if has_ended:
                    return
                has_task_manager = news.ended or bool(rest_client.get("/taskmanagers")["taskmanagers"])
                had_task_manager = had_task_manager or has_task_manager
                now = time.monotonic()
                missing_since = None if has_task_manager else missing_since or now
                is_calm = news.state == RUNNING and not news.restarts and has_task_manager
                interval = POLL_SECONDS if is_calm else TROUBLE_POLL_SECONDS
                if had_task_manager and missing_since is not None and now - missing_since >= LOST_SECONDS:
                    return self._end_lost()
                if progress is not None and now >= progress_due:
                    progress.show_progress(follower.inputs_read())
                    progress_due = now + PROGRESS_SECONDS
            except ClusterError:
                # The minicluster stops with the job, perhaps just now. Time without answers does not count.
                missing_since = None

    def _end_failed(self, failure: JobFailedError) -> None:
        """End the job because of a failure that must not restart it."""
        self._note_end(None, failure)
        self._client.cancel()

    def _end_lost(self) -> None:
        """End the job because its TaskManager is gone."""
        self._note_end(None, self._facts.lost_task_manager_error("the TaskManager"))
        flink_compat.close_minicluster(self._client)


_RESTART_STRATEGY = "restart-strategy.type"
_REST_PORTS = "rest.bind-port"
_MANY_PORTS = 20


def bound_restarts(env: StreamExecutionEnvironment, config: Configuration) -> None:
    """Let a local job with checkpoints restart a few times; Flink's default is forever."""
    if _RESTART_STRATEGY not in flink_compat.configuration_of(env):
        delay = config.get(AgentOptions.RESTART_DELAY)
        settings = {
            _RESTART_STRATEGY: "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(config.get(AgentOptions.RESTART_ATTEMPTS)),
            "restart-strategy.fixed-delay.delay": f"{int(delay.total_seconds() * 1000)} ms",
        }
        flink_compat.set_options(env, settings)


def bound_rest_ports(env: StreamExecutionEnvironment) -> None:
    """Choose the REST port of a local job; Flink would take any port without reporting it."""
    if not flink_compat.configuration_of(env).keys() & {"rest.port", _REST_PORTS}:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            first = min(probe.getsockname()[1], 65535 - _MANY_PORTS)
        flink_compat.set_options(env, {_REST_PORTS: f"{first}-{first + _MANY_PORTS}"})
