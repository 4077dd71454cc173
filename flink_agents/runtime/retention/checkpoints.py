"""Asks Flink's REST interface which checkpoints of a job have completed, and which are retained.

Flink does not notify Python functions of completed checkpoints. So one thread per process and job polls. Its
answers have limits:

- Flink answers from a cache (3 s by default), so an answer may be older than the request.
- Each JobManager has its own cache, and several may share one name. So connections are kept open, and
  numbered. Even one connection may lead to two of them, if a proxy distributes requests.
  ``CheckpointView.progress`` shows that, because an answer is then older than the one before.
- Parts of an answer can change in place, such as the number of acknowledgements or ``discarded``. So answers
  are compared by parts that cannot: ``CheckpointView.content``.
- The history has the last few checkpoints of all kinds. It does not show which are retained, but it shows
  ``discarded``. Flink discards the oldest first, when a new one is in its store.

``docs/design/durable.md`` explains the conclusions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import count
from typing import Any, Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from flink_agents.api.common.logs import bounded_logger

_log = bounded_logger("flink_agents.checkpoints")

INTERVAL_SECONDS = 3.0
"""The poll interval: the default lifetime of Flink's cache."""

REQUEST_SECONDS = 5.0
"""The timeout of a request."""

DEFAULT_PORT = 8081
"""The default of Flink's option ``rest.port``."""

MAX_PORTS = 100
"""The most ports of a range that are tried."""

GROWING = ("restored", "total", "completed", "failed")
"""Counters of an answer that only grow while the JobManager is running."""

DISABLED = "Checkpointing has not been enabled"
"""A part of Flink's answer about a job without checkpoints."""


class RestError(Exception):
    """A request failed, or its answer cannot be used."""


@dataclass(frozen=True)
class CheckpointView:
    """The checkpoints of a job, as an answer of Flink shows them.

    Attributes:
        connection: Number of the connection that it came by.
        content: Equal for answers that Flink may have taken from the same snapshot.
        progress: Numbers that never decrease from one snapshot to the next.
        highest: The greatest id of a checkpoint or savepoint that had been triggered.
        discarded: The last checkpoint that was discarded in favor of a later one, which is retained; 0 if
            none is known. Savepoints do not count.
        enabled: False if the job takes no checkpoints.
        hides: True if Flink retains more checkpoints than the history shows, so that it shows no discarded
            one.
    """

    connection: int
    content: Hashable
    highest: int = 0
    discarded: int = 0
    enabled: bool = True
    hides: bool = False
    progress: tuple[int, ...] = ()

    def is_older(self, other_view: CheckpointView) -> bool:
        """Return True if the snapshot was made before that of ``other_view``."""
        return any(
            counter < theirs for counter, theirs in zip(self.progress, other_view.progress, strict=False)
        )

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any], connection: int) -> CheckpointView:
        """Return the view of an answer.

        Args:
            answer: The body of the answer, as JSON.
            connection: Number of the connection that it came by.

        Raises:
            RestError: The body does not have the form of Flink's answers.
        """
        try:
            history: list[Mapping[str, Any]] = answer["history"]
            counts: Mapping[str, int] = answer["counts"]
            latest = [entry for entry in answer["latest"].values() if entry is not None]
            numbers = [*counts.values(), *(entry["id"] for entry in [*history, *latest])]
            if any(type(number) is not int for number in numbers):
                raise TypeError(f"invalid numbers: {numbers}"[:200])
            statuses = tuple((entry["id"], entry["status"]) for entry in history)
            content = tuple(sorted(counts.items())), statuses
            completed = [
                entry for entry in history if entry["status"] == "COMPLETED" and not entry["is_savepoint"]
            ]
            retained = [entry["id"] for entry in completed if not entry["discarded"]]
            newest = max(retained, default=0)
            discarded_ids = [
                entry["id"] for entry in completed if entry["discarded"] and entry["id"] < newest
            ]
            ended = [entry for entry in history if entry["status"] != "IN_PROGRESS"]
            highest = max((entry["id"] for entry in [*history, *latest]), default=0)
            return cls(
                connection,
                content,
                highest=highest,
                discarded=max(discarded_ids, default=0),
                hides=1 < len(ended) == len(retained) < counts["completed"],
                progress=(highest, *(counts.get(name, 0) for name in GROWING)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise RestError(f"an answer that is not Flink's: {error!r}") from error


_connections = count(1)


class Listener(Protocol):
    """Receives the answers of a :class:`CheckpointPoller`, whose thread calls all methods."""

    def asking(self) -> None:
        """Note that the next request is about to be sent."""
        ...

    def answered(self, view: CheckpointView) -> None:
        """Handle an answer of Flink, which may be older than earlier ones."""
        ...

    def failed(self, error: RestError) -> None:
        """Handle the error that came instead of an answer."""
        ...

    def ended(self, error: BaseException) -> None:
        """Note that polling has stopped: the thread ended because of an unexpected error."""
        ...


class CheckpointClient:
    """Requests the checkpoints of one job. For one thread.

    Args:
        addresses: The addresses of REST interfaces to try; the first one that knows the job is used.
        job_id: Flink's id of the job.
    """

    def __init__(self, addresses: tuple[str, ...], job_id: str) -> None:
        self._addresses = addresses
        self._job_id = job_id
        self._connection: HTTPConnection | None = None
        self._number = 0
        self._path = ""

    def request_view(self) -> CheckpointView:
        """Request and return Flink's answer, which may be some seconds old. Blocks the thread.

        Raises:
            RestError: No address answers, or none knows the job.
        """
        if self._connection is not None:
            try:
                return self._request(self._connection)
            except RestError:
                self.close()  # it was left alone for too long, or its other end has gone
        errors: list[str] = []
        for address in self._addresses:
            try:
                return self._request(self._connect(address))
            except RestError as error:
                errors.append(f"{address}: {error}")
                self.close()
        raise RestError("; ".join(errors[:1] + errors[-1:][len(errors) == 1 :]) or "no address is known")

    def close(self) -> None:
        """Close the connection, if one is open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, address: str) -> HTTPConnection:
        """Create the connection to an address, which is opened by the first request.

        Raises:
            RestError: The address is malformed.
        """
        try:
            parts = urlsplit(address if "//" in address else f"http://{address}")
            connection_class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            port = parts.port or (None if "//" in address else DEFAULT_PORT)
            self._connection = connection_class(parts.hostname or "localhost", port, timeout=REQUEST_SECONDS)
        except ValueError as error:
            raise RestError(str(error)) from error
        self._number = next(_connections)
        self._path = f"{parts.path.rstrip('/')}/jobs/{self._job_id}/checkpoints"
        return self._connection

    def _request(self, connection: HTTPConnection) -> CheckpointView:
        """Request and return an answer over a connection.

        Raises:
            RestError: There is no usable answer.
        """
        try:
            connection.request("GET", self._path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            body = response.read()
        except (OSError, HTTPException) as error:
            raise RestError(f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            text = body.decode("utf-8", "replace")
            if DISABLED in text:
                return CheckpointView(self._number, None, enabled=False)
            raise RestError(f"status {response.status}: {text[:300]}")
        if response.will_close:
            raise RestError("the connection is not kept open, so that answers cannot be told apart")
        try:
            return CheckpointView.from_answer(json.loads(body), self._number)
        except ValueError as error:
            raise RestError(f"an answer that is no JSON: {error}") from error


class CheckpointPoller:
    """Polls the checkpoints of a job in a thread, while there are listeners.

    Args:
        addresses: The addresses of REST interfaces to try.
        job_id: Flink's id of the job.
        interval: Seconds between requests.
    """

    def __init__(self, addresses: tuple[str, ...], job_id: str, interval: float = INTERVAL_SECONDS) -> None:
        self._client_arguments = addresses, job_id
        self._interval = interval
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None
        self._logged: set[type[Exception]] = set()

    def listen(self, listener: Listener) -> None:
        """Notify a listener of all answers from the next request on; start the thread if it is the first."""
        with self._lock:
            self._listeners.append(listener)
            if self._stop is None:
                stop = threading.Event()
                name = "flink-checkpoints"
                threading.Thread(target=self._serve, args=(stop,), name=name, daemon=True).start()
                self._stop = stop

    def forget(self, listener: Listener) -> None:
        """Stop notifying a listener. A call in flight may still end."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and self._stop is not None:
                self._stop.set()
                self._stop = None

    def _serve(self, stop: threading.Event) -> None:
        """Poll until ``stop`` is set. The body of the thread."""
        client = CheckpointClient(*self._client_arguments)
        try:
            while not stop.is_set():
                self._poll_once(client)
                stop.wait(self._interval)
        except BaseException as error:
            self._end(stop, error)
        finally:
            client.close()

    def _end(self, stop: threading.Event, error: BaseException) -> None:
        """Notify listeners that the thread ends. The next listener starts another one."""
        _log.error("checkpoints are not polled any longer, so nothing is pruned", exc_info=error)
        with self._lock:
            if self._stop is stop:
                self._stop = None
            listeners = list(self._listeners)
        self._notify(listeners, lambda listener: listener.ended(error))

    def _poll_once(self, client: CheckpointClient) -> None:
        """Make a request, and notify the listeners of its answer or error."""
        # A listener that is added now did not see the request, so it does not get the answer.
        listeners = list(self._listeners)
        self._notify(listeners, lambda listener: listener.asking())
        try:
            view = client.request_view()
        except Exception as error:
            failure = error if isinstance(error, RestError) else RestError(f"{type(error).__name__}: {error}")
            if failure is not error:
                self._log_once(f"Flink could not be asked for checkpoints: {failure}", error)
                client.close()
            self._notify(listeners, lambda listener: listener.failed(failure))
        else:
            self._notify(listeners, lambda listener: listener.answered(view))

    def _notify(self, listeners: list[Listener], notify: Callable[[Listener], None]) -> None:
        """Call ``notify`` for each listener; log what a listener raises."""
        for listener in listeners:
            try:
                notify(listener)
            except Exception as error:
                self._log_once(f"a listener for checkpoints failed: {error!r}", error)

    def _log_once(self, text: str, error: Exception) -> None:
        """Log an error with its traceback, unless one of the same class was logged."""
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.error("%s", text, exc_info=error)


_pollers: WeakValueDictionary[tuple[tuple[str, ...], str], CheckpointPoller] = WeakValueDictionary()
_pollers_lock = threading.Lock()


def poller_of(addresses: tuple[str, ...], job_id: str) -> CheckpointPoller:
    """Return the poller of a job in this process. All subtasks share it."""
    with _pollers_lock:
        poller = _pollers.get((addresses, job_id))
        if poller is None:
            poller = _pollers[addresses, job_id] = CheckpointPoller(addresses, job_id)
        return poller


def rest_addresses(flink: Mapping[str, str]) -> tuple[str, ...]:
    """Return the URLs at which a TaskManager may find Flink's REST interface; none without a host.

    Args:
        flink: The configuration of the TaskManager.
    """
    host = flink.get("rest.address") or flink.get("jobmanager.rpc.address")
    if not host:
        return ()
    secure = flink.get("security.ssl.rest.enabled", flink.get("security.ssl.enabled", "false"))
    scheme = "https" if secure == "true" else "http"
    host = f"[{host}]" if ":" in host else host
    path = flink.get("rest.path", "").rstrip("/")
    return tuple(f"{scheme}://{host}:{port}{path}" for port in _ports(flink))


def _ports(flink: Mapping[str, str]) -> Iterator[int]:
    """Yield the port that clients use, and those that a JobManager may choose from."""
    bound = flink.get("rest.bind-port", "")
    seen = set[int]()
    ranges = [flink.get("rest.port") or (str(DEFAULT_PORT) if not bound else ""), *bound.split(",")]
    for part in ranges:
        first, _, last = part.strip().partition("-")
        try:
            ports = range(int(first), int(last or first) + 1)
        except ValueError:
            continue
        for port in ports[: MAX_PORTS - len(seen)]:
            if port > 0 and port not in seen:
                seen.add(port)
                yield port
