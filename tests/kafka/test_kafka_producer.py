"""The producer of the store ``kafka`` on a real broker, whose answers the tests change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import errors
from kafka.future import Future
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.structs import TopicPartition

from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.topics import find_topics
from flink_agents.kafka_producer import DirectProducer

SECONDS = 60.0
NOT_LEADER = errors.NotLeaderForPartitionError.errno
REFUSED = errors.PolicyViolationError.errno


@pytest.fixture
def producer(settings: KafkaSettings) -> Iterator[DirectProducer]:
    find_topics(settings, create=True)
    producer = settings.create_producer()
    yield producer
    producer.close()


def stored(settings: KafkaSettings, partition: int = 0) -> list[bytes]:
    """The values of all records of a partition."""
    consumer: Any = settings.create_consumer()
    place = TopicPartition(settings.topic, partition)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        values: list[bytes] = []
        while consumer.position(place) < end:
            values += [record.value for record in consumer.poll(200).get(place, [])]
        return values
    finally:
        consumer.close()


class Answers:
    """Stands between a producer and its broker.

    Args:
        producer: The producer.
        kind: The class of the requests that it notes, and whose answers it changes.
        changes: What becomes of their first answers, in order: an error, or a function of the answer.
    """

    def __init__(
        self, producer: DirectProducer, kind: type, *changes: Exception | Callable[[Any], None]
    ) -> None:
        self._send = producer._client.send
        self._kind = kind
        self._changes = list(changes)
        self.requests: list[Any] = []
        producer._client.send = self.send

    def send(self, node: Any, request: Any) -> Any:
        sent = self._send(node, request)
        if not isinstance(request, self._kind):
            return sent
        self.requests.append(request)
        if not self._changes:
            return sent
        change = self._changes.pop(0)
        changed = Future()

        def answer(response: Any) -> None:
            if isinstance(change, Exception):
                changed.failure(change)
            else:
                change(response)
                changed.success(response)

        return sent.add_callback(answer) and changed


def with_code(code: int) -> Callable[[Any], None]:
    """An answer with an error for each partition."""

    def change(response: Any) -> None:
        for topic in response.responses:
            for partition in topic.partition_responses:
                partition.error_code = code

    return change


def test_records_are_stored_in_order_with_one_request_per_turn(
    settings: KafkaSettings, producer: DirectProducer
) -> None:
    answers = Answers(producer, ProduceRequest)
    producer.send(settings.topic, b"k", b"first", 0).get(SECONDS)
    for turn in range(5):
        reports = [
            producer.send(settings.topic, b"k", f"{turn} {number}".encode(), number % settings.partitions)
            for number in range(20)
        ]
        assert [report.is_done for report in reports] == [False] * 20
        producer.wait_for(None, SECONDS)
        assert all(report.is_done for report in reports)
        assert reports[-1].get(0).offset > reports[3].get(0).offset
    assert len(answers.requests) == 6
    expected = [
        f"{turn} {number}".encode() for turn in range(5) for number in range(0, 20, settings.partitions)
    ]
    assert stored(settings) == [b"first", *expected]


@pytest.mark.parametrize(
    "lost", [errors.KafkaConnectionError("lost"), with_code(NOT_LEADER)], ids=["connection", "leader"]
)
def test_a_request_without_an_answer_is_repeated_and_stored_once(
    settings: KafkaSettings, producer: DirectProducer, lost: Any
) -> None:
    answers = Answers(producer, ProduceRequest, lost, lost)
    first = producer.send(settings.topic, b"k", b"1", 0)
    second = producer.send(settings.topic, b"k", b"2", 1)
    assert (first.get(SECONDS).offset, second.get(SECONDS).offset) == (0, 0)
    assert producer.send(settings.topic, b"k", b"3", 0).get(SECONDS).offset == 1
    assert len(answers.requests) == 4
    assert (stored(settings, 0), stored(settings, 1)) == ([b"1", b"3"], [b"2"])


def test_a_record_that_is_refused_does_not_keep_later_ones_from_being_stored(
    settings: KafkaSettings, producer: DirectProducer
) -> None:
    """It may be stored or not: as here, where the refusal is not true."""
    Answers(producer, ProduceRequest, with_code(REFUSED))
    with pytest.raises(errors.PolicyViolationError):
        producer.send(settings.topic, b"k", b"1", 0).get(SECONDS)
    assert producer.send(settings.topic, b"k", b"2", 0).get(SECONDS).offset == 1
    assert producer.send(settings.topic, b"k", b"3", 0).get(SECONDS).offset == 2
    assert stored(settings) == [b"1", b"2", b"3"]


def test_an_identity_that_is_refused_fails_what_waits(
    settings: KafkaSettings, producer: DirectProducer
) -> None:
    def change(code: int) -> Callable[[Any], None]:
        return lambda response: setattr(response, "error_code", code)

    busy, forbidden = errors.CoordinatorLoadInProgressError, errors.ClusterAuthorizationFailedError
    answers = Answers(
        producer,
        InitProducerIdRequest,
        change(busy.errno),
        errors.KafkaConnectionError("lost"),
        change(forbidden.errno),
    )
    with pytest.raises(forbidden):
        producer.send(settings.topic, b"k", b"1", 0).get(SECONDS)
    assert len(answers.requests) == 3
    assert producer.send(settings.topic, b"k", b"2", 0).get(SECONDS).offset == 0


def test_records_larger_than_a_batch_follow_each_other(
    settings: KafkaSettings, producer: DirectProducer
) -> None:
    values = [bytes([number]) * 700_000 for number in range(5)]
    reports = [producer.send(settings.topic, b"k", value, 0) for value in values]
    assert [report.get(SECONDS).offset for report in reports] == list(range(5))
    assert stored(settings) == values
    with pytest.raises(errors.MessageSizeTooLargeError):
        producer.send(settings.topic, b"k", b"x" * settings.message_bytes, 0)


def test_requests_are_no_larger_than_they_may_be(settings: KafkaSettings, producer: DirectProducer) -> None:
    size = settings.message_bytes * 2 // 5
    answers = Answers(producer, ProduceRequest)
    reports = [producer.send(settings.topic, b"k", bytes(size), partition) for partition in range(4)]
    assert [report.get(SECONDS).offset for report in reports] == [0] * 4
    assert len(answers.requests) == 2


def test_several_threads_share_a_producer(settings: KafkaSettings, producer: DirectProducer) -> None:
    offsets: list[int] = []

    def work() -> None:
        offsets.extend(producer.send(settings.topic, b"k", b"v", 0).get(SECONDS).offset for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(200))


def test_nothing_is_sent_after_a_close(settings: KafkaSettings, producer: DirectProducer) -> None:
    report = producer.send(settings.topic, b"k", b"1", 0)
    producer.close(SECONDS)
    assert report.get(0).offset == 0
    with pytest.raises(errors.IllegalStateError):
        producer.send(settings.topic, b"k", b"2", 0)
    dropping = settings.create_producer()
    lost = dropping.send(settings.topic, b"k", b"3", 0)
    with pytest.raises(errors.KafkaTimeoutError):
        dropping.close()
    with pytest.raises(errors.KafkaTimeoutError):
        lost.get(1)
    assert stored(settings) == [b"1"]
