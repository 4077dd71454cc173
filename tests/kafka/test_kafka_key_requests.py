"""Commands at a real broker: records in a topic, and requests about keys that a job takes from a topic."""

from __future__ import annotations

import json
import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from typer.testing import CliRunner

from flink_agents import Signal
from flink_agents.api.errors.trace import TraceOptionError
from flink_agents.api.events.key_requests import INSPECT, inspect_request
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.cli.main import app
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.requests.desk import read_signal
from flink_agents.kafka_clients import close_producer
from flink_agents.testing import OperatorHarness
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.trace.sinks.kafka import KafkaSink
from flink_agents.trace.target import TraceTarget
from flink_agents.ui.key_requests import KeyRequests
from flink_agents.ui.settings import ConsoleSettings
from tests.runtime.operator.test_operator_requests import acting
from tests.trace.clusters import cluster
from tests.trace.test_trace_records import PLAIN
from tests.ui.consoles import console

pytestmark = pytest.mark.own_conditions


class Lines(logging.Handler):
    """Keeps what is logged, as a TaskManager's log does."""

    def __init__(self) -> None:
        super().__init__()
        self.text = b""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"2026-01-01 INFO {record.getMessage()}\n".encode()


@contextmanager
def job(harness: OperatorHarness, topic: str, client: dict[str, Any]) -> Iterator[str]:
    """Let a harness take the signals of a topic, and give the address of a cluster that has its log."""
    lines, over = Lines(), threading.Event()
    logger = logging.getLogger("flink_agents.requests")
    previous_level = logger.level
    logger.level = logging.INFO
    logger.addHandler(lines)
    consumer: Any = KafkaConsumer(topic, group_id=None, auto_offset_reset="earliest", **client)

    def take() -> None:
        while not over.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    signal = read_signal(Signal(**json.loads(record.value)))
                    harness.signal(signal.key, signal.name, signal.value, id=signal.id, wait=signal.wait)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        with cluster(lambda: lines.text) as address:
            yield address
    finally:
        over.set()
        thread.join()
        consumer.close()
        logger.removeHandler(lines)
        logger.setLevel(previous_level)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def topic_of(broker: KafkaBroker, name: str) -> str:
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    KafkaApprovals(topic, **broker.client_options).create_topics()
    return topic


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("way", ["the logs", "a topic"])
def test_a_job_answers_ends_a_run_and_erases_a_key(
    kafka_broker: KafkaBroker, tmp_path: Path, way: str
) -> None:
    client = kafka_broker.client_options
    topic = topic_of(kafka_broker, "signals")
    brokers = json.dumps(client)
    options = {"trace.level": "runs", "trace.directory": str(tmp_path)}
    by_topic = way == "a topic"
    answers = topic_of(kafka_broker, "answers")
    options |= answering_to(answers, client) if by_topic else {}
    with OperatorHarness(acting(), lambda value: "k", config=options, **PLAIN) as harness:
        harness.push("wait")
        with job(harness, topic, client) as address:
            read = ("--answers", answers) if by_topic else ("--cluster", address)
            sent = ("--signals", topic, "--client", brokers, *read)
            result = run("why", "k", "--path", str(tmp_path), *sent)
            assert result.exit_code == 0, result.output
            assert "The job says:" in result.output and "the signal 'paid'" in result.output
            name = result.output.split("The job says:")[1].split("Run ")[1].split()[0]
            busy = run("erase", "k", "--yes", *sent)
            assert busy.exit_code == 1 and "unfinished" in busy.output
            # The trace has the key of the run.
            ended = run("runs", "end", name[:12], "--yes", "--reason", "lost", "--path", str(tmp_path), *sent)
            assert ended.exit_code == 0 and "ended" in ended.output, ended.output
            again = run("runs", "end", name, "--key", "k", "--yes", *sent)
            assert again.exit_code == 1 and "rejected" in again.output
            for values in ("1 values", "0 values"):
                harness.push("plain") if values[0] == "1" else None
                erased = run("erase", "k", "--yes", "--path", str(tmp_path), *sent)
                assert erased.exit_code == 0 and f"erased {values}" in erased.output, erased.output
            assert f"topic {topic}: records of the key stay" in erased.output
            settings = ConsoleSettings(client=client, signals=topic)
            settings = replace(settings, answers=answers) if by_topic else replace(settings, cluster=address)
            with console(settings) as (browser, _, _):
                page = browser.submit("/keys/inspect?raw=sk", {"key": "sk"}, "/keys?key=k")
                assert "Nothing of the key is unfinished" in page.split("What the job itself says")[1]
    assert [letter.record for letter in harness.dead_letters] == ["wait"]


def answering_to(topic: str, client: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a job that answers to a topic, with the client's options as strings."""
    more = {f"answers.kafka.client.{name}": str(value) for name, value in CLIENT.items()}
    servers = client["bootstrap_servers"]
    return {"answers.kafka.topic": topic, "answers.kafka.bootstrap-servers": servers} | more


CLIENT = {"retries": 3, "linger-ms": 0, "client_id": "answers"}


@pytest.mark.nightly
def test_a_topic_of_answers_is_checked_and_holds_whole_answers(kafka_broker: KafkaBroker) -> None:
    client = kafka_broker.client_options
    topic = topic_of(kafka_broker, "signals")
    answers = topic_of(kafka_broker, "answers")
    brokers = json.dumps(client)
    absent = run("why", "k", "--signals", topic, "--client", brokers, "--answers", "no-such-topic")
    assert absent.exit_code == 2 and "answers.kafka.topic" in absent.output, absent.output
    # What another producer writes is no answer, and an old answer is none to a new request.
    harmless = [b"no JSON", b"7", b"[]", None, b'{"request": 7}', b"[" * 100_000]
    for value in harmless:
        produce(client, answers, value)
    with OperatorHarness(
        acting(), lambda value: "k", config=answering_to(answers, client), **PLAIN
    ) as harness:
        for _ in range(60):
            harness.push("plain")
        with job(harness, topic, client):
            requests = KeyRequests(topic, client, answers=answers)
            for _ in range(2):
                request = inspect_request("k")
                (answer,) = requests.ask_agents(request, 60.0)
                assert answer["request"] == request.id and answer["sequence"] == 60 and answer["memory"]
            silent = run(
                "why", "k", "--signals", topic, "--client", brokers, "--answers", topic, "--timeout", "0.5"
            )
            assert silent.exit_code == 1 and "has not answered" in silent.output


def produce(client: dict[str, Any], topic: str, value: bytes | None) -> None:
    producer: Any = KafkaProducer(**client)
    producer.send(topic, key=b"k", value=value)
    close_producer(producer, 30.0)


def test_brokers_that_are_away_do_not_hold_a_job(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Nobody accepts connections there.
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        options = answering_to("answers", {"bootstrap_servers": servers}) | {
            "answers.kafka.client.max_block_ms": "200",
            "answers.kafka.client.bootstrap_timeout_ms": "200",
        }
        with OperatorHarness(acting(), lambda value: "k", config=options, **PLAIN) as harness:
            for _ in range(3):
                harness.signal("k", INSPECT, id="i")
                assert harness.push("plain")
    assert any("did not reach their topic" in record.getMessage() for record in caplog.records)


def test_a_topic_of_answers_needs_brokers() -> None:
    with (
        pytest.raises(TraceOptionError, match=r"answers\.kafka\.bootstrap-servers"),
        OperatorHarness(acting(), lambda value: "k", config={"answers.kafka.topic": "a"}, **PLAIN),
    ):
        pass


def test_runs_are_read_from_a_topic(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    client = kafka_broker.client_options
    topic = topic_of(kafka_broker, "trace")
    config = Configuration(
        {
            AgentOptions.TRACE_KAFKA_SERVERS.key: client["bootstrap_servers"],
            AgentOptions.TRACE_KAFKA_TOPIC.key: topic,
        }
    )
    from flink_agents.trace.reading import read_files

    options = {"trace.level": "calls", "trace.directory": str(tmp_path)}
    with OperatorHarness(acting(), lambda value: value, config=options, **PLAIN) as harness:
        harness.push_all(["plain", "wait"])
    sink = KafkaSink.from_target(TraceTarget("acting", 0, config))
    sink.write(list(read_files(tmp_path)))
    sink.close()
    read = ("--trace-topic", topic, "--client", json.dumps(client))
    listed = [json.loads(line) for line in run("runs", "--json", *read).stdout.splitlines()]
    assert {(row["key"], row["status"]) for row in listed} == {("plain", "completed"), ("wait", "suspended")}
    assert "action act  ok" in run("trace", "--key", "plain", *read).output
    assert "the signal 'paid'" in run("why", "wait", *read).output
    assert run("runs", "--trace-topic", "no-such-topic", "--client", json.dumps(client)).exit_code == 2
