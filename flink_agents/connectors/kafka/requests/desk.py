"""``KafkaApprovals``: lists and answers the approval requests of agents; for operators and web backends.

Requests are in a compacted topic, by their ids: a request as JSON, and a record without a value once it has
ended. Signals are in a separate topic, from which a job reads them. The
answers to a request are among them. Neither needs Flink.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import KafkaStreamError, KafkaValueError, KeyEncodingError
from flink_agents.api.events.approvals import (
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResponse,
    plain,
    wait_of_request,
    writable,
)
from flink_agents.api.events.signals import Signal
from flink_agents.connectors.kafka.client import check_topic, create_client, translate_client_errors
from flink_agents.connectors.kafka.requests.latest import (
    UnexpectedRecord,
    latest_values,
    reader_of,
    records_until_now,
)
from flink_agents.connectors.kafka.requests.signal_keys import KeyReader, canonical_text, key_as_json
from flink_agents.connectors.kafka.values import MAX_ERROR, write_value
from flink_agents.kafka_clients import close_producer

OUTCOME = "flink-agents-outcome"
"""The header of the record that ends a request; it holds the outcome."""

EARLIER_MS = 5 * 60 * 1000
"""Time by which an answer may appear to be earlier than its request: clocks differ."""

LAST_MS = 253_402_300_799_999
"""The last time of the year 9999: brokers and calendars have no later one."""

_POLL_MS = 500

_LOADED_CLASSES = KeyReader()


@dataclass(frozen=True)
class EndedRequest:
    """The end of a request for approval.

    Attributes:
        decision: ``approved``, ``denied``, ``expired`` or ``ended``; empty if the record does not say.
        by: Name of the person who decided; None if it is not known.
        reason: Why it was denied, or how it ended without an answer; None if the record does not say.
    """

    decision: str = ""
    by: str | None = None
    reason: str | None = None

    @property
    def approved(self) -> bool:
        """True if the decision is ``approved``."""
        return self.decision == "approved"


def outcome_json(outcome: ApprovalOutcome) -> bytes:
    """Encode an outcome as the header of the record that ends its request."""
    reason = None if outcome.reason is None else outcome.reason[:MAX_ERROR]
    values = {"decision": str(outcome.decision), "by": outcome.by, "reason": reason}
    return json.dumps({name: value for name, value in values.items() if value is not None}).encode()


def answers_to(request: ApprovalRequest, topic: str, client: Mapping[str, Any]) -> list[ApprovalResponse]:
    """Read the answers to a request from a topic of signals, in the order of their timestamps.

    Only records from five minutes before the request on are read. Other signals are skipped.

    Args:
        request: The request.
        topic: The topic of signals.
        client: Options of kafka-python.

    Raises:
        KafkaStreamError: The topic does not exist, or the brokers cannot be reached.
    """
    timed_answers: list[tuple[int, ApprovalResponse]] = []
    with reader_of(topic, client) as (consumer, partitions):
        since = max(0, request.began_at - EARLIER_MS)
        starts = consumer.offsets_for_times(dict.fromkeys(partitions, since))
        ends = consumer.end_offsets(partitions)
        for partition in partitions:
            start = starts.get(partition)
            consumer.seek(partition, ends[partition] if start is None else start.offset)
        for record in records_until_now(consumer, partitions):
            answer = _answer_of(record.value, request)
            if answer is not None:
                timed_answers.append((record.timestamp, answer))
    return [answer for _, answer in sorted(timed_answers, key=lambda timed_answer: timed_answer[0])]


def _answer_of(value: bytes | None, request: ApprovalRequest) -> ApprovalResponse | None:
    try:
        answer = json.loads(value or b"")
        if answer["wait"] != wait_of_request(request.id) or answer["value"]["id"] != request.id:
            return None
        return ApprovalResponse.model_validate(answer["value"])
    except (ValueError, LookupError, TypeError, RecursionError, ValidationError):
        # Another signal, or an invalid one.
        return None


def wait_for_ended_request(
    request: ApprovalRequest,
    topic: str,
    client: Mapping[str, Any],
    seconds: float,
    read: Callable[[bytes], ApprovalRequest],
) -> EndedRequest | None:
    """Wait until a topic has the record that ends a request, and return how it ended; None after a timeout.

    Args:
        request: The request.
        topic: The topic of requests.
        client: Options of kafka-python for the connection.
        seconds: Timeout in seconds.
        read: Parses a request.

    Raises:
        KafkaStreamError: The topic does not exist, or the brokers cannot be reached.
    """
    deadline = time.monotonic() + seconds
    keys: set[tuple[int, bytes | None]] = set()
    with reader_of(topic, client) as (consumer, partitions):
        consumer.seek_to_beginning(*partitions)
        while True:
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    if record.value is None:
                        if (record.partition, record.key) in keys or record.key == key_of(request).encode():
                            return _read_ended_request(record.headers)
                    elif _is_request(record.value, request, read):
                        keys.add((record.partition, record.key))
            if time.monotonic() >= deadline:
                return None


def key_of(request: ApprovalRequest) -> str:
    """Return the key of a request's records. Two agents can have runs with the same key and number."""
    return f"{request.agent}|{request.id}"


def _is_request(value: bytes, request: ApprovalRequest, read: Callable[[bytes], ApprovalRequest]) -> bool:
    try:
        stored_request = read(value)
    except ValueError:
        return False
    return (stored_request.agent, stored_request.id) == (request.agent, request.id)


def _read_ended_request(headers: Any) -> EndedRequest:
    for name, value in headers or ():
        if name == OUTCOME:
            try:
                values = json.loads(value)
                return EndedRequest(str(values["decision"]), values.get("by"), values.get("reason"))
            except (ValueError, LookupError, TypeError, AttributeError):
                break
    return EndedRequest()


_log = bounded_logger("flink_agents.kafka")

SECONDS = 30.0
"""Timeout of a broker's answer, in seconds."""

_REQUEST = TypeAdapter(ApprovalRequest)

_WAIT = re.compile(r"(?s:.+)\|[0-9]{1,20}\|[^|]*\|[^|]*\|[0-9]+")
"""The id of a wait. The key comes first, and may contain any character."""


class KafkaApprovals:
    """Lists pending requests for approvals, and sends signals.

    Args:
        signals: The topic from which the job reads signals. None: no signals or answers can be sent.
        requests: The topic that ``approvals_to_kafka`` writes. None: no requests can be listed.
        **client: Options of kafka-python for the connection, ``bootstrap_servers`` among them.

    Raises:
        KafkaStreamError: Signals and requests have the same topic.

    Attributes:
        foreign: Records of the topic of requests that are no requests, as :meth:`pending` last read them.
    """

    def __init__(self, signals: str | None = None, requests: str | None = None, **client: Any) -> None:
        if signals is not None and signals == requests:
            raise KafkaStreamError(
                "signals and requests need a topic each",
                expected="two topics: a job would read each request as a signal",
                found=repr(signals),
                fix=f"name another one: requests={f'{requests}-requests'!r}",
            )
        self._signals = signals
        self._requests = requests
        self._client = client
        self._warned = set[UnexpectedRecord]()
        self.foreign: tuple[UnexpectedRecord, ...] = ()

    @property
    def signals_topic(self) -> str | None:
        """The topic from which the job reads signals; None if nothing can be sent."""
        return self._signals

    def create_topics(self, partitions: int = 1, replication: int = 1) -> None:
        """Create those of the two topics that do not exist. The topic of requests is compacted.

        Args:
            partitions: Number of partitions of each topic.
            replication: Number of replicas of each partition.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or reject the request.
        """
        from kafka import KafkaAdminClient
        from kafka.errors import TopicAlreadyExistsError

        sizes = {"num_partitions": partitions, "replication_factor": replication}
        topic_options = {
            self._signals: sizes,
            self._requests: {**sizes, "configs": {"cleanup.policy": "compact"}},
        }
        with translate_client_errors():
            admin = create_client(KafkaAdminClient, **self._client)
            try:
                for name, options in topic_options.items():
                    if name is not None and name not in admin.list_topics():
                        try:
                            admin.create_topics({name: options})
                        except TopicAlreadyExistsError:
                            continue
            finally:
                admin.close()

    def send(self, signals: Iterable[Signal]) -> None:
        """Send signals, and wait until the brokers have them. The topic is never created.

        Args:
            signals: The signals. Those of one key keep their order.

        Raises:
            KafkaStreamError: The brokers cannot be reached, have no such topic, or do not answer in 30
                seconds.
            KafkaValueError: A value cannot be written as JSON, or ``wait`` is not the id of a wait.
            KeyEncodingError: A key is of a type that no run can have.
        """
        from kafka import KafkaProducer

        if self._signals is None:
            raise _unset_topic_error("sends signals", "signals")
        records = [(message_key(signal), signal_json(signal)) for signal in signals]
        with translate_client_errors():
            options = {"acks": "all", "allow_auto_create_topics": False, **self._client}
            producer = create_client(KafkaProducer, **options)
            try:
                check_topic(self._signals, self._client, "the topic that the job reads signals from")
                send_futures = [producer.send(self._signals, key=key, value=value) for key, value in records]
                for future in send_futures:
                    future.get(timeout=SECONDS)
            finally:
                close_producer(producer, SECONDS)

    def answer(self, response: ApprovalResponse) -> None:
        """Send an answer to the request whose id it has, and wait until the brokers have it.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
        """
        request = ApprovalRequest(response.id, "", "", None, "")
        self.send([request.answer(response)])

    def pending(self) -> list[ApprovalRequest]:
        """Return the pending requests, as far as their topic shows, the oldest first.

        A request is pending until the job has processed its answer. A record that is not a request
        is skipped, counted in :attr:`foreign`, and logged once as a warning with its offset.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
        """
        if self._requests is None:
            raise _unset_topic_error("lists requests", "requests")
        with translate_client_errors():
            requests, self.foreign = latest_values(self._requests, self._client, read_request)
        for foreign_record in self.foreign:
            if foreign_record not in self._warned:
                self._warned.add(foreign_record)
                _log.warning("%s", foreign_record)
        return sorted(requests, key=lambda request: (request.began_at, request.id))

    def answered(self, request: ApprovalRequest) -> list[ApprovalResponse]:
        """Return the answers to a request from the topic of signals, in order.

        The job uses the first valid answer; later ones are unmatched signals.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
        """
        if self._signals is None:
            raise _unset_topic_error("reads signals", "signals")
        with translate_client_errors():
            return answers_to(request, self._signals, self._client)

    def outcome(self, request: ApprovalRequest, seconds: float) -> EndedRequest | None:
        """Wait until a request has ended, and return how; None if it is still pending after the timeout.

        Args:
            request: The request.
            seconds: Timeout in seconds.

        Raises:
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
        """
        if self._requests is None:
            raise _unset_topic_error("waits for outcomes", "requests")
        with translate_client_errors():
            return wait_for_ended_request(request, self._requests, self._client, seconds, read_request)


# -- formats -------------------------------------------------------------------------


def signal_json(signal: Signal) -> bytes:
    """Encode a signal as the value of a record, for :func:`read_signal`.

    Raises:
        KafkaValueError: Its value cannot be written as JSON, or ``wait`` is not the id of a wait.
        KeyEncodingError: Its key is of a type that no run can have.
    """
    if signal.wait is not None and not _WAIT.fullmatch(signal.wait):
        raise KafkaValueError(
            "a signal has an invalid id of a wait",
            expected="key|number|action|task|place, as in ctx.wait_for_signal(...).id",
            found=repr(signal.wait)[:MAX_ERROR],
            fix="pass the id that the action emitted, or the key of the run",
        )
    signal_fields = {field.name: getattr(signal, field.name) for field in fields(signal)}
    # The wait's id contains the key.
    signal_fields["key"] = None if signal.wait is not None else key_as_json(signal.key)
    written = write_value(
        {name: value for name, value in signal_fields.items() if value is not None}, "value"
    )
    assert written is not None
    return written


def read_signal(signal: Signal, keys: KeyReader = _LOADED_CLASSES) -> Signal:
    """Return a signal that was parsed from JSON, with its key decoded.

    Without a key, the signal gets the key that is part of the id of its wait.

    Args:
        signal: The signal, whose key is a JSON value.
        keys: Decodes the key.

    Raises:
        ValueError: The wait has no key, or the key is of a type that no run can have.
    """
    if signal.key is None and signal.wait is not None:
        key = _key_of_wait(signal.wait, keys)
    else:
        try:
            key = keys.read(signal.key)
        except KeyEncodingError as error:
            raise ValueError(f"no run has the key {signal.key!r}"[:MAX_ERROR]) from error
    return Signal(signal.name, signal.value, key, signal.id, signal.wait)


@dataclass(frozen=True)
class SignalReader:
    """Decodes the keys of signals that a job reads.

    Attributes:
        keys: Decodes a key.
    """

    keys: KeyReader

    def __call__(self, signal: Signal) -> Signal:
        """Return a signal with its key decoded; raise ``ValueError`` if that is not possible."""
        return read_signal(signal, self.keys)


def request_json(request: ApprovalRequest) -> bytes:
    """Encode a request as the value of a record, for :func:`read_request`."""
    shown = {"key": plain(request.key), "what": request.what, "arguments": plain(dict(request.arguments))}
    return _REQUEST.dump_json(ApprovalRequest(**{**vars(request), **writable(shown)}))


def read_request(value: bytes) -> ApprovalRequest:
    """Parse a request from the value of a record, with its key decoded.

    Raises:
        KafkaValueError: The record holds no request.
    """
    try:
        parsed_request = _REQUEST.validate_json(value)
        if not all(
            0 <= time_ms <= LAST_MS for time_ms in (parsed_request.began_at, parsed_request.expires_at or 0)
        ):
            raise ValueError("no calendar has one of its times")
        return ApprovalRequest(
            **{**vars(parsed_request), "key": _shown_key(wait_of_request(parsed_request.id))}
        )
    except ValueError as error:
        raise KafkaValueError(
            "a record is not a request for an approval",
            expected="a record of approvals_to_kafka",
            found=str(error)[:MAX_ERROR],
            fix="use a separate topic for requests",
        ) from error


def request_with(name: str, requests: Iterable[ApprovalRequest]) -> ApprovalRequest | None:
    """Return the pending request with an id; None if there is none.

    Args:
        name: The id.
        requests: The pending requests.

    Raises:
        KafkaValueError: Requests with this id differ, so that one could approve what another one shows.
    """
    matches = [request for request in requests if request.id == name]
    if any(
        (request.what, request.arguments) != (matches[0].what, matches[0].arguments) for request in matches
    ):
        raise KafkaValueError(
            "several requests have the same id, and ask for different things",
            expected="one request: the id covers what it asks for",
            found=f"{name}: {', '.join(f'{request.what} of {request.agent}' for request in matches)}"[
                :MAX_ERROR
            ],
            fix="find out who else writes to the topic of requests, and restrict who may",
        )
    return matches[0] if matches else None


def _shown_key(wait: str) -> Any:
    """Return the key in the id of a wait; its canonical text if this program lacks its class."""
    try:
        return _key_of_wait(wait)
    except ValueError:
        canonical = wait.rsplit("|", 4)[0]
        if canonical[:1] not in ("c", "e") or not _WAIT.fullmatch(wait):
            raise
        return canonical


def _key_of_wait(wait: str, keys: KeyReader = _LOADED_CLASSES) -> Any:
    try:
        return keys.decode(wait.rsplit("|", 4)[0])
    except KeyEncodingError as error:
        raise ValueError(f"{wait!r} is not the id of a wait") from error


def message_key(signal: Signal) -> bytes:
    """Return the key of a signal's record: its canonical text, so that signals of one key keep their order.

    Raises:
        KeyEncodingError: The key is of a type that no run can have.
    """
    text = signal.wait.rsplit("|", 4)[0] if signal.wait is not None else canonical_text(signal.key)
    return text.encode()


def _unset_topic_error(does: str, argument: str) -> KafkaStreamError:
    return KafkaStreamError(
        f"a KafkaApprovals that {does} needs their topic",
        expected=f"{argument}='...'",
        fix=f"name the topic: KafkaApprovals({argument}='...')",
    )
