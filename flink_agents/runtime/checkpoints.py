"""Which checkpoints of a job have completed, and which of them are kept, as Flink's REST interface says.

A Python function is not told that a checkpoint completed, so that one thread per process and job
asks. What an answer is worth:

- Flink answers out of a cache (3 s unless configured): an answer may be older than the question.
- JobManagers have a cache each. Behind one name there may be several of them, but all answers on one
  connection come out of the same one. So connections are kept, and counted.
- What was answered before can change in place, such as the number of acknowledgements or
  ``discarded``, without anything new in the answer. So answers are compared by what cannot:
  ``CheckpointView.content``.
- The history shows the last few checkpoints of all kinds. Which of them are kept is not said, but
  ``discarded`` is: Flink discards the oldest first, when a new one is in its store.

``docs/design/durable.md`` says what is concluded from that.
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

from flink_agents.api.logs import bounded_logger

_log = bounded_logger("flink_agents.checkpoints")

INTERVAL_SECONDS = 3.0
"""How often to ask: as often as Flink's cache has another answer."""

REQUEST_SECONDS = 5.0

DEFAULT_PORT = 8081

MAX_PORTS = 100
"""How many ports of a range are tried."""

DISABLED = "Checkpointing has not been enabled"


class RestError(Exception):
    """There was no answer, or none that can be used."""


@dataclass(frozen=True)
class CheckpointView:
    """What an answer says.

    Attributes:
        connection: Number of the connection that it came by.
        content: Equal for answers that Flink may have given out of one and the same snapshot.
        highest: No checkpoint or savepoint with a greater id had been triggered.
        discarded: The last checkpoint that was discarded in favour of a later one, which is kept; 0
            if none is known. Savepoints do not count.
        enabled: Whether the job takes checkpoints at all.
        hides: Whether more checkpoints are kept than the history shows, so that it never shows one
            that was discarded.
    """

    connection: int
    content: Hashable
    highest: int = 0
    discarded: int = 0
    enabled: bool = True
    hides: bool = False

    @classmethod
    def of(cls, answer: Mapping[str, Any], connection: int) -> CheckpointView:
        """The view of the body of an answer.

        Raises:
            RestError: It is not what Flink answers.
        """
        try:
            history: list[Mapping[str, Any]] = answer["history"]
            counts: Mapping[str, int] = answer["counts"]
            latest = [one for one in answer["latest"].values() if one is not None]
            content = tuple(sorted(counts.items())), tuple((one["id"], one["status"]) for one in history)
            completed = [one for one in history if one["status"] == "COMPLETED" and not one["is_savepoint"]]
            kept = [one["id"] for one in completed if not one["discarded"]]
            gone = [one["id"] for one in completed if one["discarded"] and one["id"] < max(kept, default=0)]
            ended = [one for one in history if one["status"] != "IN_PROGRESS"]
            return cls(
                connection,
                content,
                highest=max((one["id"] for one in [*history, *latest]), default=0),
                discarded=max(gone, default=0),
                hides=1 < len(ended) == len(kept) < counts["completed"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise RestError(f"an answer that is not Flink's: {error!r}") from error


_connections = count(1)


class Listener(Protocol):
    """Who wants to know. All methods are called by the thread that asks."""

    def asking(self) -> None:
        """The next question is about to be sent."""
        ...

    def answered(self, view: CheckpointView) -> None:
        """It was answered."""
        ...

    def failed(self, error: RestError) -> None:
        """It was not."""
        ...


class CheckpointClient:
    """Asks about the checkpoints of one job. For one thread.

    Args:
        addresses: Where to ask: the first that knows the job.
        job_id: Flink's id of the job.
    """

    def __init__(self, addresses: tuple[str, ...], job_id: str) -> None:
        self._addresses = addresses
        self._job_id = job_id
        self._connection: HTTPConnection | None = None
        self._number = 0
        self._path = ""

    def ask(self) -> CheckpointView:
        """What Flink says now, or said a little before.

        Raises:
            RestError: Nobody answers, or nobody knows the job.
        """
        if self._connection is not None:
            try:
                return self._ask(self._connection)
            except RestError:
                self.close()  # it was left alone for too long, or its other end has gone
        errors: list[str] = []
        for address in self._addresses:
            try:
                return self._ask(self._connect(address))
            except RestError as error:
                errors.append(f"{address}: {error}")
                self.close()
        raise RestError("; ".join(errors[:1] + errors[-1:][len(errors) == 1 :]) or "no address is known")

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self, address: str) -> HTTPConnection:
        try:
            parts = urlsplit(address if "//" in address else f"http://{address}")
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            port = parts.port or (None if "//" in address else DEFAULT_PORT)
            self._connection = kind(parts.hostname or "localhost", port, timeout=REQUEST_SECONDS)
        except ValueError as error:
            raise RestError(str(error)) from error
        self._number = next(_connections)
        self._path = f"{parts.path.rstrip('/')}/jobs/{self._job_id}/checkpoints"
        return self._connection

    def _ask(self, connection: HTTPConnection) -> CheckpointView:
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
            return CheckpointView.of(json.loads(body), self._number)
        except ValueError as error:
            raise RestError(f"an answer that is no JSON: {error}") from error


class CheckpointPoller:
    """Asks again and again while somebody listens.

    Args:
        addresses: Where to ask.
        job_id: Flink's id of the job.
        interval: Seconds between questions.
    """

    def __init__(self, addresses: tuple[str, ...], job_id: str, interval: float = INTERVAL_SECONDS) -> None:
        self._place = addresses, job_id
        self._interval = interval
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of all answers from now on."""
        with self._lock:
            self._listeners.append(listener)
            if self._stop is None:
                self._stop = threading.Event()
                name = "flink-checkpoints"
                threading.Thread(target=self._serve, args=(self._stop,), name=name, daemon=True).start()

    def forget(self, listener: Listener) -> None:
        """Tell it nothing more. A call that is under way may still end."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and self._stop is not None:
                self._stop.set()
                self._stop = None

    def _serve(self, stop: threading.Event) -> None:
        client = CheckpointClient(*self._place)
        while not stop.is_set():
            self._ask(client)
            stop.wait(self._interval)
        client.close()

    def _ask(self, client: CheckpointClient) -> None:
        # Those who begin to listen meanwhile were not told of the question: the answer is not theirs.
        listeners = list(self._listeners)
        self._tell(listeners, lambda listener: listener.asking())
        try:
            view = client.ask()
        except RestError as error:
            failure = error
            self._tell(listeners, lambda listener: listener.failed(failure))
        else:
            self._tell(listeners, lambda listener: listener.answered(view))

    def _tell(self, listeners: list[Listener], tell: Callable[[Listener], None]) -> None:
        for listener in listeners:
            try:
                tell(listener)
            except Exception:
                _log.exception("somebody who listens for checkpoints failed")


_pollers: dict[tuple[tuple[str, ...], str], CheckpointPoller] = {}
_pollers_lock = threading.Lock()


def poller_of(addresses: tuple[str, ...], job_id: str) -> CheckpointPoller:
    """The poller of a job in this process. All subtasks share it."""
    with _pollers_lock:
        poller = _pollers.get((addresses, job_id))
        if poller is None:
            # A process serves few jobs, one after the other.
            poller = _pollers[addresses, job_id] = CheckpointPoller(addresses, job_id)
        return poller


def rest_addresses(flink: Mapping[str, str]) -> tuple[str, ...]:
    """Where a TaskManager with the configuration ``flink`` finds Flink's REST interface; none if nowhere."""
    host = flink.get("rest.address") or flink.get("jobmanager.rpc.address")
    if not host:
        return ()
    secure = flink.get("security.ssl.rest.enabled", flink.get("security.ssl.enabled", "false"))
    scheme = "https" if secure == "true" else "http"
    host = f"[{host}]" if ":" in host else host
    path = flink.get("rest.path", "").rstrip("/")
    return tuple(f"{scheme}://{host}:{port}{path}" for port in _ports(flink))


def _ports(flink: Mapping[str, str]) -> Iterator[int]:
    """The port that clients use, and those that a JobManager may choose from."""
    bound, seen = flink.get("rest.bind-port", ""), set[int]()
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
