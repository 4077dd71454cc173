"""Reads the answers to an approval request, and its outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from flink_agents.api.events.approvals import (
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResponse,
    wait_of_request,
)
from flink_agents.connectors.kafka.requests.latest import reader_of, records_until_now
from flink_agents.connectors.kafka.values import MAX_ERROR

OUTCOME = "flink-agents-outcome"
"""The header of the record that ends a request; it holds the outcome."""

EARLIER_MS = 5 * 60 * 1000
"""Time by which an answer may appear to be earlier than its request: clocks differ."""

_POLL_MS = 500


@dataclass(frozen=True)
class EndedRequest:
    """The end of a request.

    Attributes:
        decision: ``approved``, ``denied``, ``expired`` or ``ended``; empty if the record does not say.
        by: Who decided.
        reason: Why it was denied, or how it ended without an answer.
    """

    decision: str = ""
    by: str | None = None
    reason: str | None = None

    @property
    def approved(self) -> bool:
        """True if it was approved."""
        return self.decision == "approved"


def outcome_json(outcome: ApprovalOutcome) -> bytes:
    """Return an outcome as the header of the record that ends its request."""
    reason = None if outcome.reason is None else outcome.reason[:MAX_ERROR]
    said = {"decision": str(outcome.decision), "by": outcome.by, "reason": reason}
    return json.dumps({name: one for name, one in said.items() if one is not None}).encode()


def answers_to(request: ApprovalRequest, topic: str, client: Mapping[str, Any]) -> list[ApprovalResponse]:
    """Return the answers to a request from a topic of signals, in order.

    Raises:
        KafkaStreamError: There is no such topic, or the brokers cannot be reached.
    """
    found: list[tuple[int, ApprovalResponse]] = []
    with reader_of(topic, client) as (consumer, partitions):
        since = max(0, request.began_at - EARLIER_MS)
        starts = consumer.offsets_for_times(dict.fromkeys(partitions, since))
        ends = consumer.end_offsets(partitions)
        for one in partitions:
            start = starts.get(one)
            consumer.seek(one, ends[one] if start is None else start.offset)
        for record in records_until_now(consumer, partitions):
            answer = _answer_of(record.value, request)
            if answer is not None:
                found.append((record.timestamp, answer))
    return [answer for _, answer in sorted(found, key=lambda one: one[0])]


def _answer_of(value: bytes | None, request: ApprovalRequest) -> ApprovalResponse | None:
    try:
        said = json.loads(value or b"")
        if said["wait"] != wait_of_request(request.id) or said["value"]["id"] != request.id:
            return None
        return ApprovalResponse.model_validate(said["value"])
    except (ValueError, LookupError, TypeError, RecursionError, ValidationError):
        # Another signal, or an invalid one.
        return None


def ended_by(
    request: ApprovalRequest,
    topic: str,
    client: Mapping[str, Any],
    seconds: float,
    read: Callable[[bytes], ApprovalRequest],
) -> EndedRequest | None:
    """Wait for the record that ends a request; None if the time-out comes first.

    Args:
        request: The request.
        topic: The topic of requests.
        client: Options of kafka-python for the connection.
        seconds: Timeout.
        read: Parses a request.

    Raises:
        KafkaStreamError: There is no such topic, or the brokers cannot be reached.
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
                            return _ended(record.headers)
                    elif _is(record.value, request, read):
                        keys.add((record.partition, record.key))
            if time.monotonic() >= deadline:
                return None


def key_of(request: ApprovalRequest) -> str:
    """Return the key of a request's records. Two agents can have runs with the same key and number."""
    return f"{request.agent}|{request.id}"


def _is(value: bytes, request: ApprovalRequest, read: Callable[[bytes], ApprovalRequest]) -> bool:
    try:
        found = read(value)
    except ValueError:
        return False
    return (found.agent, found.id) == (request.agent, request.id)


def _ended(headers: Any) -> EndedRequest:
    for name, value in headers or ():
        if name == OUTCOME:
            try:
                said = json.loads(value)
                return EndedRequest(str(said["decision"]), said.get("by"), said.get("reason"))
            except (ValueError, LookupError, TypeError, AttributeError):
                break
    return EndedRequest()
