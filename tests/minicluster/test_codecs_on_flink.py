"""Topics with compressed records, on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient
from pyflink.common import Types

from flink_agents import AgentsExecutionEnvironment
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from flink_agents.testing.kafka import KafkaBroker
from tests.minicluster.test_kafka_streams import append

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.mark.nightly
def test_records_of_all_codecs_are_read_and_written(
    agents_environment: Callable[..., AgentsExecutionEnvironment], kafka_broker: KafkaBroker
) -> None:
    client: dict[str, Any] = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    name = uuid.uuid4().hex
    topics = [f"{name}-{codec}" for codec in CODECS]
    topic_settings = {"num_partitions": 1, "replication_factor": 1}
    admin: Any = KafkaAdminClient(**client)
    admin.create_topics(
        {
            topic: {**topic_settings, "configs": {"compression.type": codec}}
            for topic, codec in zip(topics, CODECS, strict=True)
        }
        | {name: topic_settings}
    )
    admin.close()
    for topic, codec in zip(topics, CODECS, strict=True):
        # The broker compresses it.
        append(client, topic, [{"value": codec.encode() * 100}])
    env = agents_environment()
    texts = kafka_source(env, topics, value=str, stop="latest", on_error="fail", **client)
    outputs = env.collect(texts.map(lambda text: text, output_type=Types.PICKLED_BYTE_ARRAY()))
    texts.sink_to(kafka_sink(name, properties={"compression.type": "zstd"}, **client))
    env.execute()
    assert sorted(outputs) == sorted(codec * 100 for codec in CODECS)
