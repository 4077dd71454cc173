"""A client of Flink's REST interface, for a cluster on this machine or elsewhere."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

from flink_agents.api.errors import ClusterError, ClusterUnavailableError

REQUEST_SECONDS = 20.0

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
        """Return the logs and outputs of TaskManagers: each file as a whole, the oldest first.

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
    """Return Flink's message without the frames of Java."""
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
    """Return metrics. Each has ``id``. See :func:`jobs_in`."""
    return _check_rows(path, get(path), "id")


class LastFailure(NamedTuple):
    """The last failure of a job: its time in seconds since the epoch, and what says most about it."""

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


def _check_rows(path: str, answer: Any, *texts: str) -> list[dict[str, Any]]:
    """Return a list of objects that have some texts."""
    rows: list[Any] = cast("list[Any]", answer) if isinstance(answer, list) else [None]
    for row in rows:
        if not (isinstance(row, dict) and all(isinstance(row.get(field), str) for field in texts)):
            raise ClusterUnavailableError(_FOREIGN.format(path), found=repr(row)[:200], fix=_START)
    return rows


def _as_number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0
