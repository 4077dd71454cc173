"""Sends dead letters in transactions, and tells a letter that cannot be sent from brokers that are away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.connectors.kafka.client import create_client
from flink_agents.connectors.kafka.dead_letters.letter import Letter
from flink_agents.connectors.kafka.headers import ORIGIN, without_letter
from flink_agents.kafka_clients import headers_to_send

MAX_BLOCK_MS = 15_000
"""Time that a letter waits for the partitions of its topic."""


class LetterRejectedError(Exception):
    """A letter cannot be sent, however often that is tried. The message has the reason."""


class BrokersRejectedError(LetterRejectedError):
    """The brokers rejected a letter that the producer had accepted, so its transaction failed."""


@dataclass(frozen=True)
class UnsendableLetter:
    """A letter that cannot be sent.

    Attributes:
        place: Its place in the topic of dead letters: ``topic/partition/offset``.
        reason: Why it cannot be sent.
    """

    place: str
    reason: str


def rejection_reason(letter: Letter, topic: str) -> str | None:
    """Return the reason why no brokers can take a letter; None if they can.

    Args:
        letter: The letter.
        topic: Its target; empty if its origin is unknown.
    """
    if not topic:
        return f"its origin is unknown (no header {ORIGIN}): name the topic with --to"
    if letter.missing is not None:
        return letter.missing
    if letter.key is None and letter.value is None:
        return "it has neither key nor value"
    return None


class LetterSender:
    """Sends letters, and stores the read position, in common transactions.

    Args:
        group: The consumer group that stores the read position. It is the transactional id as well.
        max_request_size: Maximum size of a letter in bytes; None for the default of kafka-python.
        client: Options of kafka-python.
    """

    def __init__(self, group: str, max_request_size: int | None, client: Mapping[str, Any]) -> None:
        from kafka import errors

        options: dict[str, Any] = {"max_block_ms": MAX_BLOCK_MS, **client}
        if max_request_size is not None:
            options["max_request_size"] = max_request_size
        self._group = group
        self._options = options
        self._missing_topics: set[str] = set()
        self._rejections = (
            errors.MessageSizeTooLargeError,
            errors.RecordListTooLargeError,
            errors.InvalidTimestampError,
            errors.InvalidRecordError,
            errors.InvalidTopicError,
            errors.UnknownTopicOrPartitionError,
            errors.TopicAuthorizationFailedError,
            errors.PolicyViolationError,
            TypeError,
            ValueError,
        )
        self._timeout = errors.KafkaTimeoutError
        self._producer = self._new_producer()

    def _new_producer(self) -> Any:
        from kafka import KafkaProducer

        producer: Any = create_client(KafkaProducer, transactional_id=self._group, **self._options)
        # This also aborts what another producer has left open.
        producer.init_transactions()
        return producer

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def deliver_letters(
        self,
        letters: Sequence[tuple[Letter, str | None]],
        position: Callable[[], Mapping[Any, Any]],
    ) -> None:
        """Send letters, and store the read position, in one transaction; wait until it is committed.

        Args:
            letters: Each letter, and its target topic; None for a letter that is left out.
            position: Returns the offsets to commit. Called after the brokers have accepted all letters.

        Raises:
            LetterRejectedError: A letter cannot be sent. The transaction was aborted.
        """
        producer = self._producer
        producer.begin_transaction()
        try:
            sent = [self._send_letter(letter, topic) for letter, topic in letters if topic is not None]
            producer.flush()
            self._check_sent(sent)
            producer.send_offsets_to_transaction(position(), self._group)
            producer.commit_transaction()
        except BrokersRejectedError:
            # kafka-python continues with wrong sequence numbers.
            producer.close(timeout=0)
            self._producer = self._new_producer()
            raise
        except BaseException:
            producer.abort_transaction()
            raise

    def _send_letter(self, letter: Letter, topic: str) -> Any:
        """Pass a letter to the producer, and return the future of its acknowledgement.

        Waits up to :data:`MAX_BLOCK_MS` for the partitions of the topic.

        Raises:
            LetterRejectedError: The letter cannot be sent, or the topic does not exist.
        """
        reason = rejection_reason(letter, topic)
        if topic in self._missing_topics:
            reason = f"topic {topic!r} does not exist"
        if reason is not None:
            raise LetterRejectedError(reason)
        try:
            return self._producer.send(
                topic,
                value=letter.value,
                key=letter.key,
                headers=headers_to_send(without_letter(letter.headers).pairs),
                timestamp_ms=letter.timestamp,
            )
        except self._rejections as error:
            raise LetterRejectedError(_describe_error(error)) from error
        except self._timeout as error:
            if self._producer.bootstrap_connected() and not self._may_have_topic(topic):
                self._missing_topics.add(topic)
                raise LetterRejectedError(f"topic {topic!r} does not exist") from error
            raise

    def _may_have_topic(self, topic: str) -> bool:
        """Return True if a topic exists, or if the brokers do not say."""
        try:
            return bool(self._producer.partitions_for(topic))
        except self._timeout:
            return False

    def _check_sent(self, sent: Sequence[Any]) -> None:
        """Check that the brokers have accepted all letters.

        Args:
            sent: The futures of kafka-python, one for each letter.

        Raises:
            BrokersRejectedError: They rejected one for good. Other exceptions are raised as they are.
        """
        failures = [future.exception for future in sent if not future.succeeded()]
        # Letters behind a rejected one fail as well, for reasons of their own.
        for failure in failures:
            if isinstance(failure, self._rejections):
                raise BrokersRejectedError(_describe_error(failure)) from failure
        for failure in failures:
            raise failure


def _describe_error(error: BaseException) -> str:
    name = type(error).__name__
    text = str(error)
    return text if text.startswith(name) else f"{name}: {text}"
