"""Dead letters go back into the topic that they came from, each once, wherever the command is interrupted."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import KafkaStreamError
from flink_agents.cli.main import app
from flink_agents.connectors.kafka.dead_letters import redrive as module
from flink_agents.connectors.kafka.dead_letters.redrive import Letter, ReadMarks, redrive
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.sink import as_record
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.connectors.kafka.values import write_value
from flink_agents.kafka_clients import headers_to_send
from flink_agents.testing.kafka import KafkaBroker
from tests.suite.tables import each_case

BEGAN = int(time.time()) * 1000 - 10_000
"""Brokers remove what is older than a week."""


@pytest.fixture
def topic() -> str:
    """A topic of its own."""
    return f"orders-{uuid.uuid4().hex[:8]}"


def letter_of(topic: str, number: int, error: Exception) -> Any:
    """A dead letter of a source, and, for odd numbers, of an agent."""
    record: Any = KafkaRecord(
        f"v{number}".encode(),
        b"k",
        {"own": b"1", "flink-agents-id": b"r-0"},
        BEGAN + number,
        topic,
        0,
        number,
    )
    if number % 2 == 0:
        return KafkaDeadLetter(record, type(error).__name__, str(error))
    return DeadLetter(
        agent="clerk",
        action="book",
        key="ada",
        sequence_number=number,
        timestamp=None,
        event=None,
        event_type="Booked",
        error_type=type(error).__name__,
        error_message=str(error),
        where="here",
        traceback="t" * 9000,
        run_input=record,
    )


def write_letters(
    broker: KafkaBroker, dead: str, letters: Iterable[Any], transactional: bool = False
) -> None:
    """Write letters as a sink does."""
    more: dict[str, Any] = {"transactional_id": f"writer-{dead}"} if transactional else {}
    producer: Any = KafkaProducer(**broker.client_options, **more)
    if transactional:
        producer.init_transactions()
        producer.begin_transaction()
    for letter in letters:
        kafka_record = as_record(letter)
        producer.send(
            dead,
            value=write_value(kafka_record.value, "value"),
            key=write_value(kafka_record.key, "key"),
            headers=headers_to_send(KafkaHeaders.of(kafka_record.headers).pairs),
            timestamp_ms=kafka_record.timestamp,
        )
    if transactional:
        producer.flush()
        producer.commit_transaction()
    producer.close()


def in_topic(broker: KafkaBroker, topic: str) -> list[Any]:
    """What committed records a topic has."""
    consumer: Any = KafkaConsumer(
        **broker.client_options, isolation_level="read_committed", enable_auto_commit=False
    )
    place = TopicPartition(topic, 0)
    if not consumer.partitions_for_topic(topic):
        return []
    consumer.assign([place])
    consumer.seek(place, 0)
    end = consumer.end_offsets([place])[place]
    topic_records: list[Any] = []
    while consumer.position(place) < end:
        for records in consumer.poll(timeout_ms=500).values():
            topic_records += records
    consumer.close()
    return topic_records


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("transactional", [False, True])
def test_letters_go_back_as_they_were(kafka_broker: KafkaBroker, topic: str, transactional: bool) -> None:
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    write_letters(
        kafka_broker,
        dead,
        [letter_of(topic, number, ValueError("bad")) for number in range(4)],
        transactional,
    )
    assert redrive(dead, **client).topics == {topic: 4}
    sent_records = in_topic(kafka_broker, topic)
    assert [(record.value, record.key, record.timestamp) for record in sent_records] == [
        (f"v{number}".encode(), b"k", BEGAN + number) for number in range(4)
    ]
    for sent_record in sent_records:
        expected_headers = {"own": b"1", "flink-agents-id": b"r-0", "flink-agents-redrive": b"1"}
        assert dict(sent_record.headers) == expected_headers
    # Nothing is there any more, but for what comes again.
    assert redrive(dead, **client).topics == {}
    again = KafkaRecord[bytes | None](b"v0", b"k", dict(sent_records[0].headers), BEGAN, topic, 0, 9)
    write_letters(kafka_broker, dead, [KafkaDeadLetter(again, "ValueError", "bad")])
    assert redrive(dead, **client).topics == {topic: 1}
    assert dict(in_topic(kafka_broker, topic)[-1].headers)["flink-agents-redrive"] == b"2"


def test_a_dead_letter_of_an_agent_says_why() -> None:
    kafka_record = as_record(letter_of("orders", 1, ValueError("bad")))
    texts = {name: (content or b"").decode() for name, content in kafka_record.headers.items()}
    assert texts.pop("flink-agents-traceback") == "t" * 4000
    assert kafka_record.value == b"v1"
    assert texts == {
        "own": "1",
        "flink-agents-id": "r-0",
        "flink-agents-error": "bad",
        "flink-agents-error-type": "ValueError",
        "flink-agents-origin": "orders/0/1",
        "flink-agents-failed-agent": "clerk",
        "flink-agents-failed-key": "sada",
        "flink-agents-failed-sequence": "1",
        "flink-agents-action": "book",
        "flink-agents-event": "Booked",
        "flink-agents-where": "here",
        "flink-agents-attempts": "1",
    }


def test_a_command_that_dies_puts_nothing_back_twice(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    write_letters(kafka_broker, dead, [letter_of(topic, number, ValueError("bad")) for number in range(6)])
    monkeypatch.setattr("flink_agents.connectors.kafka.dead_letters.redrive.BATCH", 2)
    for point in ("send_offsets_to_transaction", "commit_transaction"):
        with monkeypatch.context() as patch:
            patch.setattr(KafkaProducer, point, dies(getattr(KafkaProducer, point)))
            # A process that is gone aborts nothing.
            patch.setattr(KafkaProducer, "abort_transaction", lambda self: None)
            with pytest.raises(KeyboardInterrupt):
                redrive(dead, **client)
    redrive(dead, **client)
    assert [record.value for record in in_topic(kafka_broker, topic)] == [
        f"v{number}".encode() for number in range(6)
    ]


def dies(method: Any) -> Any:
    """A method that works once, and dies before it the second time."""
    seen: list[int] = []

    def call(*arguments: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return method(*arguments)

    return call


def test_the_command(kafka_broker: KafkaBroker, topic: str) -> None:
    dead = f"{topic}-dead"
    to = f"{topic}-again"
    errors: list[Exception] = [ValueError("a"), KeyError("b"), ValueError("c"), ValueError("d")]
    write_letters(kafka_broker, dead, [letter_of(topic, at, error) for at, error in enumerate(errors)])
    client = json.dumps(kafka_broker.client_options)
    run = ["kafka", "redrive", dead, "--bootstrap-servers", client, "--to", to]

    def lines(*more: str) -> list[str]:
        result = CliRunner().invoke(app, [*run, *more])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    seen = lines("--dry-run", "--error-type", "ValueError", "--agent", "clerk")
    assert seen == [
        f"{dead}/0/0 -> left out: ValueError: a",
        f"{dead}/0/1 -> left out: key ada: KeyError: 'b'",
        f"{dead}/0/2 -> left out: ValueError: c",
        f"{dead}/0/3 -> {to}: key ada: ValueError: d",
        f"1 would go back into {to}",
        "1 in all, 3 left out",
    ]
    assert lines("--limit", "1") == [f"1 went back into {to}", "1 in all, 0 left out"]
    assert lines("--error-type", "ValueError") == [f"2 went back into {to}", "2 in all, 1 left out"]
    # What a filter left out is there the next time.
    assert lines("--error-type", "ValueError") == ["0 in all, 1 left out"]
    assert lines() == [f"1 went back into {to}", "1 in all, 0 left out"]
    assert lines() == ["0 in all, 0 left out"]


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("transactional", [False, True])
def test_any_filters_put_each_letter_back_once(
    kafka_broker: KafkaBroker, topic: str, transactional: bool
) -> None:
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    numbers = list(range(24))
    write_letters(
        kafka_broker, dead, [letter_of(topic, at, ValueError(str(at))) for at in numbers], transactional
    )

    def number(letter: Letter) -> int:
        return int(letter.error.rsplit(" ", 1)[1])

    for choose in (
        lambda letter: letter.agent == "clerk",
        lambda letter: number(letter) % 3 == 0,
        lambda letter: False,
        lambda letter: number(letter) > 15,
    ):
        redrive(dead, topic, choose=choose, limit=17, **client)
    redrive(dead, topic, **client)
    assert redrive(dead, topic, **client).topics == {}
    assert sorted(record.value for record in in_topic(kafka_broker, topic)) == sorted(
        f"v{at}".encode() for at in numbers
    )


def test_marks_remember_what_was_handled_in_any_order() -> None:
    generator = random.Random(3)
    for _ in range(200):
        first = generator.randrange(1000)
        done = set[int]()
        marks = ReadMarks(first)
        letters = range(first, first + generator.randrange(1, 60))
        for _ in range(5):
            for offset in letters[: generator.randrange(len(letters) + 1)]:
                if not marks.is_done(offset):
                    chosen = generator.random() < 0.4
                    marks.note_handled(offset, chosen)
                    done.update([offset] if chosen else [])
            marks = ReadMarks.parse(marks.begin, marks.text())
            assert {offset for offset in letters if marks.is_done(offset)} == done


def test_marks_that_are_too_long_for_the_brokers_are_refused() -> None:
    marks = ReadMarks(0)
    generator = random.Random(1)
    for offset in range(40_000):
        marks.note_handled(offset, generator.random() < 0.5)
    with pytest.raises(KafkaStreamError, match="too many dead letters are skipped"):
        marks.text()


def test_a_topic_of_dead_letters_that_does_not_exist_is_named(kafka_broker: KafkaBroker, topic: str) -> None:
    with pytest.raises(KafkaStreamError, match="topic '.*' of dead letters does not exist"):
        redrive(f"{topic}-dead", **kafka_broker.client_options)


# -- letters that cannot be sent ----------------------------------------------------------------

ORIGIN = "flink-agents-origin"
FAR_AHEAD = int(time.time() * 1000) + 7 * 86_400_000


def raw(topic: str, value: bytes | None, key: bytes | None = b"k", **more: Any) -> dict[str, Any]:
    """A letter as its topic has it."""
    record = {
        "value": value,
        "key": key,
        "headers": [(ORIGIN, f"{topic}/0/1".encode())],
        "timestamp_ms": BEGAN,
    }
    return record | more


UNSENDABLE: list[tuple[str, Callable[[str], dict[str, Any]], str]] = [
    # The topic, made of the name of a topic; the letter; the reason.
    ("{}", lambda topic: raw(topic, b"v" * 1_200_000), "MessageSizeTooLargeError"),
    ("{}-small", lambda topic: raw(topic, b"v" * 20_000), "MessageSizeTooLargeError"),
    ("{}-timed", lambda topic: raw(topic, b"v", timestamp_ms=FAR_AHEAD), "InvalidTimestampError"),
    ("{}-compact", lambda topic: raw(topic, b"v", key=None), "InvalidRecordError"),
    ("{}", lambda topic: raw("not a name!", b"v"), "not a name!"),
    ("{}", lambda topic: raw(topic, b"v", headers=[]), "its origin is unknown"),
    ("{}", lambda topic: raw(topic, b"v", headers=[("flink-agents-error", b"cut")]), "its origin is unknown"),
    ("{}", lambda topic: raw(topic, b"v", headers=[(ORIGIN, b"")]), "its origin is unknown"),
    ("{}", lambda topic: raw(topic, b"v", headers=[(ORIGIN, b"\xff\xfe/0/1")]), "is illegal"),
]


@pytest.mark.nightly
@each_case(
    ("name", "letter", "reason"),
    UNSENDABLE,
    ids=("too large", "too large for the topic", "ahead of time", "no key", "no topic", "foreign")
    + ("cut", "empty", "not UTF-8"),
)
def test_a_letter_that_cannot_be_sent_is_named_and_others_go(
    kafka_broker: KafkaBroker, name: str, letter: Callable[[str], dict[str, Any]], reason: str
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    client = kafka_broker.client_options
    dead = f"{topic}-dead"
    origin = name.format(topic)
    wide = {"max.message.bytes": "5000000", "message.timestamp.type": "CreateTime"}
    create_topic(dead, config=wide | {"message.timestamp.after.max.ms": "9223372036854775807"}, **client)
    limits = {"small": {"max.message.bytes": "10000"}, "compact": {"cleanup.policy": "compact"}}
    create_topic(origin, config=limits.get(name.removeprefix("{}-"), {}), **client)
    producer: Any = KafkaProducer(**client, max_request_size=5_000_000)
    for record in (raw(origin, b"first"), letter(origin), raw(origin, b"second"), raw(origin, b"third")):
        producer.send(dead, **record)
    producer.close()
    for _ in range(2):
        done = redrive(dead, **client)
        assert [problem.place for problem in done.unsendable] == [f"{dead}/0/1"]
        assert reason.lower() in done.unsendable[0].reason.lower(), done.unsendable
    assert [sent_record.value for sent_record in in_topic(kafka_broker, origin)] == [
        b"first",
        b"second",
        b"third",
    ]


def test_a_record_without_key_and_value_does_not_block_others(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's client writes such records; kafka-python does not."""
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    write_letters(kafka_broker, dead, [letter_of(topic, number, ValueError("bad")) for number in range(3)])
    read = module._read_letter

    def without_value(record: Any) -> Letter:
        letter = read(record)
        return replace(letter, key=None, value=None) if letter.place.endswith("/1") else letter

    monkeypatch.setattr(module, "_read_letter", without_value)
    done = redrive(dead, **client)
    assert done.topics == {topic: 2}
    assert [problem.reason for problem in done.unsendable] == ["it has neither key nor value"]


def test_the_command_names_what_cannot_be_sent_and_takes_a_size(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    for name in (dead, topic):
        create_topic(name, config={"max.message.bytes": "5000000"}, **client)
    producer: Any = KafkaProducer(**client, max_request_size=5_000_000)
    for record in (raw(topic, b"v" * 2_000_000), raw(topic, b"small")):
        producer.send(dead, **record)
    producer.close()
    run = ["kafka", "redrive", dead, "--bootstrap-servers", json.dumps(client)]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 1, result.output
    assert f"{dead}/0/0 cannot be sent: MessageSizeTooLargeError" in result.output
    assert "1 in all, 0 left out, 1 cannot be sent" in result.output
    result = CliRunner().invoke(app, [*run, "--max-request-size", "4000000"])
    assert result.exit_code == 0, result.output
    assert [len(sent_record.value) for sent_record in in_topic(kafka_broker, topic)] == [5, 2_000_000]


HEADERS: list[tuple[str, bytes | None]] = [
    ("a", b"1"),
    ("none", None),
    ("a", b""),
    ("bytes", bytes(range(256))),
    ("a", None),
    ("\u00e9", b"\xff"),
]


def test_headers_of_a_letter_stay_as_they_were(kafka_broker: KafkaBroker, topic: str) -> None:
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    record: Any = KafkaRecord(b"v", b"k", KafkaHeaders(tuple(HEADERS)), BEGAN, topic, 0, 1)
    write_letters(kafka_broker, dead, [KafkaDeadLetter(record, "ValueError", "bad")] * 3)
    assert redrive(dead, **client).topics == {topic: 3}
    for sent_record in in_topic(kafka_broker, topic):
        assert list(sent_record.headers) == [*HEADERS, ("flink-agents-redrive", b"1")]


def test_brokers_that_go_away_lose_no_letter_and_send_none_twice(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{topic}-dead"
    client = kafka_broker.client_options
    write_letters(kafka_broker, dead, [letter_of(topic, number, ValueError("bad")) for number in range(4)])
    write_letters(kafka_broker, dead, [KafkaRecord(b"from nowhere")])
    for point in ("send", "send_offsets_to_transaction"):
        with monkeypatch.context() as patch:
            patch.setattr(KafkaProducer, point, is_away)
            with pytest.raises(KafkaStreamError, match="cannot be reached"):
                redrive(dead, **client)
    assert redrive(dead, **client).topics == {topic: 4}
    assert [record.value for record in in_topic(kafka_broker, topic)] == [
        f"v{number}".encode() for number in range(4)
    ]


def is_away(*arguments: Any, **options: Any) -> Any:
    raise KafkaTimeoutError("no brokers")
