"""Records larger than a topic allows: outputs are named, dead letters cut, and originals found again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.structs import TopicPartition

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import KafkaValueError
from flink_agents.api.events.approvals import ApprovalRequest
from flink_agents.connectors.kafka.dead_letters.cutting import MAX_TEXT, fit_letter
from flink_agents.connectors.kafka.dead_letters.redrive import redrive
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.headers.packed import NAME, unpack_headers
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.sink import TimestampLimits, WriteRecords, as_record
from flink_agents.connectors.kafka.sinks import record_sizes
from flink_agents.connectors.kafka.sinks.record_sizes import (
    SizeLimit,
    batch_size,
    request_option,
    size_limit,
)
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.connectors.kafka.values import write_value
from flink_agents.kafka_clients import headers_to_send
from flink_agents.testing.kafka import KafkaBroker
from tests.suite.tables import each_case

DEFAULT = 1_048_588
"""The limit of a topic that sets none."""

LEGAL = 1_048_400
"""The size of a value that a topic takes, and not with the headers of a dead letter."""

BEGAN = int(time.time()) * 1000 - 10_000


def limit(size: int, certain_size: int | None = None) -> SizeLimit:
    return SizeLimit("letters", size, "max.message.bytes of topic 'letters'", certain_size or size, "here")


# -- sizes ---------------------------------------------------------------------------------------


LENGTHS = [0, 1, 63, 64, 65, 127, 128, 8191, 8192, 1_048_400, 1_048_575, 1_048_576]


@each_case("length", LENGTHS)
def test_a_size_is_the_one_that_clients_estimate(length: int) -> None:
    """kafka-python has the same estimate as the Java client."""
    content = b"v" * length
    for key, value, headers in (
        (None, content, []),
        (content, None, []),
        (b"", content, [("a", content), ("é", None), ("", b"")]),
        (None, b"", [("n", b"")] * (length % 9000)),
    ):
        estimate = (
            DefaultRecordBatchBuilder.estimate_size_in_bytes(
                key, value, cast("Any", [(name, part) for name, part in headers])
            )
            if all(part is not None for _, part in headers)
            else None
        )
        if estimate is not None:
            assert batch_size(key, value, headers) == estimate


# -- letters -------------------------------------------------------------------------------------


def source_letter(record: KafkaRecord[bytes | None], error: str) -> KafkaDeadLetter:
    return KafkaDeadLetter(record, "ValidationError", error)


def agent_letter(record: KafkaRecord[bytes | None], error: str) -> DeadLetter:
    return DeadLetter(
        agent="clerk",
        action="book",
        key="ada",
        sequence_number=1,
        timestamp=None,
        event=None,
        event_type="Booked",
        error_type="ValueError",
        error_message=error,
        where="here",
        traceback="t" * 9000,
        run_input=record,
    )


Make = Callable[[KafkaRecord[bytes | None], str], Any]
LARGE = b"\xc3\xa9" * 30_000
PARTS: dict[str, tuple[KafkaRecord[bytes | None], str]] = {
    "value": (KafkaRecord(LARGE, b"k", {"own": b"1"}, BEGAN, "orders", 0, 7), "bad"),
    "error": (KafkaRecord(b"v", b"k", {"own": b"1"}, BEGAN, "orders", 0, 7), "é" * 30_000),
    "headers": (KafkaRecord(b"v", b"k", {"own": LARGE}, BEGAN, "orders", 0, 7), "bad"),
    "key": (KafkaRecord(b"v", LARGE, {"own": b"1"}, BEGAN, "orders", 0, 7), "bad"),
    "all": (KafkaRecord(LARGE, LARGE, {"own": LARGE}, BEGAN, "orders", 0, 7), "é" * 30_000),
    "a deletion": (KafkaRecord(None, b"k", {"own": LARGE}, BEGAN, "orders", 0, 7), "bad"),
}


@each_case("size", [3_000, 10_000, 59_000, 60_050, 60_400])
@each_case("make", [source_letter, agent_letter])
@each_case("part", PARTS)
def test_a_letter_fits_and_names_its_origin_and_size(part: str, make: Make, size: int) -> None:
    record, error = PARTS[part]
    kafka_record = as_record(make(record, error))
    headers = KafkaHeaders.of(kafka_record.headers)
    fits = batch_size(kafka_record.key, kafka_record.value, headers.pairs) <= size
    key, value, cut = fit_letter(kafka_record.key, kafka_record.value, headers, limit(size))
    assert batch_size(key, value, cut.pairs) <= size
    assert cut["flink-agents-origin"] == b"orders/0/7"
    if fits:
        assert (key, value, cut) == (kafka_record.key, kafka_record.value, headers)
        return
    if "flink-agents-cut-size" not in cut:
        # Only its texts are shorter.
        assert (key, value, cut["own"]) == (kafka_record.key, kafka_record.value, kafka_record.headers["own"])
        return
    assert cut["flink-agents-cut-size"] == str(len(record.value or b"")).encode()
    assert (value is None) == (record.value is None)
    assert (record.value or b"").startswith(value or b"")
    (value or b"").decode()
    assert len(cut["flink-agents-error"] or b"") <= MAX_TEXT
    if part in ("value", "error"):
        assert key == b"k" and cut["own"] == b"1"
    if part == "value":
        # As much as possible.
        assert batch_size(key, (value or b"") + b"12345678", cut.pairs) > size


@each_case("distance", range(-3, 4))
@each_case("make", [source_letter, agent_letter])
def test_a_letter_is_cut_exactly_above_the_limit(make: Make, distance: int) -> None:
    kafka_record = as_record(make(KafkaRecord(b"v" * 5000, b"k", {}, BEGAN, "orders", 0, 7), "bad"))
    headers = KafkaHeaders.of(kafka_record.headers)
    size = batch_size(kafka_record.key, kafka_record.value, headers.pairs)
    key, value, cut = fit_letter(kafka_record.key, kafka_record.value, headers, limit(size + distance))
    assert (value == kafka_record.value) == ("flink-agents-cut-size" not in cut)
    assert batch_size(key, value, cut.pairs) <= size + distance
    # Those of agents have a traceback, which is cut first.
    assert ((key, value, cut) == (kafka_record.key, kafka_record.value, headers)) == (distance >= 0)
    assert (value == kafka_record.value) or make is source_letter


# -- what a sink does ----------------------------------------------------------------------------


class Stamped:
    def timestamp(self) -> int:
        return BEGAN


def written(value: Any, size: SizeLimit) -> Any:
    limits = TimestampLimits("letters", "sink", None, None)
    (row,) = WriteRecords(None, limits, size).process_element(value, Stamped())
    return row


@each_case("value", ["v" * 5000, KafkaRecord("v", "k" * 5000), KafkaRecord("v", None, {"a": b"v" * 5000})])
def test_an_output_that_is_too_large_names_topic_and_setting(value: Any) -> None:
    with pytest.raises(KafkaValueError) as rejected:
        written(value, limit(5000))
    text = str(rejected.value)
    assert text.startswith("here: a record is larger than topic 'letters' allows")
    assert "max.message.bytes" in text and "at most 5000 bytes" in text
    assert len(text) < 2000


def test_records_that_fit_and_letters_are_written() -> None:
    assert written("v" * 4000, limit(5000))[1] == b"v" * 4000
    row = written(
        source_letter(KafkaRecord(b"v" * 9000, b"k", {}, BEGAN, "orders", 0, 7), "bad"), limit(5000)
    )
    headers = dict(unpack_headers(row[2]))
    assert NAME not in headers and headers["flink-agents-cut-size"] == b"9000"
    assert len(row[1]) < 5000


def test_an_approval_request_that_is_too_large_names_topic_and_setting() -> None:
    from flink_agents.connectors.kafka.approvals import _record_of

    request = ApprovalRequest("id|0|pay||0|x", "Paying", "pay", "k", "refund", {"text": "t" * 9000})
    with pytest.raises(KafkaValueError, match="larger than topic 'letters' allows"):
        written(_record_of(request), limit(5000))


# -- limits --------------------------------------------------------------------------------------


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


LIMITS: dict[str, tuple[dict[str, str] | None, dict[str, str], tuple[int, str, int], str | None]] = {
    # Settings of the topic (None: there is none), properties; size, setting, certain size; the request.
    "default": ({}, {}, (DEFAULT, "max.message.bytes of topic", DEFAULT), str(DEFAULT)),
    "none": (None, {}, (DEFAULT, "message.max.bytes of the brokers", DEFAULT), str(DEFAULT)),
    "small": ({"max.message.bytes": "5000"}, {}, (5000, "max.message.bytes of topic", 5000), None),
    "large": ({"max.message.bytes": "9000000"}, {}, (9_000_000, "max.message.bytes", 9_000_000), "9000000"),
    "huge": ({"max.message.bytes": "90000000"}, {}, (33_554_432, "buffer.memory", 33_554_432), "33554432"),
    "client": ({}, {"max.request.size": "7000"}, (7000, "max.request.size of the sink", 7000), None),
    "compressed": (
        {"max.message.bytes": "5000"},
        {"compression.type": "gzip"},
        (1_048_576, "max.request.size of the sink", 5000),
        None,
    ),
    "login": (
        {"max.message.bytes": "5"},
        {"sasl.mechanism": "X"},
        (1_048_576, "max.request.size", 1_048_576),
        None,
    ),
}


@each_case("case", LIMITS)
def test_the_limit_is_that_of_topic_and_client(kafka_broker: KafkaBroker, case: str) -> None:
    settings, properties, (size, setting, certain), request = LIMITS[case]
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    if settings is not None:
        create_topic(topic, config=settings, **kafka_broker.client_options)
    topic_limit = size_limit(topic, kafka_broker.client_options, properties)
    assert (topic_limit.size, topic_limit.certain_size) == (size, certain)
    assert topic_limit.setting.startswith(setting)
    assert request_option(topic_limit, properties).get("max.request.size") == request


def test_brokers_that_do_not_answer_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sizes, "QUESTION_MS", 200)
    client = {"bootstrap_servers": "localhost:1"}
    assert size_limit("orders", client, {}).size == 1_048_576
    monkeypatch.setattr(record_sizes, "_request_limit", lambda *_: pytest.fail("asked again"))
    assert size_limit("orders", client, {}).size == 1_048_576


# -- redrive -------------------------------------------------------------------------------------


def send(broker: KafkaBroker, topic: str, *records: KafkaRecord[Any]) -> None:
    producer: Any = KafkaProducer(**broker.client_options, max_request_size=3_000_000)
    for record in records:
        producer.send(
            topic,
            value=write_value(record.value, "value"),
            key=write_value(record.key, "key"),
            headers=headers_to_send(KafkaHeaders.of(record.headers).pairs),
            timestamp_ms=record.timestamp,
            partition=0,
        )
    producer.flush()
    producer.close()


def send_letters(broker: KafkaBroker, dead: str, size: int, *letters: Any) -> None:
    for letter in letters:
        kafka_record = as_record(letter)
        raw = write_value(kafka_record.key, "key"), write_value(kafka_record.value, "value")
        key, value, headers = fit_letter(*raw, KafkaHeaders.of(kafka_record.headers), limit(size))
        send(broker, dead, KafkaRecord(value, key, headers, kafka_record.timestamp))


def in_topic(broker: KafkaBroker, topic: str) -> list[Any]:
    from tests.kafka.test_kafka_redrive import in_topic as records_in

    return records_in(broker, topic)


ORIGINALS = [
    KafkaRecord[bytes | None](b"{" + b"\xff\xc3" * (LEGAL // 2), b"k", {"own": b"1"}, BEGAN),
    KafkaRecord[bytes | None](
        b"small", b"k" * 20_000, {"own": b"2", "flink-agents-redrive": b"4"}, BEGAN + 1
    ),
    KafkaRecord[bytes | None](b"small", None, {"own": b"3" * 20_000}, BEGAN + 2),
    KafkaRecord[bytes | None](None, b"deleted", {"own": b"4" * 20_000}, BEGAN + 3),
]


@each_case("make", [source_letter, agent_letter])
def test_cut_letters_go_back_as_their_originals(kafka_broker: KafkaBroker, make: Make) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    client = kafka_broker.client_options
    dead = f"{topic}-dead"
    create_topic(topic, **client)
    create_topic(dead, config={"max.message.bytes": "10000"}, **client)
    send(kafka_broker, topic, *ORIGINALS)
    places = enumerate(ORIGINALS)
    read = [KafkaRecord(r.value, r.key, r.headers, r.timestamp, topic, 0, at) for at, r in places]
    send_letters(kafka_broker, dead, 10_000, *(make(record, "bad") for record in read))
    assert redrive(dead, dry_run=True, **client).topics == {topic: 4}
    done = redrive(dead, **client)
    assert (done.topics, done.unsendable) == ({topic: 4}, [])
    for record, again in zip(ORIGINALS, in_topic(kafka_broker, topic)[4:], strict=True):
        assert (again.value, again.key, again.timestamp) == (record.value, record.key, record.timestamp)
        number = b"5" if "flink-agents-redrive" in record.headers else b"1"
        assert dict(again.headers) == {**record.headers, "flink-agents-redrive": number}


GONE: dict[str, tuple[Any, str]] = {
    "removed": (("{}", 0, 0), "has been removed from its topic"),
    "never there": (("{}", 0, 9), "has been removed from its topic"),
    "no partition": (("{}", 7, 0), "has been removed from its topic"),
    "no topic": (("{}-other", 0, 0), "has been removed from its topic"),
    "another record": (("{}", 0, 1), "is another record by now"),
    "unknown": ((None, None, None), "its origin unknown"),
}


@pytest.mark.nightly
@each_case("case", GONE)
def test_a_cut_letter_without_its_original_stays(kafka_broker: KafkaBroker, case: str) -> None:
    (name, partition, offset), reason = GONE[case]
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    client = kafka_broker.client_options
    dead = f"{topic}-dead"
    create_topic(topic, **client)
    create_topic(dead, **client)
    send(kafka_broker, topic, KafkaRecord(b"v" * 9000, b"k"), KafkaRecord(b"w" * 9000, b"k"))
    if case == "removed":
        admin: Any = KafkaAdminClient(**client)
        admin.delete_records({TopicPartition(topic, 0): 1})
        admin.close()
    origin = None if name is None else name.format(topic)
    record = KafkaRecord(b"v" * 9000, b"k", {}, BEGAN, origin, partition, offset)
    send_letters(kafka_broker, dead, 5000, KafkaDeadLetter(cast("Any", record), "ValueError", "bad"))
    for _ in range(2):
        done = redrive(dead, f"{topic}-again", **client)
        assert [letter.place for letter in done.unsendable] == [f"{dead}/0/0"]
        assert reason in done.unsendable[0].reason
        assert done.topics == {}
