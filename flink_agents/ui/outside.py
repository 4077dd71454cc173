"""Reads from brokers and from Flink, and sends signals, answers and dead letters."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from flink_agents import redaction
from flink_agents.api.errors.console import RejectedAnswerError
from flink_agents.api.events.approvals import ApprovalRequest, ApprovalResponse, wait_of_request
from flink_agents.api.events.key_requests import for_key_text, inspect_request
from flink_agents.api.events.signals import Signal
from flink_agents.connectors.kafka.dead_letters.redrive import Letter, redrive
from flink_agents.connectors.kafka.requests.desk import KafkaApprovals, request_with
from flink_agents.connectors.kafka.requests.pending import PendingRequests
from flink_agents.runtime.flink.following.backpressure import UNKNOWN, read_flow
from flink_agents.runtime.flink.following.rest import ClusterRest, jobs_in, last_failure
from flink_agents.runtime.flink.resume.local_jobs import LocalJobState, jobs_of
from flink_agents.trace.answers import describe_answer, inputs_behind
from flink_agents.ui.background import Background, Reading
from flink_agents.ui.key_requests import KeyRequests
from flink_agents.ui.settings import ConsoleSettings

MOST_ANSWERS = 1000
MOST_LETTERS = 500
INSPECT_SECONDS = 15.0
MOST_VALUE = 4000
LOCAL_SECONDS = 1.0
"""Maximum age of the states of local jobs."""


@dataclass(frozen=True)
class ConsoleJob:
    """A job of the cluster, as the console shows it.

    Attributes:
        id: Flink's id of the job.
        name: Its name.
        state: Its state in Flink.
        since: Its start, in seconds since the epoch.
        tasks: Number of its tasks by state.
        checkpoints: Numbers of completed and of failed checkpoints.
        problem: The last exception that caused a restart, with its time; empty if there is none.
        backpressure: Sentences about the operators that slow it down.
    """

    id: str
    name: str
    state: str
    since: float
    tasks: dict[str, int]
    checkpoints: tuple[int, int] = (0, 0)
    problem: str = ""
    backpressure: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeadLetterRow:
    """A dead letter as shown.

    Attributes:
        place: Its position: ``topic/partition/offset``.
        topic: The topic of dead letters.
        agent: Name of the agent that failed to process it; empty if a source rejected it.
        error_class: Class name of the error.
        error: Class and message of the error.
        origin: The topic that it came from; None if it is not known.
        key: The key of the run, or of the Kafka message.
        value: Its value as text, truncated.
        time: Its timestamp, in seconds since the epoch.
        headers: Its headers as text; a name can occur several times.
    """

    place: str
    topic: str
    agent: str
    error_class: str
    error: str
    origin: str | None
    key: str
    value: str
    time: float
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KeyAnswer:
    """The answer of a job to a request about a key.

    Attributes:
        lines: What the agents of the job answered, as sentences.
        inputs_behind: Number of inputs that wait behind the first unfinished run, by agent.
        time: When the answers came, in seconds since the epoch.
    """

    lines: list[str]
    inputs_behind: dict[str, int]
    time: float


class Outside:
    """Reads from brokers and Flink in background threads, and sends the decisions of visitors.

    Args:
        settings: Addresses of brokers and cluster, and names of topics.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._desk = KafkaApprovals(settings.signals, settings.requests, **settings.client)
        self._pending = PendingRequests(settings.requests, settings.client) if settings.requests else None
        self._requests = Background(self._pending.read, 1.0) if self._pending else None
        self._letters = {
            name: Background(partial(self._read_letters, name), 5.0) for name in settings.dead_letters
        }
        self._jobs = (
            Background(partial(_read_jobs, ClusterRest(settings.cluster))) if settings.cluster else None
        )
        self._answering = threading.Lock()
        self.sent: dict[str, ApprovalResponse] = {}
        self._answers: dict[str, KeyAnswer] = {}
        self._looking = threading.Lock()
        self._looked = -LOCAL_SECONDS
        self._local: list[LocalJobState] = []

    def close(self) -> None:
        """Close the consumer that stays open between two pages."""
        if self._pending is not None:
            self._pending.close()

    # -- reading ----------------------------------------------------------------------

    def jobs(self) -> Reading[list[ConsoleJob]] | None:
        """Return the last known jobs of the cluster; None if no cluster is set."""
        return None if self._jobs is None else self._jobs.read()

    def local_jobs(self) -> list[LocalJobState]:
        """Return the local jobs near the trace, at most a second old; empty if a cluster is set."""
        if self._settings.cluster is not None:
            return []
        with self._looking:
            if time.monotonic() - self._looked >= LOCAL_SECONDS:
                self._local = jobs_of(self._settings.state_dirs, self._settings.trace)
                self._looked = time.monotonic()
            return self._local

    def requests(self) -> Reading[list[ApprovalRequest]] | None:
        """Return the last known pending requests; None if no topic of requests is set."""
        return None if self._requests is None else self._requests.read()

    def request(self, request_id: str) -> ApprovalRequest | None:
        """Return the pending request with an id, after another read if needed; None if there is none."""
        for read in (self.requests, self.renew_requests):
            # One that was just asked may not have been read yet.
            reading = read()
            for request in (reading.value if reading else None) or ():
                if request.id == request_id:
                    return request
        return None

    def requests_of(self, key: str, sequence: int | None = None) -> dict[str, ApprovalRequest]:
        """Return the pending requests of a key, or only of its run ``sequence``, by the id of their wait."""
        reading = self.requests()
        requests: dict[str, ApprovalRequest] = {}
        for request in (reading.value if reading else None) or ():
            request_key, number, wait = _request_parts(request.id)
            if request_key == key and (sequence is None or number == str(sequence)):
                requests[wait] = request
        return requests

    def letters(self) -> dict[str, Reading[list[DeadLetterRow]]]:
        """Return the last known dead letters that were not sent back, by topic."""
        return {name: background.read() for name, background in self._letters.items()}

    def _read_letters(self, topic: str) -> list[DeadLetterRow]:
        rows: list[DeadLetterRow] = []
        redrive(
            topic,
            # Nothing is written: any name does, for letters that came from nowhere that is known.
            topic,
            limit=MOST_LETTERS,
            dry_run=True,
            on_letter=lambda letter, _: rows.append(_letter_row(topic, letter)),
            **self._settings.client,
        )
        return sorted(rows, key=lambda row: -row.time)

    # -- sending ----------------------------------------------------------------------

    def send_answer(self, response: ApprovalResponse, new_arguments: bool = False) -> ApprovalRequest:
        """Send an answer to a pending request, wait until the brokers have it, and return the request.

        Args:
            response: The answer.
            new_arguments: True to accept arguments that the request does not have.

        Raises:
            RejectedAnswerError: The request is not pending, was answered before, or lacks an argument of the
                answer. Or no topic of signals or requests is set.
            KafkaStreamError: The brokers cannot be reached.
        """
        if self._settings.signals is None:
            raise _unset_option_error("answers", "--signals TOPIC")
        if self._pending is None:
            raise _unset_option_error("answers", "--requests TOPIC")
        with self._answering:
            request = request_with(response.id, self._pending.read())
            if request is None:
                raise _rejected_error(
                    "this request is no longer pending: it was answered, has expired, or its run has ended",
                    found=response.id,
                )
            unknown = [name for name in response.arguments or () if name not in request.arguments]
            if unknown and not new_arguments:
                raise _rejected_error(f"{request.what} has no argument {unknown[0]!r}", found=unknown[0])
            earlier = next(iter(self._desk.answered(request)), None) or self.sent.get(request.id)
            if earlier is not None:
                decision = "approved" if earlier.approved else "denied"
                by = f" by {earlier.by}" if earlier.by else ""
                raise _rejected_error(
                    f"this request was {decision}{by} already; the first answer counts", found=decision
                )
            self._desk.answer(response)
            self.sent[request.id] = response
        return request

    def send_signal(self, signal: Signal) -> None:
        """Send a signal, and wait until the brokers have it.

        Raises:
            RejectedAnswerError: No topic of signals is set.
            KafkaStreamError: The brokers cannot be reached.
            KafkaValueError: Its value cannot be written as JSON, or ``wait`` is not the id of a wait.
        """
        if self._settings.signals is None:
            raise _unset_option_error("signals", "--signals TOPIC")
        self._desk.send([signal])

    def answer_about(self, key: str) -> KeyAnswer | None:
        """Return the job's last answer about the key with a canonical text; None if it was not asked."""
        return self._answers.get(key)

    def inspect_key(self, key: str, seconds: float = INSPECT_SECONDS) -> KeyAnswer:
        """Ask the job about a key, wait for its answer, and keep it for :meth:`answer_about`.

        Args:
            key: Canonical text of the key.
            seconds: Timeout in seconds.

        Raises:
            RejectedAnswerError: No topic of signals is set, or neither a topic of answers nor a cluster.
            KafkaStreamError: The brokers cannot be reached.
            ClusterUnavailableError: The cluster does not answer.
        """
        settings = self._settings
        if settings.signals is None or not settings.can_ask:
            raise _unset_option_error("requests", "--signals TOPIC, and --answers TOPIC or --cluster URL")
        cluster = None if settings.cluster is None else ClusterRest(settings.cluster)
        requests = KeyRequests(settings.signals, settings.client, cluster, settings.answers)
        answers = requests.ask_agents(for_key_text(inspect_request(None), key), seconds)
        answer_time = time.time()
        known_answers = [answer for answer in answers if answer.get("known", True)]
        lines = [line for answer in known_answers or answers for line in describe_answer(answer)]
        behind = {str(answer.get("agent")): inputs_behind(answer) for answer in known_answers}
        shown_lines = lines or [f"The job has not answered within {seconds:g} s."]
        if len(self._answers) >= MOST_ANSWERS:
            self._answers.clear()
        self._answers[key] = key_answer = KeyAnswer(shown_lines, behind, answer_time)
        return key_answer

    def redrive_letters(self, topic: str, places: Sequence[str], to: str | None) -> dict[str, int]:
        """Send dead letters back, and return their number by target topic.

        Args:
            topic: The topic of dead letters.
            places: The letters, as ``topic/partition/offset``.
            to: The target topic; None for the one that each letter came from.

        Raises:
            RejectedAnswerError: No letter is chosen, or the chosen ones were sent back before.
            KafkaStreamError: The brokers cannot be reached, or the origin of a letter is unknown.
        """
        if topic not in self._letters or not places:
            raise _rejected_error("no dead letter is chosen", found=topic)
        wanted = set(places)
        done = redrive(topic, to, choose=lambda letter: letter.place in wanted, **self._settings.client)
        self._letters[topic].read_now()
        if not done.topics:
            raise _rejected_error("these dead letters were sent back before", found=", ".join(places)[:200])
        return done.topics

    def renew_requests(self) -> Reading[list[ApprovalRequest]] | None:
        """Read the pending requests again now, and return them; None if no topic of requests is set."""
        return None if self._requests is None else self._requests.read_now(2.0)


def _request_parts(request: str) -> tuple[str, str, str]:
    """Split a request's id: canonical text of the key, number of the run, id of the wait in the run."""
    parts = wait_of_request(request).rsplit("|", 4)
    # Another producer may write to the topic.
    return (parts[0], parts[1], "|".join(parts[2:])) if len(parts) == 5 else ("", "", "")


def _letter_row(topic: str, letter: Letter) -> DeadLetterRow:
    return DeadLetterRow(
        letter.place,
        topic,
        letter.agent,
        letter.error_type,
        redaction.hide(letter.error),
        letter.origin,
        letter.failed_key or _shown_text(letter.key),
        _shown_text(letter.value),
        letter.timestamp / 1000,
        tuple((name, _shown_text(value)) for name, value in letter.headers.pairs),
    )


def _shown_text(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = redaction.hide(value.decode("utf-8", "backslashreplace"))
    return text if len(text) <= MOST_VALUE else f"{text[:MOST_VALUE]} ... ({len(value)} bytes)"


def _read_jobs(cluster: ClusterRest) -> list[ConsoleJob]:
    jobs = jobs_in(cluster.get)
    jobs.sort(key=lambda job: (job["state"] != "RUNNING", -job["start-time"]))
    return [_read_job(cluster, job) for job in jobs[:50]]


def _read_job(cluster: ClusterRest, job: dict[str, Any]) -> ConsoleJob:
    checkpoints = (0, 0)
    problem = ""
    if job["state"] in ("RUNNING", "RESTARTING", "FAILING", "CREATED", "FAILED"):
        counts = cluster.get(f"/jobs/{job['jid']}/checkpoints").get("counts", {})
        checkpoints = counts.get("completed", 0), counts.get("failed", 0)
        if failure := last_failure(cluster.get, job["jid"]):
            problem = f"{datetime.fromtimestamp(failure.time, UTC):%H:%M:%S}Z {failure.cause}"
    tasks = {name: number for name, number in job.get("tasks", {}).items() if number and name != "total"}
    return ConsoleJob(
        job["jid"],
        job["name"],
        job["state"],
        job["start-time"] / 1000,
        tasks,
        checkpoints,
        problem,
        _backpressure(cluster, job),
    )


def _backpressure(cluster: ClusterRest, job: dict[str, Any]) -> tuple[str, ...]:
    if job["state"] != "RUNNING":
        return ()
    try:
        bottlenecks = read_flow(cluster.get, job["jid"]).bottlenecks()
    except UNKNOWN:
        # The job ended meanwhile, or another version of Flink answers.
        return ()
    return tuple(f"{bottleneck} {bottleneck.meaning}" for bottleneck in bottlenecks)


def json_of(text: str, what: str) -> Any:
    """Parse a field of a form as JSON.

    Args:
        text: The content of the field.
        what: Name of the field, for the error.

    Raises:
        RejectedAnswerError: It is not JSON.
    """

    def reject(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        value = json.loads(text, parse_constant=reject)
        # 1e999 is JSON, but Python reads it as infinity, which JSON does not have.
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, RecursionError) as error:
        raise _rejected_error(f"{what} takes JSON: {error}", found=text[:100]) from None


def _rejected_error(message: str, found: str) -> RejectedAnswerError:
    return RejectedAnswerError(message, found=found, fix="load the page again, and look at what it shows now")


def _unset_option_error(what: str, option: str) -> RejectedAnswerError:
    return RejectedAnswerError(
        f"this console cannot send {what}", expected=option, fix=f"start flink-agents ui with {option}"
    )
