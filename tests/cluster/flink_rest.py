"""The parts of Flink's REST API that the cluster tests need."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from flink_agents.runtime.flink.job_errors import INTERRUPTED_START, job_failed
from tests.cluster.waiting import wait_until

REQUEST_SECONDS = 20
SAVEPOINT_SECONDS = 120
REPORTED_FAILURES = 4


class FlinkRest:
    """Requests to one address.

    Args:
        address: ``http://host:port``.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, body)

    def patch(self, path: str) -> Any:
        return self._request("PATCH", path, None)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {error} {error.read().decode()[:2000]}") from None


class ClusterJob:
    """A job on a cluster.

    Args:
        rest: The cluster's interface.
        job_id: The job's id.
    """

    def __init__(self, rest: FlinkRest, job_id: str) -> None:
        self._rest = rest
        self.id = job_id

    def state(self) -> str:
        """``RUNNING``, ``RESTARTING``, ``FINISHED``, ``FAILED``, ``CANCELED``, ..."""
        return self._rest.get(f"/jobs/{self.id}/status")["status"]

    def checkpoints(self) -> dict[str, int]:
        """Numbers of checkpoints by kind: ``completed``, ``failed``, ``restored``, ..."""
        return self._rest.get(f"/jobs/{self.id}/checkpoints")["counts"]

    def without_python(self) -> set[str]:
        """Names of TaskManagers whose Python was interrupted when it started, so that it never will."""
        return {
            entry["taskManagerId"] for entry in self._failures() if INTERRUPTED_START in entry["stacktrace"]
        }

    def ended_tasks(self) -> list[str]:
        """Names of the job's vertices all of whose tasks have come to their end."""
        vertices = self._rest.get(f"/jobs/{self.id}")["vertices"]
        return [vertex["name"] for vertex in vertices if vertex["status"] == "FINISHED"]

    def python_failures(self) -> list[str]:
        """What made the job fail in its own code, and not by the death of a process; newest first."""
        texts = [entry["stacktrace"] for entry in self._failures()]
        return [text.split("\n", 1)[0] for text in texts if text.startswith("pemja.core.PythonException")]

    def exceptions(self) -> str:
        """What made the job fail, newest first, each with the Python side first."""
        history = self._failures()
        texts = [str(job_failed(self.id, entry["stacktrace"])) for entry in history[:REPORTED_FAILURES]]
        return "\n".join([f"--- newest {len(texts)} of {len(history)} failures of the job", *texts])

    def _failures(self) -> list[dict[str, Any]]:
        return self._rest.get(f"/jobs/{self.id}/exceptions")["exceptionHistory"]["entries"]

    def cancel(self) -> None:
        """Ask for the end of the job."""
        self._rest.patch(f"/jobs/{self.id}?mode=cancel")

    def stop_with_savepoint(self, directory: Path) -> str:
        """Stop the job without draining it, and return where the savepoint lies."""
        body = {"targetDirectory": directory.as_uri(), "drain": False}
        trigger = self._rest.post(f"/jobs/{self.id}/stop", body)["request-id"]

        def completed() -> dict[str, Any] | None:
            answer = self._rest.get(f"/jobs/{self.id}/savepoints/{trigger}")
            return answer["operation"] if answer["status"]["id"] == "COMPLETED" else None

        operation = wait_until("the savepoint", completed, SAVEPOINT_SECONDS, self.exceptions)
        assert "location" in operation, operation["failure-cause"]["stack-trace"][:2000]
        return operation["location"]
