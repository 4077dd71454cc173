"""What the writer asks of kafka-python in one turn; the producer is the test's."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from kafka.errors import KafkaTimeoutError, UnknownError

from flink_agents.api.action_state import Owner
from flink_agents.api.errors import AppendOutcomeUnknownError, StoreUnavailableError
from flink_agents.connectors.action_state.group_writer import StoreMetrics
from flink_agents.connectors.action_state.kafka.garbage import Garbage
from flink_agents.connectors.action_state.kafka.layout import Entry
from flink_agents.connectors.action_state.kafka.ownership.lease import OwnerStatus
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.topics import Topic
from flink_agents.connectors.action_state.kafka.writer import KafkaWrite, KafkaWriter
from tests.kafka.kafka_stores import journal_in, record

SETTINGS = KafkaSettings("nowhere:1", partitions=4, append_lease_seconds=0)
JOURNALS = Topic("journals", uuid.UUID(int=2), 4)
NOBODY: Any = None


class Report:
    """Of a batch: it is there when somebody waits for it.

    Args:
        error: What becomes of the batch; None where it is stored.
    """

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.is_done = False
        self.offset = 7
        self.value = self

    def get(self, *_: Any, timeout: float = 0) -> Report:
        self.is_done = True
        if self._error is not None:
            raise self._error
        return self


class Producer:
    """Notes what it is asked.

    Args:
        refused: The partition for which it takes nothing.
        lost: The partition of which nothing is acknowledged.
    """

    def __init__(self, refused: int | None = None, lost: int | None = None) -> None:
        self.asked: list[str] = []
        self._refused = refused
        self._lost = lost

    def send(self, topic: str, key: bytes, value: bytes | None, partition: int) -> Report:
        self.asked.append("send")
        if partition == self._refused:
            raise KafkaTimeoutError("no room")
        return Report(UnknownError("lost") if partition == self._lost else None)


def turn(producer: Producer) -> list[Any]:
    """The outcomes of a turn with an append to each partition."""
    free = OwnerStatus({}, undecided=False, lost=False)
    remaining_arguments = (
        Owner.create("job-1", "a"),
        NOBODY,
        Garbage(),
        {},
        NOBODY,
        StoreMetrics(),
        lambda waiting: None,
    )
    claims: Any = SimpleNamespace(
        refresh=lambda _: None,
        void_from=lambda _: free.void,
        is_undecided=lambda _: free.undecided,
        is_lost=lambda _: free.lost,
    )
    untyped_producer: Any = producer
    writer = KafkaWriter(SETTINGS, JOURNALS, untyped_producer, claims, *remaining_arguments)
    writes = [KafkaWrite(Entry(journal_in(SETTINGS, partition), [record()])) for partition in range(4)]
    return writer._write_batch(writes)


def test_a_turn_is_a_batch_for_each_partition() -> None:
    producer = Producer()
    assert turn(producer) == [None] * 4
    assert producer.asked == ["send"] * 4


def test_a_partition_that_takes_nothing_does_not_keep_others_from_being_written() -> None:
    outcomes = turn(Producer(refused=1))
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreUnavailableError] + [type(None)] * 2


def test_a_batch_that_is_not_acknowledged_leaves_others_done() -> None:
    outcomes = turn(Producer(lost=2))
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 2 + [
        AppendOutcomeUnknownError,
        type(None),
    ]
