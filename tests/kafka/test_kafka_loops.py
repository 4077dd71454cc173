"""A job that would read its own dead letters or requests for ever is rejected before it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.common.policies import OnError
from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka import (
    KafkaApprovals,
    approvals_to_kafka,
    kafka_signals,
    kafka_sink,
    kafka_source,
)
from flink_agents.connectors.kafka.subscription.loops import (
    Carried,
    TopicReader,
    TopicWriter,
    check_loops,
    find_loops,
)
from tests.suite.tables import each_case

SERVERS: dict[str, Any] = {"bootstrap_servers": "localhost:1"}
LETTERS = Carried.LETTERS
REQUESTS = Carried.REQUESTS
OUTPUTS = Carried.OUTPUTS

OWN = [
    "orders",
    ["orders"],
    ["other", "orders"],
    ("orders", "other"),
    re.compile("orders"),
    re.compile("ORD.*", re.IGNORECASE),
    re.compile(".*"),
]
OTHERS = ["orders-1", ["a", "b"], re.compile("order"), re.compile("(?!.*orders).*"), re.compile("ORDERS")]


@pytest.mark.own_conditions
@each_case("make", [kafka_source, kafka_signals])
@each_case("topics", OWN)
def test_a_source_of_its_own_letters_is_rejected_where_it_is_declared(
    make: Callable[..., Any], topics: Any
) -> None:
    env: Any = None
    with pytest.raises(KafkaStreamError, match="its own dead letters, 'orders'") as raised:
        make(env, topics, dead_letters="orders", **SERVERS)
    assert "test_kafka_loops.py" in str(raised.value).partition("\n")[0]


class NoJvmError(Exception):
    """Raised where a source would begin to be built."""


class NoEnvironment:
    @property
    def stream_env(self) -> Any:
        raise NoJvmError


@pytest.mark.own_conditions
@each_case("topics", OTHERS)
def test_a_source_of_other_topics_is_not(topics: Any) -> None:
    env: Any = NoEnvironment()
    with pytest.raises(NoJvmError):
        kafka_source(env, topics, dead_letters="orders", **SERVERS)


def reader(number: int, topics: Any, servers: str = "k:1", has_end: bool = False) -> TopicReader:
    return TopicReader(f"source {number}", topics, frozenset(servers.split(",")), has_end, number, "job.py:1")


def writer(topic: str, carried: Carried, *upstream: int, servers: str = "k:1") -> TopicWriter:
    return TopicWriter(topic, frozenset(servers.split(",")), carried, frozenset(upstream), 100)


ANY = re.compile(".*")


@pytest.mark.own_conditions
@each_case(
    ("readers", "writers", "topics"),
    [
        ([reader(1, "a")], [writer("a", LETTERS, 1)], ["a"]),
        ([reader(1, "a")], [writer("a", REQUESTS, 1)], ["a"]),
        ([reader(1, "a")], [writer("b", LETTERS, 1)], []),
        ([reader(1, ANY)], [writer("b", LETTERS, 1)], ["b"]),
        ([reader(1, ANY, has_end=True)], [writer("b", LETTERS, 1)], ["b"]),
        # Outputs may flow back if they are named, or once.
        ([reader(1, "a")], [writer("a", OUTPUTS, 1)], []),
        ([reader(1, ["a", "b"])], [writer("b", OUTPUTS, 1)], []),
        ([reader(1, ANY)], [writer("a", OUTPUTS, 1)], ["a"]),
        ([reader(1, ANY, has_end=True)], [writer("a", OUTPUTS, 1)], []),
        # Other brokers.
        ([reader(1, "a")], [writer("a", LETTERS, 1, servers="k:2")], []),
        ([reader(1, "a", "k:1,k:2")], [writer("a", LETTERS, 1, servers="k:2,k:3")], ["a"]),
        # Letters that another source reads, whose own go elsewhere.
        ([reader(1, "a"), reader(2, "b")], [writer("b", LETTERS, 1), writer("c", LETTERS, 2)], []),
        ([reader(1, "a"), reader(2, "b")], [writer("b", LETTERS, 1), writer("a", OUTPUTS, 2)], []),
        # Two sources that read each other's.
        ([reader(1, "a"), reader(2, "b")], [writer("b", LETTERS, 1), writer("a", LETTERS, 2)], ["b", "a"]),
        (
            [reader(1, "a"), reader(2, ANY)],
            [writer("b", LETTERS, 1), writer("a", REQUESTS, 2)],
            ["b", "a", "a"],
        ),
        (
            [reader(1, "a"), reader(2, "b"), reader(3, "c")],
            [writer("b", LETTERS, 1), writer("c", LETTERS, 2), writer("a", LETTERS, 3)],
            ["b", "c", "a"],
        ),
        # One agent with two sources.
        ([reader(1, "a"), reader(2, "b")], [writer("b", LETTERS, 1, 2)], ["b"]),
        ([reader(1, "a")], [], []),
        ([], [writer("a", LETTERS)], []),
    ],
)
def test_loops_of_topics(readers: list[TopicReader], writers: list[TopicWriter], topics: list[str]) -> None:
    assert [writer.topic for writer, _ in find_loops(readers, writers)] == topics


@pytest.mark.own_conditions
def test_signals_and_requests_need_a_topic_each() -> None:
    with pytest.raises(KafkaStreamError, match="need a topic each"):
        KafkaApprovals("answers", "answers", **SERVERS)
    KafkaApprovals("answers", "requests", **SERVERS)
    KafkaApprovals(**SERVERS)


class Pays(Agent):
    @action(InputEvent, on_error=OnError.DEAD_LETTER, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)


def job_of(env: AgentsExecutionEnvironment, topics: Mapping[str, Any]) -> None:
    """Build a job with all kinds of sinks."""
    orders = kafka_source(env, topics["orders"], value=str, dead_letters=topics["unread"], **SERVERS)
    answers = kafka_signals(env, topics["signals"], dead_letters=topics["no-signals"], **SERVERS)
    paid = env.from_datastream(orders, len).with_signals(answers).apply(Pays)
    paid.dead_letters().sink_to(kafka_sink(topics["failed"], **SERVERS))
    approvals_to_kafka(paid.approvals(), topics["requests"], **SERVERS)
    paid.to_datastream().sink_to(kafka_sink(topics["paid"], **SERVERS))


TOPICS = {
    topic: topic for topic in ("orders", "unread", "signals", "no-signals", "failed", "requests", "paid")
}


@pytest.mark.minicluster
@pytest.mark.own_conditions
@pytest.mark.nightly(beyond=3)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"paid": "orders"}, None),
        ({"orders": re.compile(".*ed")}, "reads dead letters of its own job from topic 'failed'"),
        ({"requests": "signals"}, "reads requests for approvals of its own job from topic 'signals'"),
        ({}, None),
        ({"failed": "orders"}, "reads dead letters of its own job from topic 'orders'"),
        ({"orders": re.compile("orders|paid")}, "reads outputs of its own job from topic 'paid'"),
    ],
)
def test_a_job_is_checked_before_it_runs(
    agents_environment: Callable[..., AgentsExecutionEnvironment], changes: dict[str, Any], text: str | None
) -> None:
    env = agents_environment()
    job_of(env, {**TOPICS, **changes})
    if text is None:
        check_loops(env.stream_env)
        return
    with pytest.raises(KafkaStreamError, match=text) as raised:
        env.execute()
    assert "test_kafka_loops.py" in str(raised.value).partition("\n")[0]
