"""A client of Flink's REST interface, for a cluster on this machine or elsewhere."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from flink_agents.api.errors import ClusterError, ClusterUnavailableError

REQUEST_SECONDS = 20.0

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
        """Return the answer to a GET request.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: Flink rejected the request.
        """
        return self._request("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST request, and return the answer.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: Flink rejected the request.
        """
        return self._request("POST", path, body)

    def patch(self, path: str) -> Any:
        """Send a PATCH request, and return the answer.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: Flink rejected the request.
        """
        return self._request("PATCH", path)

    def text(self, path: str) -> bytes:
        """Return a file of the cluster, such as a log.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
            ClusterError: There is no such file.
        """
        return self._answer("GET", path)

    def task_logs(self) -> Iterator[bytes]:
        """Return the logs and outputs of TaskManagers: each file as a whole, the oldest first.

        Raises:
            ClusterUnavailableError: There was no answer, or not one of Flink's.
        """
        for manager in self.get("/taskmanagers").get("taskmanagers", ()):
            place = f"/taskmanagers/{quote(str(manager['id']), safe='')}/logs"
            try:
                files = self.get(place).get("logs", ())
                for one in sorted(files, key=lambda one: one.get("mtime") or 0):
                    if one.get("size"):
                        yield self.text(f"{place}/{quote(str(one['name']), safe='')}")
            except ClusterError:
                # The TaskManager or the file is gone.
                continue

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        text = self._answer(method, path, None if body is None else json.dumps(body).encode())
        try:
            return json.loads(text or b"null")
        except ValueError as error:
            raise self._unavailable(error) from None

    def _answer(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(self.address + path, data, headers, method=method)
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(method, path, error.code, error.read()) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> ClusterUnavailableError:
        return ClusterUnavailableError(
            f"no Flink cluster answers at {self.address}",
            found=f"{type(error).__name__}: {error}",
            fix=_START,
        )

    def _refused(self, method: str, path: str, status: int, body: bytes) -> ClusterError:
        text = body.decode("utf-8", "replace")
        try:
            reasons = [_without_frames(str(reason)) for reason in json.loads(text)["errors"]]
        except (ValueError, KeyError, TypeError):
            reasons = [text]
        return ClusterError(
            f"Flink at {self.address} rejected {method} {path}",
            found=f"{status}: {' '.join(reasons)[:_QUOTED_CHARACTERS]}",
        )


def _without_frames(reason: str) -> str:
    """Return Flink's message without the frames of Java."""
    lines = [line for line in reason.splitlines() if not line.startswith(("\tat ", "\t... "))]
    return "\n".join(lines) or reason
