"""A producer with the protocol of kafka-python that works in the thread of its caller.

``KafkaProducer`` has a thread of its own. If each batch is waited for, that costs two switches of threads,
and several requests instead of one, since that thread sends the first record before it gets the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka import KafkaProducer, errors
from kafka.future import Future
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

FORMAT = 2
"""The format of record batches, which all supported brokers have."""

SLICE_SECONDS = 0.2
"""How long a thread waits before it looks if the producer was closed."""

RECORD_BYTES = 100
"""The most bytes of a record besides its key and value."""


SEQUENCES = 2**31
"""After this number, sequence numbers start again."""

_TopicData = ProduceRequest.TopicProduceData
_PartitionData = _TopicData.PartitionProduceData


class StoredRecord(NamedTuple):
    """Where a record is.

    Attributes:
        offset: Its offset; negative if the broker does not report it.
    """

    offset: int


class RecordReport(Future):
    """What becomes of a record; its value is :class:`StoredRecord`."""

    __slots__ = ("_producer",)

    def __init__(self, producer: DirectProducer) -> None:
        super().__init__()
        self._producer = producer

    def get(self, timeout: float) -> StoredRecord:
        """Send all queued records, and wait until this one is acknowledged.

        Raises:
            KafkaTimeoutError: That takes longer than ``timeout`` seconds.
            KafkaError: It could not be stored.
        """
        self._producer.wait_for(self, timeout)
        if not self.is_done:
            raise errors.KafkaTimeoutError(f"no report after {timeout} s")
        if self.exception is not None:
            raise self.exception
        return self.value


class _QueuedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    report: RecordReport
    expires_at: float


class _RecordBatch(NamedTuple):
    """Records of a partition; sent with the same bytes each time, so that brokers store it once."""

    data: bytes
    reports: list[RecordReport]
    expires_at: float
    identity: tuple[int, int]


class DirectProducer:
    """Appends records in order, each once, acknowledged by all in-sync replicas. Thread-safe.

    A record is sent when somebody waits for it, or for another one. A partition has one batch in flight.

    Args:
        options: Those of ``KafkaProducer``, by the same names.
    """

    DEFAULT_CONFIG = KafkaProducer.DEFAULT_CONFIG

    def __init__(self, **options: Any) -> None:
        config = {**self.DEFAULT_CONFIG, **options}
        self._batch_bytes: int = config["batch_size"]
        self._request_bytes: int = config["max_request_size"]
        self._delivery_seconds = config["delivery_timeout_ms"] / 1000
        self._backoff_seconds = config["retry_backoff_ms"] / 1000
        self._request_ms: int = config["request_timeout_ms"]
        has_library, self._compression = KafkaProducer._COMPRESSORS[config["compression_type"]]
        if not has_library():
            raise RuntimeError(f"the library of the codec {config['compression_type']} is not installed")
        if isinstance(version := config["api_version"], str):
            config["api_version"] = None if version == "auto" else tuple(map(int, version.split(".")))
        self._client: Any = config["kafka_client"](
            **{name: value for name, value in config.items() if name != "client_id" or value is not None}
        )
        if self._client._manager.broker_version_data is None:
            self._client._manager.bootstrap(config["bootstrap_timeout_ms"])
        self._cluster = self._client.cluster
        self._queued: deque[tuple[TopicPartition, _QueuedRecord]] = deque()
        self._working = threading.Lock()
        self._closed = False
        # From here on, only the thread that holds the lock uses them.
        self._waiting: dict[TopicPartition, deque[_QueuedRecord]] = {}
        self._batches: dict[TopicPartition, _RecordBatch] = {}
        self._requests: list[tuple[Any, list[TopicPartition]]] = []
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    def send(self, topic: str, key: bytes, value: bytes | None, partition: int) -> RecordReport:
        """Queue a record, and return the report about it; ``value`` is None for a tombstone.

        Raises:
            MessageSizeTooLargeError: It is larger than a request may be.
            KafkaError: The producer is closed.
        """
        if self._closed:
            raise errors.IllegalStateError("the producer is closed")
        if RECORD_BYTES + len(key) + len(value or b"") > self._request_bytes:
            raise errors.MessageSizeTooLargeError(f"a record of {len(value or b'')} bytes")
        record = _QueuedRecord(key, value, RecordReport(self), time.monotonic() + self._delivery_seconds)
        self._queued.append((TopicPartition(topic, partition), record))
        return record.report

    def wait_for(self, report: RecordReport | None, seconds: float) -> None:
        """Send and wait until a record is reported, or without one all records; at most ``seconds``."""
        deadline = time.monotonic() + seconds
        # Another thread that works here may report it as well.
        while not (self._closed or (report is not None and report.is_done)):
            slice_end = min(deadline, time.monotonic() + SLICE_SECONDS)
            if (remaining := slice_end - time.monotonic()) <= 0:
                return
            if self._working.acquire(timeout=remaining):
                try:
                    if self._closed or not self._has_work():
                        return
                    self._work(slice_end)
                finally:
                    self._working.release()

    def close(self, seconds: float = 0.0) -> None:
        """Send everything queued, and close all connections; wait at most ``seconds`` for acknowledgements.

        Raises:
            KafkaTimeoutError: Records were dropped.
        """
        if self._closed:
            return
        self.wait_for(None, seconds)
        self._closed = True
        with self._working:
            has_work = self._has_work()
            self._client.close()
        if has_work:
            raise errors.KafkaTimeoutError("records without a report were dropped")

    # -- with the lock --------------------------------------------------------------------

    def _has_work(self) -> bool:
        return bool(self._queued or self._batches or any(self._waiting.values()))

    def _work(self, deadline: float) -> None:
        """Send what can be sent, and wait for an answer until ``deadline``."""
        while self._queued:
            place, record = self._queued.popleft()
            self._waiting.setdefault(place, deque()).append(record)
        self._expire_records()
        if not self._requests:
            if self._identity is None:
                self._ask_for_identity(deadline)
            if self._identity is not None:
                self._make_batches(self._identity)
            self._send_batches(deadline)
        for request, _ in self._requests:
            self._poll(deadline, request)
        answered = [pair for pair in self._requests if pair[0].is_done]
        self._requests = [pair for pair in self._requests if not pair[0].is_done]
        for request, places in answered:
            self._apply_answer(request, places)

    def _poll(self, deadline: float, future: Future | None = None) -> None:
        self._client.poll(timeout_ms=1000 * max(0.0, deadline - time.monotonic()), future=future)

    def _send_request(self, node: Any, request: Any) -> Future:
        try:
            return self._client.send(node, request)
        except errors.KafkaError as error:
            return Future().failure(error)

    def _ask_for_identity(self, deadline: float) -> None:
        """Get an identity, by which brokers recognize repeated batches. If none comes, ask again later."""
        node = self._client.least_loaded_node(bootstrap_fallback=True)
        request = self._send_request(
            node, InitProducerIdRequest(None, 0, -1, -1, min_version=0, max_version=4)
        )
        self._poll(deadline, request)
        error: BaseException | None = request.exception
        if request.succeeded() and (code := request.value.error_code):
            error = errors.for_code(code)()
        if request.succeeded() and error is None:
            self._identity = request.value.producer_id, request.value.producer_epoch
            self._sequences.clear()
        elif error is None or isinstance(error, errors.RetriableError):
            self._poll(time.monotonic() + self._backoff_seconds)
        else:
            for records in self._waiting.values():
                _fail_all((record.report for record in records), error)
            self._waiting.clear()

    def _expire_records(self) -> None:
        """Fail what is not acknowledged in time; a batch that was sent may be stored or not."""
        now = time.monotonic()
        for place, batch in list(self._batches.items()):
            if batch.expires_at <= now:
                self._fail_batch(place, errors.KafkaTimeoutError("not acknowledged in time"))
        for records in self._waiting.values():
            while records and records[0].expires_at <= now:
                records.popleft().report.failure(errors.KafkaTimeoutError("not sent in time"))

    def _make_batches(self, identity: tuple[int, int]) -> None:
        """Make the next batch of each partition that has none."""
        for place, waiting in self._waiting.items():
            if not waiting or place in self._batches:
                continue
            sequence = self._sequences.get(place, 0)
            builder = MemoryRecordsBuilder(
                FORMAT, self._compression, self._batch_bytes, 0, False, *identity, sequence
            )
            reports: list[RecordReport] = []
            expires_at = waiting[0].expires_at
            # The first record is always accepted.
            while waiting and builder.append(None, waiting[0].key, waiting[0].value) is not None:
                reports.append(waiting.popleft().report)
            builder.close()
            self._sequences[place] = (sequence + len(reports)) % SEQUENCES
            self._batches[place] = _RecordBatch(builder.buffer(), reports, expires_at, identity)

    def _send_batches(self, deadline: float) -> None:
        """Send each batch to its leader, in one request as far as they fit."""
        by_leader: dict[int, list[TopicPartition]] = {}
        sizes: dict[int, int] = {}
        for place, batch in self._batches.items():
            leader = self._cluster.leader_for_partition(place)
            if leader is None:
                self._cluster.add_topic(place.topic)
            elif leader != -1:
                places = by_leader.setdefault(leader, [])
                sizes[leader] = sizes.get(leader, 0) + len(batch.data)
                if not places or sizes[leader] <= self._request_bytes:
                    places.append(place)
        for leader, places in by_leader.items():
            self._requests.append((self._send_request(leader, self._make_request(places)), places))
        if self._batches and not by_leader:
            self._poll(deadline, self._cluster.request_update())

    def _make_request(self, places: list[TopicPartition]) -> Any:
        topics: dict[str, list[Any]] = {}
        for place in places:
            data = _PartitionData(index=place.partition, records=self._batches[place].data)
            topics.setdefault(place.topic, []).append(data)
        return ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=self._request_ms,
            topic_data=[_TopicData(name=topic, partition_data=data) for topic, data in topics.items()],
            min_version=3,
            max_version=9,
        )

    def _apply_answer(self, request: Any, places: list[TopicPartition]) -> None:
        """RecordReport the acknowledged batches of a request; the others are sent again if that can help."""
        outcomes: dict[TopicPartition, BaseException | int] = dict.fromkeys(places, request.exception)
        for topic in request.value.responses if request.succeeded() else ():
            for answer in topic.partition_responses:
                error = errors.for_code(answer.error_code)
                is_stored = error in (errors.NoError, errors.DuplicateSequenceNumberError)
                place = TopicPartition(topic.name, answer.index)
                outcomes[place] = answer.base_offset if is_stored else error(answer.error_message)
        failure: BaseException | None = None
        for place, outcome in outcomes.items():
            if place not in self._batches:  # It expired.
                continue
            if isinstance(outcome, int):
                for number, report in enumerate(self._batches.pop(place).reports):
                    report.success(StoredRecord(outcome + number if outcome >= 0 else outcome))
            elif isinstance(outcome, errors.RetriableError):
                failure = outcome
            else:
                self._fail_batch(place, outcome)
        if failure is not None:
            if isinstance(failure, errors.InvalidMetadataError):
                self._cluster.request_update()
            self._poll(time.monotonic() + self._backoff_seconds)

    def _fail_batch(self, place: TopicPartition, error: BaseException) -> None:
        """Report a failure. Later batches get a new identity, since the next sequence number is unknown."""
        batch = self._batches.pop(place)
        if batch.identity == self._identity:
            self._identity = None
        _fail_all(batch.reports, error)


def _fail_all(reports: Iterable[RecordReport], error: BaseException) -> None:
    for report in reports:
        report.failure(error)
