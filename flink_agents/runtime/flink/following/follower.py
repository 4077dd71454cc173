"""Reads the news about a job since the last look, from Flink's REST interface.

The requests of each look can be answered without the metrics of TaskManagers, so they can be
sent often.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.errors import ClusterError, ClusterUnavailableError, JobFailedError
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.flink.job_errors import in_one_line, job_failed, lost_task_manager

RUNNING = "RUNNING"
FAILING = "FAILING"
FAILED = "FAILED"
ENDED = ("FINISHED", "FAILED", "CANCELED", "SUSPENDED")
"""Final states."""

REMEMBERED_FAILURES = 100

_ATTEMPTS = re.compile(r"#(\d+) restart attempts")
_AGENT = re.compile(r"\bagent (?P<name>.+)")


@dataclass(frozen=True)
class Restart:
    """A restart of the job.

    Attributes:
        number: The number of restarts so far, including this one.
        most: The number of restarts after which the job fails; None if there is no limit.
        failure: The failure that caused it.
    """

    number: int
    most: int | None
    failure: JobFailedError

    def __str__(self) -> str:
        of = "" if self.most is None else f" of {self.most}"
        return f"restart {self.number}{of}: {in_one_line(self.failure)}"


@dataclass(frozen=True)
class JobUpdate:
    """The result of a look.

    Attributes:
        state: The state of the job, in Flink's words.
        changed: True if the state has changed since the last look.
        restarts: The restarts since the last look.
        failure: The failure that ended the job, if it has failed.
    """

    state: str
    changed: bool
    restarts: list[Restart] = field(default_factory=list[Restart])
    failure: JobFailedError | None = None

    @property
    def ended(self) -> bool:
        """True if the job has reached a final state."""
        return self.state in ENDED


class JobFollower:
    """Looks at one job repeatedly.

    Args:
        rest_client: The cluster.
        job_id: The job.
        job_name: Its name, for messages.
        untimed: Agents of the job whose outputs may have no timestamp; by default, all agents that
            Flink names.
        answers_age: The maximum age of Flink's answers in seconds, except the state of a job. A look
            that finds the job ended waits for that long, and then knows all of its failures.
    """

    def __init__(
        self,
        rest_client: ClusterRest,
        job_id: str,
        job_name: str,
        untimed: list[str] | None = None,
        answers_age: float = 0.0,
    ) -> None:
        self._rest_client = rest_client
        self._job_id = job_id
        self._job_name = job_name
        self._untimed = untimed
        self._answers_age = answers_age
        self._seen_failures: set[tuple[Any, ...]] = set()
        self._untold: list[Mapping[str, Any]] = []
        self._restarts = 0
        self._most: int | None = None
        self._longest_history = False
        self._state = ""
        self._lost: str | None = None

    def poll_job(self) -> JobUpdate:
        """Return the news since the last look.

        Raises:
            ClusterUnavailableError: Flink does not answer.
            ClusterError: Flink does not know the job.
        """
        if not self._longest_history:
            self._most = self._restart_limit()
            self._longest_history = True
        # The state is requested second: a failure that is already there is then known to have led
        # to a restart, or to the end of the job.
        self._untold += self._unseen_failures()
        state = self.state()
        if state in ENDED:
            time.sleep(self._answers_age)
            self._untold += self._unseen_failures()
        failures = (
            [] if state == FAILING else [self._failure_error(entry["stacktrace"]) for entry in self._untold]
        )
        last = None
        if state == FAILED:
            last = failures.pop() if failures else self._failure_of_result()
        # Flink has answered everything, so the next look starts after this one.
        if state != FAILING:
            self._untold = []
        changed = state != self._state
        self._state = state
        return JobUpdate(state, changed, [self._read_restart(failure) for failure in failures], last)

    def state(self) -> str:
        """Return the present state of the job; Flink reports failures some seconds later.

        Raises:
            ClusterUnavailableError: Flink does not answer.
            ClusterError: Flink does not know the job.
        """
        return self._get_job("/status")["status"]

    def inputs_read(self) -> dict[str, int]:
        """Return the number of inputs that each agent has taken since its last start, by its name.

        Flink asks the TaskManagers, and answers with numbers from some seconds ago.
        """
        counts: dict[str, int] = {}
        for vertex in self._get_job("")["vertices"]:
            name = _AGENT.search(vertex["name"])
            if name is not None:
                counts[name["name"]] = int(vertex["metrics"]["read-records"])
        return counts

    def _read_restart(self, failure: JobFailedError) -> Restart:
        self._restarts += 1
        return Restart(self._restarts, self._most, failure)

    def _failure_of_result(self) -> JobFailedError | None:
        """Return the failure of a job without a failure history: its JobManager could not start it."""
        try:
            result = self._get_job("/execution-result")["job-execution-result"]
            return self._failure_error(result["failure-cause"]["stack-trace"])
        except ClusterUnavailableError:
            raise
        except (ClusterError, KeyError, TypeError):
            return None

    def _failure_error(self, java_text: str) -> JobFailedError:
        if self._untimed is None:
            self._untimed = list(self.inputs_read())
        self._lost = lost_task_manager(java_text) or self._lost
        return job_failed(self._job_name, java_text, self._untimed, lost=self._lost)

    def _unseen_failures(self) -> list[Mapping[str, Any]]:
        """Return the new failures, the oldest first."""
        history = self._get_job(f"/exceptions?maxExceptions={REMEMBERED_FAILURES}")["exceptionHistory"]
        new_failures: list[Mapping[str, Any]] = []
        for entry in reversed(history["entries"]):
            identity = (entry["timestamp"], entry["exceptionName"], entry.get("taskName"))
            if identity not in self._seen_failures:
                self._seen_failures.add(identity)
                new_failures.append(entry)
        return new_failures

    def _restart_limit(self) -> int | None:
        try:
            strategy = self._get_job("/config")["execution-config"]["restart-strategy"]
        except (ClusterError, KeyError, TypeError):
            return None
        match = _ATTEMPTS.search(str(strategy))
        return None if match is None else int(match[1])

    def _get_job(self, path: str) -> Any:
        return self._rest_client.get(f"/jobs/{self._job_id}{path}")
