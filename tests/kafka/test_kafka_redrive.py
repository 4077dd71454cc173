"""Dead letters go back into the topic that they came from, each once, wherever the command is interrupted."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from flink_agents.api.common.policies import DeadLetter
from flink_agents.api.errors import KafkaStreamError
from flink_agents.cli.main import app
from flink_agents.connectors.kafka.dead_letters.redrive import Letter, ReadMarks, redrive
from flink_agents.connectors.kafka.records import KafkaDeadLetter, KafkaRecord
from flink_agents.connectors.kafka.sink import as_record
from flink_agents.connectors.kafka.values import write_value
from flink_agents.testing.kafka import KafkaBroker

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
        made = as_record(letter)
        producer.send(
            dead,
            value=write_value(made.value, "value"),
            key=write_value(made.key, "key"),
            headers=list(made.headers.items()),
            timestamp_ms=made.timestamp,
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
    found: list[Any] = []
    while consumer.position(place) < end:
        for records in consumer.poll(timeout_ms=500).values():
            found += records
    consumer.close()
    return found


@pytest.mark.parametrize("transactional", [False, True])
def test_letters_go_back_as_they_were(kafka_broker: KafkaBroker, topic: str, transactional: bool) -> None:
    dead, client = f"{topic}-dead", kafka_broker.client_options
    write_letters(
        kafka_broker,
        dead,
        [letter_of(topic, number, ValueError("bad")) for number in range(4)],
        transactional,
    )
    assert redrive(dead, **client).topics == {topic: 4}
    found = in_topic(kafka_broker, topic)
    assert [(one.value, one.key, one.timestamp) for one in found] == [
        (f"v{number}".encode(), b"k", BEGAN + number) for number in range(4)
    ]
    for one in found:
        own = {"own": b"1", "flink-agents-id": b"r-0", "flink-agents-redrive": b"1"}
        assert dict(one.headers) == own
    # Nothing is there any more, but for what comes again.
    assert redrive(dead, **client).topics == {}
    again = KafkaRecord[bytes | None](b"v0", b"k", dict(found[0].headers), BEGAN, topic, 0, 9)
    write_letters(kafka_broker, dead, [KafkaDeadLetter(again, "ValueError", "bad")])
    assert redrive(dead, **client).topics == {topic: 1}
    assert dict(in_topic(kafka_broker, topic)[-1].headers)["flink-agents-redrive"] == b"2"


def test_a_dead_letter_of_an_agent_says_why() -> None:
    made = as_record(letter_of("orders", 1, ValueError("bad")))
    texts = {name: content.decode() for name, content in made.headers.items()}
    assert texts.pop("flink-agents-traceback") == "t" * 4000
    assert made.value == b"v1"
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
    dead, client = f"{topic}-dead", kafka_broker.client_options
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
    assert [one.value for one in in_topic(kafka_broker, topic)] == [
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
    dead, to = f"{topic}-dead", f"{topic}-again"
    errors: list[Exception] = [ValueError("a"), KeyError("b"), ValueError("c"), ValueError("d")]
    write_letters(kafka_broker, dead, [letter_of(topic, at, error) for at, error in enumerate(errors)])
    client = json.dumps(kafka_broker.client_options)
    run = ["kafka", "redrive", dead, "--bootstrap-servers", client, "--to", to]

    def lines(*more: str) -> list[str]:
        result = CliRunner().invoke(app, [*run, *more])
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

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


@pytest.mark.parametrize("transactional", [False, True])
def test_any_filters_put_each_letter_back_once(
    kafka_broker: KafkaBroker, topic: str, transactional: bool
) -> None:
    dead, client = f"{topic}-dead", kafka_broker.client_options
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
    assert sorted(one.value for one in in_topic(kafka_broker, topic)) == sorted(
        f"v{at}".encode() for at in numbers
    )


def test_marks_remember_what_was_handled_in_any_order() -> None:
    generator = random.Random(3)
    for _ in range(200):
        first, done = generator.randrange(1000), set[int]()
        marks, letters = ReadMarks(first), range(first, first + generator.randrange(1, 60))
        for _ in range(5):
            for offset in letters[: generator.randrange(len(letters) + 1)]:
                if not marks.is_done(offset):
                    chosen = generator.random() < 0.4
                    marks.note(offset, chosen)
                    done.update([offset] if chosen else [])
            marks = ReadMarks.of(marks.begin, marks.text())
            assert {offset for offset in letters if marks.is_done(offset)} == done


def test_marks_that_are_too_long_for_the_brokers_are_refused() -> None:
    marks, generator = ReadMarks(0), random.Random(1)
    for offset in range(40_000):
        marks.note(offset, generator.random() < 0.5)
    with pytest.raises(KafkaStreamError, match="too many dead letters are skipped"):
        marks.text()


def test_a_letter_from_nowhere_is_named(kafka_broker: KafkaBroker, topic: str) -> None:
    dead, client = f"{topic}-dead", kafka_broker.client_options
    with pytest.raises(KafkaStreamError, match="topic '.*' of dead letters does not exist"):
        redrive(dead, **client)
    write_letters(kafka_broker, dead, [KafkaRecord(b"v")])
    with pytest.raises(KafkaStreamError, match=f"the origin of the dead letter {dead}/0/0 is unknown"):
        redrive(dead, **client)
    assert redrive(dead, topic, **client).topics == {topic: 1}
