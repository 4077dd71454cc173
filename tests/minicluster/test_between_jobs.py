"""What goes from job to job: envelopes in files, and dead letters that are put back in."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from pydantic import BaseModel
from pyflink.common import Encoder, Types, WatermarkStrategy
from pyflink.datastream.connectors.file_system import FileSink, FileSource, RollingPolicy, StreamFormat

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.connectors.envelopes import EnvelopeReader, Message, write_envelope
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from flink_agents.connectors.kafka.dead_letters.redrive import redrive
from flink_agents.testing.kafka import KafkaBroker

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


class Order(BaseModel):
    number: int
    customer: str


class Priced(BaseModel):
    number: int
    customer: str
    price: int


ORDERS = [Order(number=number, customer="ab"[number % 2]) for number in range(10)]


class Pricing(Agent):
    @action(InputEvent)
    def price(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order: Order = event.input
        return OutputEvent(
            output=Priced(number=order.number, customer=order.customer, price=10 * order.number)
        )


class Shipping(Agent):
    @action(InputEvent)
    def ship(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        message: Message[Priced] = event.input
        parcel = ctx.short_term_memory.get("parcels", 0) + 1
        ctx.short_term_memory.set("parcels", parcel)
        return OutputEvent(output=(message.value.number, message.value.price, parcel))


def test_files_lead_from_job_to_job_with_lineage(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    first = agents_environment()
    first.stream_env.set_parallelism(1)
    priced = first.from_list(ORDERS, lambda order: order.customer).apply(Pricing, lineage=True)
    sink = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    sink = sink.with_rolling_policy(RollingPolicy.default_rolling_policy()).build()
    lines = priced.to_datastream().map(write_envelope, output_type=Types.STRING())
    lines.sink_to(sink)
    first.execute()

    second = agents_environment()
    second.stream_env.set_parallelism(1)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path)).build()
    read = second.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "priced")
    messages = read.map(EnvelopeReader(Priced))
    shipped = second.from_datastream(messages, lambda message: message.value.customer)
    outputs = shipped.apply(Shipping, lineage=True).to_list()
    second.execute()

    assert sorted(output.value[:2] for output in outputs) == [(number, 10 * number) for number in range(10)]
    assert sorted(output.value[2] for output in outputs) == sorted([*range(1, 6)] * 2)
    parents = {output.lineage.parent for output in outputs}
    written = [EnvelopeReader(Priced)(line) for line in lines_in(tmp_path)]
    assert {message.message_id for message in written} == parents
    assert {message.lineage.agent for message in written if message.lineage is not None} == {"Pricing"}


def lines_in(directory: Path) -> list[str]:
    files = [file for file in directory.rglob("*") if file.is_file()]
    return [line for file in files for line in file.read_text("utf-8").splitlines()]


class Picky(Agent):
    """Cannot handle some numbers, as long as a file says so."""

    on_error = "dead-letter"

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    @action(InputEvent)
    def take(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order: Order = event.input.value
        if Path(self.broken).exists() and order.number % 3 == 0:
            raise ConnectionError(f"number {order.number}")
        return OutputEvent(output=order.number)


@pytest.mark.nightly
def test_dead_letters_of_an_agent_go_back_in(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    client = kafka_broker.client_options
    dead = f"{topic}-dead"
    broken = tmp_path / "broken"
    broken.touch()
    admin: Any = KafkaAdminClient(**client)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    producer = KafkaProducer(**client)
    for order in ORDERS:
        producer.send(topic, key=b"k", value=order.model_dump_json().encode())
    producer.send(topic, value=b"{")
    producer.close()

    def run_job() -> list[int]:
        env = agents_environment()
        env.stream_env.set_parallelism(1)
        read: dict[str, Any] = {"records": True, "stop": "latest", **client}
        orders = kafka_source(env, topic, value=Order, dead_letters=dead, **read)
        applied = env.from_datastream(orders, lambda record: record.value.customer).apply(Picky(str(broken)))
        # Letters of the source and of the agent share a topic.
        applied.dead_letters().sink_to(kafka_sink(dead, name="agent letters", **client))
        outputs = applied.to_list()
        env.execute()
        return outputs

    assert sorted(run_job()) == [1, 2, 4, 5, 7, 8]
    broken.unlink()
    result = redrive(dead, choose=lambda letter: letter.error_type == "ConnectionError", **client)
    assert (result.topics, result.left_out) == ({topic: 4}, 1)
    # The job, without a state here, reads the topic from its begin, and its letters behind that.
    assert sorted(run_job()) == sorted([*range(10), 0, 3, 6, 9])
    consumer: Any = KafkaConsumer(topic, auto_offset_reset="earliest", group_id=None, **client)
    again = [dict(record.headers) for _, record in zip(range(15), consumer, strict=False)][11:]
    consumer.close()
    assert again == [{"flink-agents-redrive": b"1"}] * 4
