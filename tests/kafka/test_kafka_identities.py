"""Sources and sinks of one job have identities of their own; no broker runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyflink.java_gateway import get_gateway

from flink_agents import AgentsExecutionEnvironment
from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from tests.suite.tables import each_case

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

SERVERS: dict[str, Any] = {"bootstrap_servers": "localhost:1"}
ONCE: dict[str, Any] = {
    "delivery": "exactly-once",
    "transactional_id": "job",
    "transaction_timeout": timedelta(minutes=1),
}
OTHER_ID = {**ONCE, "transactional_id": "other"}

Part = tuple[str, Any, dict[str, Any]]


def source(topics: Any = "orders", **options: Any) -> Part:
    return "source", topics, {"on_error": "fail", **options}


def sink(topic: str = "orders", **options: Any) -> Part:
    return "sink", topic, options


def identities(make: Callable[..., AgentsExecutionEnvironment], parts: list[Part]) -> list[str]:
    """Return the identities of the sources and sinks of a job that Flink accepts."""
    env = make(flink={"execution.checkpointing.interval": "1 min"})
    numbers = env.stream_env.from_collection([1])
    for kind, topic, options in parts:
        if kind == "source":
            kafka_source(env, topic, **options, **SERVERS).map(str)
        else:
            numbers.sink_to(kafka_sink(topic, **options, **SERVERS))
    plan: Any = env.stream_env._j_stream_execution_environment.getStreamGraph(False)
    plan.getJobGraph()
    jvm: Any = get_gateway().jvm
    nodes = [str(node.getTransformationUID()) for node in jvm.java.util.ArrayList(plan.getStreamNodes())]
    return sorted(
        re.sub("flink-agents-kafka-", "", uid) for uid in nodes if uid.startswith("flink-agents-kafka")
    )


@pytest.mark.nightly
@each_case(
    ("parts", "expected"),
    [
        ([source(), source(name="audit")], ["source-audit", "source-orders"]),
        ([source(["b", "a", "b"])], ["source-a+b"]),
        ([sink(), sink(), sink()], ["sink-orders", "sink-orders#2", "sink-orders#3"]),
        ([sink(), source()], ["sink-orders", "source-orders"]),
        ([sink(), sink(name="audit")], ["sink-audit", "sink-orders"]),
        ([sink(**ONCE), sink()], ["sink-orders", "sink-orders#2"]),
        ([sink(**ONCE), sink(name="audit", **OTHER_ID)], ["sink-audit", "sink-orders"]),
        (
            [source(on_error="dead-letter", dead_letters="dead"), sink("orders-dead-letters"), sink("dead")],
            ["sink-dead", "sink-orders-dead-letters", "sink-orders:dead-letters", "source-orders"],
        ),
    ],
)
def test_all_have_one(
    agents_environment: Callable[..., AgentsExecutionEnvironment], parts: list[Part], expected: list[str]
) -> None:
    assert [
        uid for uid in identities(agents_environment, parts) if ":" not in uid or "dead" in uid
    ] == expected


@each_case(
    ("parts", "text"),
    [
        ([source(), source()], "two Kafka sources named 'orders'"),
        ([source(["a", "b"]), source(["b", "a"])], r"two Kafka sources named 'a\+b'"),
        ([source(), source(re.compile("orders"))], "two Kafka sources named 'orders'"),
        ([source(name="in"), source("other", name="in")], "two Kafka sources named 'in'"),
        ([sink(name="out"), sink("other", name="out")], "two Kafka sinks named 'out'"),
        ([sink(), sink(**ONCE)], "two Kafka sinks named 'orders'"),
        ([sink(**ONCE), sink(**OTHER_ID)], "two Kafka sinks named 'orders'"),
        ([sink(**ONCE), sink("other", **ONCE)], "two Kafka sinks with transactional_id='job'"),
    ],
)
def test_a_second_one_needs_a_name(
    agents_environment: Callable[..., AgentsExecutionEnvironment], parts: list[Part], text: str
) -> None:
    with pytest.raises(
        KafkaStreamError, match=f"{text}(.|\n)*the other one at tests/(.|\n)*name=|transactional_id="
    ):
        identities(agents_environment, parts)


def test_a_name_is_free_when_its_job_was_submitted(
    agents_environment: Callable[..., AgentsExecutionEnvironment],
) -> None:
    env = agents_environment()
    for _ in range(2):
        kafka_source(env, "orders", on_error="fail", **SERVERS).map(str)
        java: Any = env.stream_env._j_stream_execution_environment
        java.getStreamGraph(True)
