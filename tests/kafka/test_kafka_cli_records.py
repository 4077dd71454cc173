"""``flink-agents kafka send`` and ``read``: what is sent is read again, in every form."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from flink_agents.cli.main import app
from flink_agents.connectors.kafka.records_of_topics import record_as_json, record_of_json
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.kafka_clients import headers_to_send
from flink_agents.testing.kafka import KafkaBroker
from tests.suite.tables import each_case

TIME_MS = int(time.time()) * 1000 - 10_000
"""Brokers remove what is older than a week."""


class Topic:
    """A topic of a broker, for commands."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.name = f"records-{uuid.uuid4().hex[:8]}"
        self.client = broker.client_options
        self.at = ["--bootstrap-servers", json.dumps(self.client)]
        create_topic(self.name, **self.client)

    def run(self, command: str, *arguments: str, stdin: bytes = b"", code: int = 0) -> list[str]:
        """Run a command on the topic, and return the lines that it prints, or those of its error."""
        result = CliRunner().invoke(app, ["kafka", command, self.name, *arguments, *self.at], input=stdin)
        assert result.exit_code == code, result.output
        # A JVM of this process may write to stderr at any time.
        return (result.stderr if code else result.stdout).splitlines()

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        """The records of the topic, as JSON has them."""
        return [json.loads(line) for line in self.run("read", "--json", *arguments)]


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of its own."""
    return Topic(kafka_broker)


def test_a_value_is_sent_with_key_and_headers(topic: Topic) -> None:
    headers = ["--header", "a=1", "--header", "b==", "--header", "a=", "--header", "a=caf\u00e9"]
    sent = topic.run("send", '{"customer": "ada"}', "--key", "ada", *headers)
    assert sent == [f"sent 1 record to {topic.name}"]
    (record,) = topic.records()
    assert record.pop("timestamp_ms") > 0
    assert record == {
        "topic": topic.name,
        "partition": 0,
        "offset": 0,
        "key": "ada",
        "value": '{"customer": "ada"}',
        "headers": [["a", "1"], ["b", "="], ["a", ""], ["a", "caf\u00e9"]],
    }


def test_lines_come_from_stdin_or_a_file(topic: Topic, tmp_path: Path) -> None:
    lines = b'{"n": 1}\n\n{"n": 2}\r\n\xff\n{"n": "caf\xc3\xa9"}'
    assert topic.run("send", stdin=lines) == [f"sent 4 records to {topic.name}"]
    file = tmp_path / "orders.jsonl"
    file.write_bytes(lines)
    assert topic.run("send", "--file", str(file), "--key", "k") == [f"sent 4 records to {topic.name}"]
    values: list[Any] = ['{"n": 1}', '{"n": 2}', {"base64": "/w=="}, '{"n": "caf\u00e9"}']
    records = topic.records()
    assert [record["value"] for record in records] == values * 2
    assert [record["key"] for record in records] == [None] * 4 + ["k"] * 4
    assert topic.run("send", stdin=b"") == [f"sent 0 records to {topic.name}"]


def test_records_are_sent_as_they_were_read(topic: Topic, kafka_broker: KafkaBroker) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("b", b"\xff"), ("a", b"")]
    producer: Any = KafkaProducer(**topic.client)
    for key, value in ((b"k", b"v"), (None, b"\xff"), (b"\xff", None), (b"", b"")):
        more: Any = {"headers": headers_to_send(headers), "timestamp_ms": TIME_MS}
        producer.send(topic.name, key=key, value=value, **more)
    producer.close()
    lines = topic.run("read", "--json")
    copy = Topic(kafka_broker)
    assert copy.run("send", "--records", stdin="\n".join(lines).encode()) == [
        f"sent 4 records to {copy.name}"
    ]
    place = {"topic", "partition", "offset"}
    copied_records, expected = (
        [{name: field for name, field in record.items() if name not in place} for record in records]
        for records in (copy.records(), topic.records())
    )
    assert copied_records == expected
    assert copied_records[0]["headers"] == [["a", "1"], ["a", None], ["b", {"base64": "/w=="}], ["a", ""]]


@each_case(
    ("line", "key", "value", "headers"),
    [
        ('{"value": "v"}', None, b"v", ()),
        ('{"key": "k"}', b"k", None, ()),
        ('{"value": {"n": [1, null]}}', None, b'{"n":[1,null]}', ()),
        ('{"value": 1, "key": 2}', b"2", b"1", ()),
        ('{"value": "v", "headers": {"a": "1", "b": null}}', None, b"v", (("a", b"1"), ("b", None))),
    ],
)
def test_a_line_can_be_written_by_hand(line: str, key: Any, value: Any, headers: Any) -> None:
    record = record_of_json(line)
    assert (record.key, record.value, record.headers.pairs) == (key, value, headers)  # type: ignore[attr-defined]
    assert record_of_json(record_as_json(record)) == record


@each_case(
    "line",
    [b"x", b"[]", b'"v"', b"1", b'{"valeu": "v"}', b'{"value": "v", "timestamp_ms": "now"}']
    + [b'{"value": "v", "headers": [["a"]]}', b'{"value": {"base64": "?"}}', b"\xff"],
)
def test_a_line_that_is_no_record_is_named(kafka_broker: KafkaBroker, line: bytes) -> None:
    topic = Topic(kafka_broker)
    assert "a line is not a record" in "\n".join(topic.run("send", "--records", stdin=line, code=2))


def test_read_starts_and_ends_where_it_should(topic: Topic) -> None:
    topic.run("send", stdin=b"a\nb\x1b[31m\nc")
    assert topic.run("read") == ["0/0\t-\ta", "0/1\t-\tb\\x1b[31m", "0/2\t-\tc"]
    assert topic.run("read", "--from", "beginning", "--limit", "1") == ["0/0\t-\ta"]
    assert topic.run("read", "--from", "end") == []
    assert topic.run("read", "--follow", "--limit", "3")[2] == "0/2\t-\tc"


def test_read_follows_until_it_is_interrupted(topic: Topic) -> None:
    topic.run("send", "first")
    command = [str(Path(sys.executable).with_name("flink-agents")), "kafka", "read", topic.name, "--follow"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, *topic.at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == "0/0\t-\tfirst\n"
        topic.run("send", "second", "--key", "k")
        assert reading.stdout.readline() == "0/1\tk\tsecond\n"
        reading.send_signal(signal.SIGINT)
        assert (reading.wait(), reading.stderr.read()) == (0, "")


@each_case("command", ["send", "read"])
def test_a_topic_that_does_not_exist_is_not_created(kafka_broker: KafkaBroker, command: str) -> None:
    topic = Topic(kafka_broker)
    topic.name = uuid.uuid4().hex
    error = "\n".join(topic.run(command, *(["v"] if command == "send" else []), code=2))
    assert f"KafkaStreamError: topic '{topic.name}' does not exist" in error
    assert f"flink-agents kafka topic create {topic.name}" in error


@each_case(
    "arguments",
    [["v", "--records"], ["v", "--file", __file__], ["v", "--header", "a"], ["--file", "/no/such/file"]],
)
def test_arguments_that_contradict_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(
        app, ["kafka", "send", "orders", *arguments, "--bootstrap-servers", "localhost:1"]
    )
    assert result.exit_code == 2
    assert "Usage" in result.output
