"""Kafka in and out of jobs, on a real broker: typed values, a failure in the middle, and a secured broker."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from pydantic import BaseModel

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import DeadLettersNotReadError, KafkaStreamError
from flink_agents.connectors.kafka import KafkaDeadLetter, KafkaRecord, kafka_sink, kafka_source
from flink_agents.connectors.kafka.dead_letters.redrive import redrive
from flink_agents.connectors.kafka.sink import Delivery
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.kafka_clients import headers_to_send
from flink_agents.testing.kafka import KafkaBroker

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]
Client = dict[str, Any]


class Order(BaseModel):
    customer: str
    amount: float


class Priced(BaseModel):
    customer: str
    total: float


class Pricing(Agent):
    """Adds up what a customer orders; a record without a value ends the account."""

    @action(InputEvent)
    def add(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order: Order | None = event.input.value
        if order is None:
            return OutputEvent(output=KafkaRecord(None, key=event.input.key))
        total = ctx.short_term_memory.get("total", 0.0) + order.amount
        ctx.short_term_memory.set("total", total)
        return OutputEvent(
            output=KafkaRecord(Priced(customer=order.customer, total=total), key=event.input.key)
        )


def send(client: Client, topic: str, records: Iterable[dict[str, Any]]) -> None:
    """Make a topic with one partition, and write records to it."""
    admin: Any = KafkaAdminClient(**client)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    append(client, topic, records)


def append(client: Client, topic: str, records: Iterable[dict[str, Any]]) -> None:
    producer = KafkaProducer(**client)
    for record in records:
        producer.send(topic, partition=0, **record)
    producer.flush()
    producer.close()


def written(client: Client, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All records that a topic with one partition has, as a consumer with that isolation sees them."""
    consumer: Any = KafkaConsumer(
        **client, auto_offset_reset="earliest", group_id=None, isolation_level=cast("Any", isolation)
    )
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        topic_records: list[Any] = []
        while (consumer.position(partition) or 0) < end:
            for records in consumer.poll(timeout_ms=500).values():
                topic_records += records
        return topic_records
    finally:
        consumer.close()


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


BINARY = bytes(range(256))


@pytest.mark.nightly
def test_typed_records_go_in_and_out(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, topic: str
) -> None:
    """Values, keys, headers and timestamps; what does not fit goes to a topic as it was."""
    client = kafka_broker.client_options
    # Brokers remove what is older than a week.
    began = int(time.time()) * 1000 - 10_000
    ada = '{"customer": "Ada é", "amount": 2.5}'.encode()
    alan = b'{"customer":"Alan","amount":1}'
    send(
        client,
        topic,
        [
            {"key": b"ada", "value": ada, "timestamp_ms": began + 1000, "headers": [("own", BINARY)]},
            {"key": None, "value": alan, "timestamp_ms": began + 2000},
            {
                "key": b"ada",
                "value": b"{" + BINARY,
                "timestamp_ms": began + 3000,
                "headers": [("own", BINARY)],
            },
            {"key": BINARY, "value": ada, "timestamp_ms": began + 4000},
            {"key": b"ada", "value": b'{"customer": "Ada"}', "timestamp_ms": began + 5000},
            {"key": b"", "value": b"", "timestamp_ms": began + 6000},
            {"key": b"ada", "value": ada, "timestamp_ms": began + 7000},
            {"key": b"ada", "value": None, "timestamp_ms": began + 8000},
        ],
    )
    env = agents_environment()
    source = kafka_source(
        env,
        topic,
        value=Order | None,
        records=True,
        stop="latest",
        dead_letters=f"{topic}-dead",
        **client,
    )
    letters = env.collect(source.dead_letters())
    priced = env.from_datastream(source, lambda record: record.key).apply(Pricing, lineage=True)
    priced.to_datastream().sink_to(kafka_sink(f"{topic}-out", **client))
    env.execute()

    out = written(client, f"{topic}-out")
    assert [(record.key, record.value) for record in out if record.key == b"ada"] == [
        (b"ada", '{"customer":"Ada é","total":2.5}'.encode()),
        (b"ada", '{"customer":"Ada é","total":5.0}'.encode()),
        (b"ada", None),
    ]
    (unkeyed_record,) = [record for record in out if record.key is None]
    assert (unkeyed_record.value, unkeyed_record.timestamp) == (
        b'{"customer":"Alan","total":1.0}',
        began + 2000,
    )
    first, second, third = [dict(record.headers) for record in out if record.key == b"ada"]
    assert [headers["flink-agents-parent"].decode() for headers in (first, second, third)] == [
        f"{topic}/0/0",
        f"{topic}/0/6",
        f"{topic}/0/7",
    ]
    assert [headers["flink-agents-sequence"] for headers in (first, second, third)] == [b"0", b"1", b"2"]
    assert len({headers["flink-agents-id"] for headers in (first, second, third)}) == 3
    assert first["flink-agents-agent"] == b"Pricing"

    dead = {
        dict(record.headers)["flink-agents-origin"]: record for record in written(client, f"{topic}-dead")
    }
    assert set(dead) == {f"{topic}/0/{offset}".encode() for offset in (2, 3, 4, 5)}
    bad = dead[f"{topic}/0/2".encode()]
    assert (bad.key, bad.value, bad.timestamp) == (b"ada", b"{" + BINARY, began + 3000)
    assert dict(bad.headers)["own"] == BINARY
    assert dict(bad.headers)["flink-agents-error-type"] == b"ValidationError"
    assert dead[f"{topic}/0/3".encode()].key == BINARY
    assert sorted(letter.record.offset for letter in letters) == [2, 3, 4, 5]
    assert all(isinstance(letter, KafkaDeadLetter) and letter.error for letter in letters)


FIRST = 30
ALL = 60


@dataclass
class Course:
    """What the two agents of a job that fails know of it.

    Attributes:
        client: How the broker is reached.
        topic: Where numbers come from; outputs go to the topic with ``-out``.
        flag: Begin of the names of files that say how far the job has come.
        isolation: How a consumer sees that the first half is done.
    """

    client: dict[str, Any]
    topic: str
    flag: str
    isolation: str

    def came_to(self, where: str) -> bool:
        return os.path.exists(f"{self.flag}-{where}")

    def has_come_to(self, where: str) -> None:
        Path(f"{self.flag}-{where}").touch()

    def visible(self, isolation: str) -> int:
        return len({record.value for record in written(self.client, f"{self.topic}-out", isolation)})


class Feeder(Agent):
    """Hands numbers on. It writes the second half when the first one is visible behind the sink."""

    def __init__(self, course: Course) -> None:
        self.course = course

    @action(InputEvent)
    async def feed(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        course = self.course
        if event.input == FIRST - 1 and not course.came_to("fed"):
            while await asyncio.to_thread(course.visible, course.isolation) < FIRST - 1:
                await asyncio.sleep(0.05)
            course.has_come_to("fed")
            numbers = [{"value": str(number).encode()} for number in range(FIRST, ALL)]
            await asyncio.to_thread(append, course.client, course.topic, numbers)
        return OutputEvent(output=event.input)


class FailingOnce(Agent):
    """Hands numbers on. It fails at the last one, when all others are written behind the sink."""

    def __init__(self, course: Course) -> None:
        self.course = course

    @action(InputEvent)
    async def hand_on(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        course = self.course
        if event.input == ALL - 1 and not course.came_to("failure"):
            while await asyncio.to_thread(course.visible, "read_uncommitted") < ALL - 1:
                await asyncio.sleep(0.05)
            course.has_come_to("failure")
            raise RuntimeError("failed on purpose")
        return OutputEvent(output=event.input)


@pytest.mark.parametrize(
    "delivery", ["exactly-once", pytest.param("at-least-once", marks=pytest.mark.nightly)]
)
def test_a_failure_in_the_middle_loses_nothing(
    agents_environment: MakeEnvironment,
    kafka_broker: KafkaBroker,
    topic: str,
    tmp_path: Path,
    delivery: Delivery,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The second half is written, and not committed, when the job fails."""
    client = kafka_broker.client_options
    send(client, topic, [{"value": str(number).encode()} for number in range(FIRST)])
    send(client, f"{topic}-out", [])
    exactly = delivery == "exactly-once"
    isolation = "read_committed" if exactly else "read_uncommitted"
    course = Course(dict(client), topic, str(tmp_path / "course"), isolation)
    env = agents_environment(flink={"execution.checkpointing.interval": "1 s"})
    numbers = kafka_source(env, topic, value=int, stop={0: ALL}, on_error="fail", **client)
    fed = env.from_datastream(numbers, lambda number: number).apply(Feeder(course))
    handed = env.from_datastream(fed.to_datastream(), lambda number: number).apply(FailingOnce(course))
    sink = kafka_sink(
        f"{topic}-out", delivery=delivery, transactional_id=topic if exactly else None, **client
    )
    handed.to_datastream().sink_to(sink)
    env.execute()
    assert course.came_to("failure")
    output_numbers = sorted(int(record.value) for record in written(client, f"{topic}-out"))
    assert sorted(set(output_numbers)) == list(range(ALL))
    if exactly:
        assert output_numbers == list(range(ALL))
        # The broker for development allows transactions of a day.
        assert "after a crash, start it again within 1 d: the brokers drop" in capfd.readouterr().err
        assert len(written(client, f"{topic}-out", "read_uncommitted")) > ALL  # else nothing was tested


@pytest.mark.nightly
def test_a_secured_broker_is_reached_with_the_same_options(
    agents_environment: MakeEnvironment, tmp_path: Path, topic: str
) -> None:
    """TLS and a password for source and sink, as ``client_options`` has them for kafka-python."""
    with KafkaBroker(tmp_path, security="SASL_SSL") as broker:
        client = broker.client_options
        send(client, topic, [{"value": b"over TLS"}])
        env = agents_environment()
        texts = kafka_source(env, topic, value=str, stop="latest", on_error="fail", **client)
        texts.sink_to(kafka_sink(f"{topic}-out", key=len, **client))
        env.execute()
        (record,) = written(client, f"{topic}-out")
        assert (record.key, record.value) == (b"8", b"over TLS")


def test_a_job_that_would_lose_or_never_commit_is_refused(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, topic: str
) -> None:
    client = kafka_broker.client_options
    env = agents_environment()
    source = kafka_source(env, topic, value=Order, on_error="fail", **client)
    # A local job with a name takes checkpoints by itself, so that only its start can tell.
    source.sink_to(kafka_sink("out", delivery="exactly-once", transactional_id=topic, **client))
    with pytest.raises(KafkaStreamError, match="commits with checkpoints"):
        env.execute()
    env = agents_environment()
    source = kafka_source(env, topic, value=Order, **client)
    source.sink_to(kafka_sink("out", **client)).name("mine").uid("mine")
    with pytest.raises(DeadLettersNotReadError, match=f"Kafka source {topic}"):
        env.execute()


class Passing(Agent):
    """Hands records on unchanged, except those that it fails at."""

    @action(InputEvent, on_error="dead-letter")
    def pass_on(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if event.input.key == "bad":
            raise ValueError("failed on purpose")
        return OutputEvent(output=event.input)


HEADERS: list[tuple[str, bytes | None]] = [
    ("z", b"1"),
    ("none", None),
    ("a", b""),
    ("z", BINARY),
    ("z", None),
    ("caf\u00e9 \U0001f600", b"\xff"),
]

FAR_AHEAD_MS = 3 * 3_600_000


@pytest.mark.parametrize(
    "delivery", ["at-least-once", pytest.param("exactly-once", marks=pytest.mark.nightly)]
)
def test_records_stay_as_they_were_on_all_ways_through_a_job(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, topic: str, delivery: Delivery
) -> None:
    """Headers of any form, and timestamps that the topics of the sinks reject, but not that of the source."""
    client = kafka_broker.client_options
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    create_topic(topic, config=any_time, **client)
    began = int(time.time()) * 1000 - 10_000
    ahead = began + FAR_AHEAD_MS
    value = b'{"customer":"Ada","amount":1.0}'
    headers: Any = headers_to_send(HEADERS)
    records = [
        {"key": b"ada", "value": value, "timestamp_ms": began},
        {"key": b"ada", "value": value, "timestamp_ms": ahead},
        {"key": b"bad", "value": value, "timestamp_ms": began},
        {"key": b"bad", "value": value, "timestamp_ms": ahead},
        {"key": b"ada", "value": b"{", "timestamp_ms": began},
        {"key": b"ada", "value": b"{", "timestamp_ms": ahead},
    ]
    append(client, topic, [{**record, "headers": headers} for record in records])
    names = [f"{topic}-{end}" for end in ("out", "letters", "dead")]
    for name in names:
        create_topic(name, **client)
    env = agents_environment(flink={"execution.checkpointing.interval": "1 s"})
    orders = kafka_source(
        env, topic, value=Order, records=True, stop="latest", dead_letters=names[2], **client
    )
    passed = env.from_datastream(orders, lambda record: record.key).apply(Passing)
    for stream, name in ((passed.to_datastream(), names[0]), (passed.dead_letters(), names[1])):
        transactional_id = name if delivery == "exactly-once" else None
        stream.sink_to(kafka_sink(name, delivery=delivery, transactional_id=transactional_id, **client))
    env.execute()
    for name in names:
        timely, late = written(client, name)
        assert timely.timestamp == began
        assert timely.headers[: len(HEADERS)] == HEADERS
        assert late.headers[: len(HEADERS)] == HEADERS
        assert dict(late.headers)["flink-agents-timestamp"] == str(ahead).encode()
        assert began <= late.timestamp < ahead
    assert redrive(names[1], f"{topic}-again", **client).topics == {f"{topic}-again": 2}
    for again in written(client, f"{topic}-again"):
        assert again.headers[: len(HEADERS)] == HEADERS
