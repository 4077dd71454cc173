"""A KafkaSink behind an agent: what leaves at the end of a bounded input is written as of now.

The time of the timers by which Flink tells of that end lies so far ahead that no broker takes it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from flink_agents import Agent, AgentsExecutionEnvironment, EventTime, InputEvent, OutputEvent, action
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.testing.kafka.artifacts import download_artifact

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
"""The newest connector: there is none for Flink 2.3, and it was made for 2.2."""

RECORDS = 40


@pytest.fixture(scope="module")
def connector() -> Path:
    """The jar file of Flink's connector, in jgo's cache."""
    import jgo
    from jgo.config import GlobalSettings

    (artifact,) = jgo.resolve(CONNECTOR, repositories=GlobalSettings.load().repositories)
    return download_artifact(artifact)


class LatecomingAgent(Agent):
    """Its runs end when all have begun, which is behind the end of the input."""

    output_type = str

    def __init__(self) -> None:
        self.begun = 0
        self.all_begun = asyncio.Event()

    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.begun += 1
        if self.begun == RECORDS:
            self.all_begun.set()
        await self.all_begun.wait()
        return OutputEvent(output=str(event.input))


def kafka_sink(broker: KafkaBroker, topic: str) -> Any:
    from pyflink.common.serialization import SimpleStringSchema
    from pyflink.datastream.connectors.base import DeliveryGuarantee
    from pyflink.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink

    values = KafkaRecordSerializationSchema.builder().set_topic(topic)
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(broker.bootstrap_servers)
        .set_record_serializer(values.set_value_serialization_schema(SimpleStringSchema()).build())
        .set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)
        .build()
    )


def written(broker: KafkaBroker, topic: str) -> list[tuple[str, int]]:
    """Value and timestamp of all records of a topic with one partition."""
    consumer: Any = KafkaConsumer(**broker.client_options, auto_offset_reset="earliest", group_id=None)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek_to_beginning(partition)
        stamped_values: list[tuple[str, int]] = []
        while (consumer.position(partition) or 0) < end:
            for records in consumer.poll(timeout_ms=500).values():
                stamped_values += [(record.value.decode(), record.timestamp) for record in records]
        return stamped_values
    finally:
        consumer.close()


def test_outputs_at_the_end_of_the_input_are_written_as_of_now(
    agents_environment: MakeEnvironment, kafka_broker: KafkaBroker, connector: Path
) -> None:
    topic = f"outputs-{os.getpid()}"
    env = agents_environment()
    stream: Any = env.stream_env
    stream.add_jars(connector.as_uri())
    records = env.from_list(range(RECORDS), lambda number: number)
    outputs = records.apply(LatecomingAgent, event_time=EventTime.ignore()).to_datastream()
    outputs.sink_to(kafka_sink(kafka_broker, topic))
    began = time.time() * 1000
    env.execute()
    stamped_values = written(kafka_broker, topic)
    assert sorted(int(value) for value, _ in stamped_values) == list(range(RECORDS))
    assert all(began - 1 <= at <= time.time() * 1000 + 1 for _, at in stamped_values), stamped_values
