"""Sends requests about keys to a running job, and reads its answers from a topic or the logs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flink_agents.api.events.key_requests import REPLY_MARK
from flink_agents.api.events.signals import Signal
from flink_agents.connectors.kafka.client import translate_client_errors
from flink_agents.connectors.kafka.requests.desk import KafkaApprovals
from flink_agents.connectors.kafka.requests.latest import reader_of
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.trace.log_lines import read_marked

PAUSE_SECONDS = 0.5

GRACE_SECONDS = 2.0
"""Time to wait for further answers: each agent that reads the topic gives one."""

ANSWERS = "the topic that the job's option answers.kafka.topic names"

Read = Callable[[], list[dict[str, Any]]]
"""Waits for a short time, and returns all answers since it was made."""


@dataclass(frozen=True)
class KeyRequests:
    """Sends requests through a topic of signals.

    Attributes:
        topic: The topic that the job reads signals from.
        client: Options of kafka-python for the connection.
        rest: The cluster whose logs have the answers; None for none.
        answers: The topic of answers, which is read instead of logs; None for none.
    """

    topic: str
    client: Mapping[str, Any]
    rest: ClusterRest | None = None
    answers: str | None = None

    @property
    def can_read_answers(self) -> bool:
        """True if a topic of answers or a cluster is set."""
        return self.rest is not None or self.answers is not None

    def ask_agents(
        self, request: Signal, seconds: float, ends: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Send a request; wait for answers, and return the last one of each agent.

        Empty if none comes in time.

        Args:
            request: The request.
            seconds: Timeout in seconds.
            ends: Outcomes that end the request, the best one first; an agent with that one ends the wait at
                once. None: any outcome ends it.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
            ClusterUnavailableError: The cluster does not answer.
        """
        # A topic is read from its end, so it is opened before the request is sent.
        with self._open_reader() as read:
            KafkaApprovals(self.topic, **self.client).send([request])
            return [] if read is None else _wait_for_answers(read, request.id, seconds, ends)

    @contextmanager
    def _open_reader(self) -> Iterator[Read | None]:
        if self.answers is not None:
            with translate_client_errors(), _topic_reader(self.answers, self.client) as read:
                yield read
        elif self.rest is not None:
            yield log_reader(self.rest)
        else:
            yield None


def _wait_for_answers(
    read: Read, request: str | None, seconds: float, ends: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Read answers until one has the best outcome, all have ended, or the time is over.

    After the first end, other agents have :data:`GRACE_SECONDS` to answer.
    """
    deadline = time.monotonic() + seconds
    complete_since = 0.0
    while True:
        answers = last_answers(read(), request)
        now = time.monotonic()
        outcomes = {str(answer.get("outcome")) for answer in answers}
        if (ends and ends[0] in outcomes) or now >= deadline:
            return answers
        if answers and (ends is None or outcomes <= set(ends)):
            complete_since = complete_since or now
            if now - complete_since >= GRACE_SECONDS:
                return answers


def last_answers(answers: list[dict[str, Any]], request: str | None) -> list[dict[str, Any]]:
    """Return the last answer of each agent to the request with an id."""
    request_answers = [answer for answer in answers if answer.get("request") == request]
    request_answers.sort(key=lambda answer: _answer_time(answer.get("time")))
    return list({str(answer.get("agent")): answer for answer in request_answers}.values())


def _answer_time(value: Any) -> float:
    """Return the time of an answer; 0 if it has none."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def log_reader(rest_client: ClusterRest) -> Read:
    """Return a function that reads all answers in the logs of TaskManagers; it pauses between two calls."""
    looked = False

    def read() -> list[dict[str, Any]]:
        nonlocal looked
        if looked:
            time.sleep(PAUSE_SECONDS)
        looked = True
        return [answer for log in rest_client.task_logs() for answer in read_marked(log, REPLY_MARK)]

    return read


@contextmanager
def _topic_reader(topic: str, client: Mapping[str, Any]) -> Iterator[Read]:
    with reader_of(topic, client, ANSWERS) as (consumer, partitions):
        consumer.seek_to_end(*partitions)
        for partition in partitions:
            # The seek is lazy: without this, it could be after the answer.
            consumer.position(partition)
        answers: list[dict[str, Any]] = []

        def read() -> list[dict[str, Any]]:
            for records in consumer.poll(timeout_ms=int(PAUSE_SECONDS * 1000)).values():
                answers.extend(
                    answer for record in records if (answer := _parse_answer(record.value)) is not None
                )
            return list(answers)

        yield read


def _parse_answer(value: bytes | None) -> dict[str, Any] | None:
    """Parse a record of the topic of answers; return None if another producer wrote something else."""
    try:
        parsed = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
