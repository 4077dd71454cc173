"""Records as large as a topic allows, and dead letters that are larger, through a job and a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import JobFailedError
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from flink_agents.connectors.kafka.dead_letters.redrive import redrive
from flink_agents.connectors.kafka.sinks.record_sizes import batch_size
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.testing.kafka import KafkaBroker

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

LEGAL = 1_048_400
"""The size of a value that a topic takes by default, but not with the headers of a dead letter."""

WIDE = 3_000_000


class Passing(Agent):
    """Hands texts on, and fails at those that begin with "bad"."""

    @action(InputEvent, on_error="dead-letter")
    def pass_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input.value.startswith("bad"):
            raise ValueError("failed on purpose")
        return OutputEvent(output=event.input.value)


def values(client: dict[str, Any], topic: str) -> list[Any]:
    """All records of a topic with one partition."""
    consumer: Any = KafkaConsumer(**client, auto_offset_reset="earliest", group_id=None)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        topic_records: list[Any] = []
        while (consumer.position(partition) or 0) < end:
            for records in consumer.poll(timeout_ms=500).values():
                topic_records += records
        return topic_records
    finally:
        consumer.close()


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    client = kafka_broker.client_options
    wide = {"max.message.bytes": str(WIDE)}
    for end, settings in (("", {}), ("-out", wide), ("-dead", {}), ("-letters", {})):
        create_topic(f"{name}{end}", config=settings, **client)
    return name


def send(client: dict[str, Any], topic: str, *contents: bytes) -> None:
    producer: Any = KafkaProducer(**client, max_request_size=2 * LEGAL)
    for content in contents:
        producer.send(topic, value=content, key=b"k", partition=0)
    producer.flush()
    producer.close()


def run(
    make: MakeEnvironment, client: dict[str, Any], topic: str, agent: Agent, settings: Any = None
) -> None:
    env = make(config={"local.restart.attempts": 0})
    texts = kafka_source(
        env, topic, value=str, records=True, stop="latest", dead_letters=f"{topic}-dead", **client
    )
    passed = env.from_datastream(texts, lambda record: record.key).apply(agent)
    passed.dead_letters().sink_to(kafka_sink(f"{topic}-letters", **client))
    passed.to_datastream().sink_to(kafka_sink(f"{topic}-out", properties=settings, **client))
    env.execute()


@pytest.mark.nightly
def test_legal_inputs_become_letters_that_are_cut_and_go_back_whole(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, topic: str
) -> None:
    client = kafka_broker.client_options
    unreadable = b"\xff" * LEGAL
    failing = b"bad" + b"v" * (LEGAL - 3)
    send(client, topic, unreadable, failing, b"good" * (LEGAL // 4))

    class Growing(Passing):
        @action(InputEvent, on_error="dead-letter")
        def pass_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
            if event.input.value.startswith("bad"):
                raise ValueError("failed on purpose")
            # As large as the topic of outputs allows, which is more than clients send by default.
            return OutputEvent(output="g" * (WIDE - batch_size(None, b"", []) - 3))

    run(agents_environment, client, topic, Growing())
    (output,) = values(client, f"{topic}-out")
    assert batch_size(None, output.value, []) == WIDE
    for letters, offset, original in ((f"{topic}-dead", 0, unreadable), (f"{topic}-letters", 1, failing)):
        (letter,) = values(client, letters)
        headers = dict(letter.headers)
        assert headers["flink-agents-origin"] == f"{topic}/0/{offset}".encode()
        assert headers["flink-agents-cut-size"] == str(LEGAL).encode()
        assert original.startswith(letter.value) and LEGAL - 2000 < len(letter.value) < LEGAL
        assert redrive(letters, **client).topics == {topic: 1}
        again = values(client, topic)[-1]
        assert (again.value, again.key) == (original, b"k")


@pytest.mark.nightly
def test_an_output_that_is_too_large_names_topic_and_setting(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, topic: str
) -> None:
    client = kafka_broker.client_options
    send(client, topic, b"good" * 100_000)
    with pytest.raises(JobFailedError) as failed:
        run(agents_environment, client, topic, Passing(), {"max.request.size": "50000"})
    text = str(failed.value)
    assert f"a record is larger than topic '{topic}-out' allows" in text.split("\n", 1)[0]
    assert "test_kafka_large_records.py" in text.split("\n", 1)[0]
    assert "max.request.size of the sink" in text and "[FA7102]" in text
