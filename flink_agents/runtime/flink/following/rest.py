"""A client of Flink's REST interface, and the news about a job since the last request for them.

The cluster is on this machine or elsewhere. The requests for news can be answered without the metrics of
TaskManagers, so they are cheap.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

from flink_agents.api.errors import ClusterError, ClusterUnavailableError, JobFailedError
from flink_agents.runtime.flink.job_errors import in_one_line, job_failed, lost_task_manager

REQUEST_SECONDS = 20.0
"""Time that an answer may take."""

POLL_SECONDS = 1.0
"""The interval of polls of a job."""

FIRST_POLL_SECONDS = 0.3
FIRST_SECONDS = 10.0
"""For this time, a caller that waits for a job's end polls more often: short jobs are reported at once."""

WANTED_ENDS = ("FINISHED", "CANCELED")
ENDED_STATES = (*WANTED_ENDS, "FAILED")
"""The states of jobs that Flink does not run again."""

_FOREIGN = "the answer to GET {} is not one of Flink"
_QUOTED_CHARACTERS = 2_000
_START = "start one with `flink-agents cluster start`, or pass the address: --cluster http://HOST:8081"


class ClusterRest:
    """A client of one cluster.

    Args:
        address: The address, for example ``http://localhost:8081``. You can omit ``http://``.
    """

    def __init__(self, address: str) -> None:
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")

    @property
    def host_and_port(self) -> str:
        """The address in the form that Flink's command line takes."""
        return urlsplit(self.address).netloc

    def get(self, path: str) -> Any:
        """Return the answer to a GET request: an object, or the list of metrics.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: Flink rejected the request.
        """
        answer = self._send_request("GET", path)
        if not isinstance(answer, list if path.partition("?")[0].endswith("/metrics") else dict):
            raise self._unavailable_error(ValueError(_FOREIGN.format(path)))
        return answer

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST request, and return the answer.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: Flink rejected the request.
        """
        return self._send_request("POST", path, body)

    def patch(self, path: str) -> Any:
        """Send a PATCH request, and return the answer.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: Flink rejected the request.
        """
        return self._send_request("PATCH", path)

    def text(self, path: str) -> bytes:
        """Return the bytes of a file of the cluster, such as a log, by its path below the REST address.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: There is no such file.
        """
        return self._read_answer("GET", path)

    def task_logs(self) -> Iterator[bytes]:
        """Yield the content of each log and output file of the TaskManagers, the oldest of each first.

        Files and TaskManagers that vanish meanwhile are left out.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
        """
        managers = self.get("/taskmanagers").get("taskmanagers", [])
        for manager in _check_rows("/taskmanagers", managers, "id"):
            place = f"/taskmanagers/{quote(manager['id'], safe='')}/logs"
            try:
                files = _check_rows(place, self.get(place).get("logs", []), "name")
                for file in sorted(files, key=lambda log: log.get("mtime") or 0):
                    if file.get("size"):
                        yield self.text(f"{place}/{quote(file['name'], safe='')}")
            except ClusterError:
                # The TaskManager or the file is gone.
                continue

    def _send_request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        text = self._read_answer(method, path, None if body is None else json.dumps(body).encode())
        try:
            return json.loads(text or b"null")
        except (ValueError, RecursionError) as error:
            raise self._unavailable_error(error) from None

    def _read_answer(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(self.address + path, data, headers, method=method)
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused_error(method, path, error.code, error.read()) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unavailable_error(error) from None

    def _unavailable_error(self, error: Exception) -> ClusterUnavailableError:
        return ClusterUnavailableError(
            f"no Flink cluster answers at {self.address}",
            found=f"{type(error).__name__}: {error}",
            fix=_START,
        )

    def _refused_error(self, method: str, path: str, status: int, body: bytes) -> ClusterError:
        text = body.decode("utf-8", "replace")
        try:
            reasons = [_without_frames(str(reason)) for reason in json.loads(text)["errors"]]
        except (ValueError, RecursionError, KeyError, TypeError):
            reasons = [text]
        return ClusterError(
            f"Flink at {self.address} rejected {method} {path}",
            found=f"{status}: {' '.join(reasons)[:_QUOTED_CHARACTERS]}",
        )


def _without_frames(reason: str) -> str:
    """Return Flink's message without the frames of Java; the whole message if it has nothing else."""
    lines = [line for line in reason.splitlines() if not line.startswith(("\tat ", "\t... "))]
    return "\n".join(lines) or reason


Get = Callable[[str], Any]
"""Returns the answer to a GET request. See :meth:`ClusterRest.get`."""


def jobs_in(get: Get) -> list[dict[str, Any]]:
    """Return the jobs that a cluster knows. Each has ``jid``, ``name``, ``state`` and ``start-time``.

    Raises:
        ClusterUnavailableError: There was no answer, or not one of Flink's.
        ClusterError: Flink rejected the request.
    """
    path = "/jobs/overview"
    jobs = _check_rows(path, get(path).get("jobs"), "jid", "name", "state")
    return [job | {"start-time": _as_number(job.get("start-time"))} for job in jobs]


def vertices_of(get: Get, job_id: str) -> list[dict[str, Any]]:
    """Return the vertices of a job. Each has ``id`` and ``name``. See :func:`jobs_in`."""
    path = f"/jobs/{job_id}"
    return _check_rows(path, get(path).get("vertices", []), "id", "name")


def metrics_at(get: Get, path: str) -> list[dict[str, Any]]:
    """Return the metrics at a path that ends with ``/metrics``. Each has ``id``. See :func:`jobs_in`."""
    return _check_rows(path, get(path), "id")


def sleep_until_next_poll(began: float) -> None:
    """Sleep between two polls of a caller that waits for the end of a job.

    Args:
        began: When it began to wait, by ``time.monotonic()``.
    """
    is_first_time = time.monotonic() - began < FIRST_SECONDS
    time.sleep(FIRST_POLL_SECONDS if is_first_time else POLL_SECONDS)


class LastFailure(NamedTuple):
    """The last failure of a job: its time in seconds since the epoch, and the line that describes it."""

    time: float
    cause: str


def last_failure(get: Get, job_id: str) -> LastFailure | None:
    """Return the last failure of a job, or None if it had none. See :func:`jobs_in`."""
    history = get(f"/jobs/{job_id}/exceptions?maxExceptions=1").get("exceptionHistory")
    entries = history.get("entries") if isinstance(history, dict) else None
    first = entries[0] if isinstance(entries, list) and entries else None
    if not isinstance(first, dict):
        return None
    return LastFailure(_as_number(first.get("timestamp")) / 1000, _useful_line(str(first.get("stacktrace"))))


def _useful_line(stack: str) -> str:
    """Return the most useful line of a Java stack trace: the Python error, otherwise the first line."""
    lines = [line.strip() for line in stack.splitlines() if line.strip()]
    error_lines = [
        line for line in lines if line.startswith("flink_agents.") or line.split(":")[0].endswith("Error")
    ]
    return (error_lines or lines or [""])[0][:300]


def _check_rows(path: str, answer: Any, *text_fields: str) -> list[dict[str, Any]]:
    """Return ``answer``, if it is a list of objects that have a string in each of the ``text_fields``.

    Raises:
        ClusterUnavailableError: It is not.
    """
    rows: list[Any] = cast("list[Any]", answer) if isinstance(answer, list) else [None]
    for row in rows:
        if not (isinstance(row, dict) and all(isinstance(row.get(field), str) for field in text_fields)):
            raise ClusterUnavailableError(_FOREIGN.format(path), found=repr(row)[:200], fix=_START)
    return rows


def _as_number(value: Any) -> float:
    """Return ``value`` if it is a number, otherwise 0."""
    return value if isinstance(value, int | float) else 0


RUNNING = "RUNNING"
FAILING = "FAILING"
FAILED = "FAILED"
ENDED = ("FINISHED", "FAILED", "CANCELED", "SUSPENDED")
"""Final states."""

REMEMBERED_FAILURES = 100
"""The number of failures to request: more than happen between two polls."""

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
    """The news about a job since the last poll.

    Attributes:
        state: The state of the job, in Flink's words.
        changed: True if the state has changed since the last poll.
        restarts: The restarts since the last poll.
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
        answers_age: The maximum age of Flink's answers in seconds, except the state of a job. A poll
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
        """Return the news since the last poll.

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
        # Flink has answered everything, so the next poll starts after this one.
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
