"""Commands at a real broker: records in a topic, and requests about keys that a job takes from a topic."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from typer.testing import CliRunner

from flink_agents import Signal
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.cli.main import app
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.desk import read_signal
from flink_agents.testing import OperatorHarness
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.trace.sinks.kafka import KafkaSink
from flink_agents.trace.target import TraceTarget
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
    before, logger.level = logger.level, logging.INFO
    logger.addHandler(lines)
    consumer: Any = KafkaConsumer(topic, group_id=None, auto_offset_reset="earliest", **client)

    def take() -> None:
        while not over.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                for one in records:
                    signal = read_signal(Signal(**json.loads(one.value)))
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
        logger.setLevel(before)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def topic_of(broker: KafkaBroker, name: str) -> str:
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    KafkaApprovals(topic, **broker.client_options).create_topics()
    return topic


def test_a_job_answers_ends_a_run_and_erases_a_key(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    client = kafka_broker.client_options
    topic, brokers = topic_of(kafka_broker, "signals"), json.dumps(client)
    options = {"trace.level": "runs", "trace.directory": str(tmp_path)}
    with OperatorHarness(acting(), lambda value: "k", config=options, **PLAIN) as harness:
        harness.push("wait")
        with job(harness, topic, client) as address:
            sent = ("--signals", topic, "--client", brokers, "--cluster", address)
            told = run("why", "k", *sent)
            assert told.exit_code == 0, told.output
            assert "The job says:" in told.output and "the signal 'paid'" in told.output
            name = told.output.split("Run ")[1].split()[0]
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
            settings = ConsoleSettings(client=client, signals=topic, cluster=address)
            with console(settings) as (browser, _, _):
                said = browser.submit("/keys/inspect?raw=sk", {"key": "sk"}, "/keys?key=k")
                assert "The job says: Nothing of the key is unfinished" in said
        assert [one.record for one in harness.dead_letters] == ["wait"]


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
    listed = [json.loads(line) for line in run("runs", "--json", *read).output.splitlines()]
    assert {(one["key"], one["status"]) for one in listed} == {("plain", "completed"), ("wait", "suspended")}
    assert "action act  ok" in run("trace", "--key", "plain", *read).output
    assert "the signal 'paid'" in run("why", "wait", *read).output
    assert run("runs", "--trace-topic", "no-such-topic", "--client", json.dumps(client)).exit_code == 2
