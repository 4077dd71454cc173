"""Sends the answers to requests about keys to a Kafka topic, if the job names one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from flink_agents import redaction
from flink_agents.api.agents.observers import RunObserver
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors.trace import TraceOptionError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.trace.answers import answer_line
from flink_agents.trace.queued_sink import QueuedSink
from flink_agents.trace.sinks.kafka_topic import KafkaTopic

_log = bounded_logger("flink_agents.requests")

MOST_WAITING = 1_000
"""Answers that can wait for the brokers. Further ones are dropped, and logged."""

MOST_CHARACTERS = 500_000
"""Length of an answer, so that brokers with default settings accept it."""

CLOSE_SECONDS = 5.0

Pair = tuple[bytes, bytes]


class AnswerTopic(RunObserver):
    """Sends each answer to a topic, keyed by its request.

    A separate thread sends them, so brokers that do not answer neither block nor fail the job.

    Args:
        topic: The topic.
    """

    def __init__(self, topic: KafkaTopic) -> None:
        self._queue = QueuedSink[Pair]("answers", _Pairs(topic), MOST_WAITING, _log_dropped)

    @override
    def request_answered(self, key_text: str, answer: Mapping[str, Any]) -> None:
        """Queue an answer for the topic, or drop and log it if the queue is full."""
        request = str(answer.get("request") or "")
        line = redaction.hide(answer_line(answer, MOST_CHARACTERS))
        try:
            self._queue.write([(request.encode("utf-8", "replace"), line.encode("utf-8", "replace"))])
        except BufferError as error:
            _log_dropped(1, error)

    @override
    def closed(self) -> None:
        """Send the queued answers, and close the client; waits at most :data:`CLOSE_SECONDS`."""
        self._queue.flush(CLOSE_SECONDS)
        self._queue.end()


class _Pairs:
    """The sink of queued pairs of request and answer.

    Args:
        topic: Sends them.
    """

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic

    def write(self, records: Sequence[Pair]) -> None:
        """Send pairs of request and answer, and wait for the acknowledgements."""
        self._topic.send_records(records)

    def close(self) -> None:
        """Close the client."""
        self._topic.close()


def answer_topic_of(config: Configuration) -> AnswerTopic | None:
    """Create the sender of answers from the options of a job; return None if they name no topic.

    Raises:
        TraceOptionError: They name a topic and no broker.
    """
    topic = config.get(AgentOptions.ANSWERS_TOPIC)
    if not topic:
        return None
    servers = config.get(AgentOptions.ANSWERS_SERVERS)
    if not servers:
        raise TraceOptionError(
            f"the topic {topic!r} for answers to requests has no broker",
            expected=f"the option {AgentOptions.ANSWERS_SERVERS.key}",
            found="nothing",
            fix=f"set {AgentOptions.ANSWERS_SERVERS.key}, for example to 'localhost:9092'",
        )
    client = config.below(AgentOptions.ANSWERS_CLIENT.key)
    return AnswerTopic(KafkaTopic(servers, topic, client, creates=False))


def _log_dropped(number: int, error: BaseException) -> None:
    if number:
        _log.warning(
            "%s answer(s) to requests did not reach their topic; the log has them: %s", number, repr(error)
        )
    else:
        _log.warning("the Kafka client of answers to requests could not be closed: %s", repr(error))
