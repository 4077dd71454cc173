"""``flink-agents kafka topic``: makes, lists and describes topics; brokers that do not answer are named."""

from __future__ import annotations

import json
import uuid

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from typer.testing import CliRunner

from flink_agents.cli.main import app
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.testing.kafka import KafkaBroker


def topic(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["kafka", "topic", *words])
    # A JVM of this process may write to stderr at any time.
    return result.exit_code, result.stderr if result.exit_code else result.stdout


def test_a_topic_is_made_listed_and_described(kafka_broker: KafkaBroker) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    client = ("--bootstrap-servers", json.dumps(kafka_broker.client_options))
    create_arguments = ("create", name, "--partitions", "3", "--config", "retention.ms=60000", *client)
    assert topic(*create_arguments) == (0, f"created topic {name}\n")
    assert topic(*create_arguments) == (0, f"topic {name} already exists\n")
    assert name in topic("list", *client)[1].splitlines()
    assert name in json.loads(topic("list", "--json", *client)[1])
    producer = KafkaProducer(**kafka_broker.client_options)
    producer.send(name, b"a").get()
    producer.close()
    code, text = topic("describe", name, "--json", *client)
    assert (code, json.loads(text)) == (
        0,
        {
            "name": name,
            "partitions": 3,
            "replication_factor": 1,
            "records": 1,
            "config": {"retention.ms": "60000"},
        },
    )
    assert "partitions   3" in topic("describe", name, *client)[1]


def test_a_topic_that_is_not_there_is_named_with_its_neighbours(kafka_broker: KafkaBroker) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    client = ("--bootstrap-servers", json.dumps(kafka_broker.client_options))
    topic("create", name, *client)
    code, text = topic("describe", f"{name}s", *client)
    assert (code, f"did you mean {name!r}" in text) == (2, True), text
    code, text = topic("create", "x", "--config", "retention", *client)
    assert (code, "name=value" in text) == (2, True)


def test_brokers_that_do_not_answer_are_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = {"bootstrap_servers": "127.0.0.1:1", "request_timeout_ms": 1000, "bootstrap_timeout_ms": 500}
    code, text = topic("list", "--bootstrap-servers", json.dumps(options))
    assert (code, "the brokers at 127.0.0.1:1 cannot be reached" in text) == (2, True), text
    code, text = topic("list", "--data", str(tmp_path / "none"))
    assert (code, "flink-agents kafka start" in text) == (2, True), text


def test_a_topic_is_known_when_its_creation_returns(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers tell clients of a new topic a moment later; here, at their third answer."""
    list_topics = KafkaAdminClient.list_topics
    answers = list[bool]()

    def list_late(self: KafkaAdminClient) -> list[str]:
        names = list_topics(self)
        answers.append(len(answers) >= 2)
        return names if answers[-1] else []

    monkeypatch.setattr(KafkaAdminClient, "list_topics", list_late)
    assert create_topic(f"late-{uuid.uuid4().hex[:8]}", **kafka_broker.client_options)
    assert answers == [False, False, True]
