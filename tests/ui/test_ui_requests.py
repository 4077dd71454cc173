"""Pending approvals, from a real broker: each record is read once, and what changes is shown at once."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from typer.testing import CliRunner

from flink_agents import ApprovalRequest
from flink_agents.cli.main import app
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.requests import latest
from flink_agents.connectors.kafka.requests.desk import request_json
from flink_agents.connectors.kafka.requests.latest import LatestValues
from flink_agents.connectors.kafka.requests.pending import PendingRequests
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.ui.consoles import Browser, console

pytestmark = pytest.mark.own_conditions


def request(number: int) -> ApprovalRequest:
    return ApprovalRequest(
        f"sk{number}|0|pay||0|0", "Pays", "pay", f"k{number}", "tool pay", {"amount": number}
    )


class Topics:
    """A topic of requests and one of signals, of one test."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.client = broker.client_options
        self.signals, self.requests = f"signals-{uuid.uuid4().hex[:8]}", f"requests-{uuid.uuid4().hex[:8]}"
        self.create()

    def create(self) -> None:
        KafkaApprovals(self.signals, self.requests, **self.client).create_topics()

    def put_records(self, *records: tuple[bytes, bytes | None]) -> None:
        producer = KafkaProducer(**self.client)
        for key, value in records:
            producer.send(self.requests, key=key, value=value)
        producer.close()

    def send_requests(self, *numbers: int) -> None:
        self.put_records(*((f"{number}".encode(), request_json(request(number))) for number in numbers))

    def end(self, *numbers: int) -> None:
        self.put_records(*((f"{number}".encode(), None) for number in numbers))


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Topics:
    return Topics(kafka_broker)


@pytest.fixture
def read_records(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The records that were read so far."""
    records, take = list[Any](), LatestValues[Any]._apply_record  # pyright: ignore[reportPrivateUsage]

    def noted(self: LatestValues[Any], record: Any) -> None:
        records.append(record)
        take(self, record)

    monkeypatch.setattr(LatestValues, "_apply_record", noted)
    return records


def test_a_follower_reads_each_record_once(topics: Topics, read_records: list[Any]) -> None:
    follower = PendingRequests(topics.requests, topics.client)
    try:
        assert follower.read() == []
        topics.send_requests(*range(50))
        assert follower.read() == [
            request(number) for number in sorted(range(50), key=lambda index: f"sk{index}|")
        ]
        topics.end(*range(1, 50))
        topics.send_requests(0)
        topics.put_records((b"x", b"no request"))
        for _ in range(3):
            assert follower.read() == [request(0)]
        assert (len(read_records), len(follower.foreign)) == (101, 1)
    finally:
        follower.close()


def test_a_follower_starts_over_if_it_has_to(
    topics: Topics, read_records: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin: Any = KafkaAdminClient(**topics.client)
    follower = PendingRequests(topics.requests, topics.client)
    try:
        topics.send_requests(1, 2, 3)
        assert len(follower.read()) == 3
        # Another topic has the name now.
        admin.delete_topics([topics.requests])
        while topics.requests in admin.list_topics():
            pass
        topics.create()
        topics.send_requests(7)
        assert [pending_request.key for pending_request in follower.read()] == ["k7"]
        previous_count = len(read_records)
        assert follower.read() and len(read_records) == previous_count
        monkeypatch.setattr(latest, "RENEW_SECONDS", 0.0)
        assert follower.read() and len(read_records) == previous_count + 1
        # After an error, too.
        follower.close()
        assert [pending_request.key for pending_request in follower.read()] == ["k7"]
    finally:
        follower.close()
        admin.close()


def shown(browser: Browser, text: str, path: str = "/approvals") -> str:
    """Load a page until it has a text, as the browser does."""
    page = ""
    for _ in range(600):
        if text in (page := browser.page(path)):
            return page
    raise AssertionError(page)


def test_the_console_follows_requests_and_shows_its_answers_at_once(
    topics: Topics, read_records: list[Any], tmp_path: Path
) -> None:
    topics.send_requests(1)
    settings = ConsoleSettings(
        trace=tmp_path, client=topics.client, requests=topics.requests, signals=topics.signals
    )
    with console(settings) as (browser, _, outside):
        shown(browser, "k1")
        topics.send_requests(2)
        shown(browser, "k2")
        form = {"id": request(1).id, "decision": "approve", "by": "Ada"}
        page = browser.submit("/approvals/answer", form, link_to("/approval", id=request(1).id))
        assert "approved; the job has not taken it yet" in page
        # One of two is left to decide.
        assert "<b>1</b><span>approvals pending" in browser.page("/")
        again = browser.submit("/approvals/answer", form, link_to("/approval", id=request(2).id))
        assert "was approved by Ada already" in again
        topics.end(1)
        for _ in range(600):
            if "k1" not in browser.page("/approvals"):
                break
        reading = outside.requests()
        assert reading and reading.value == [request(2)]
        assert len(read_records) == 3


def test_why_counts_records_that_are_no_requests_in_one_line(
    topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.put_records(*((f"{number}".encode(), b'{"no": "request"}') for number in range(200)))
    topics.send_requests(1)
    options = ["--path", str(tmp_path), "--requests", topics.requests]
    with caplog.at_level(logging.INFO):
        result = CliRunner().invoke(
            app, ["why", "k1", *options, "--client", str(topics.client["bootstrap_servers"])]
        )
    assert result.exit_code == 0 and "waits for an approval of tool pay" in result.output
    assert "200 record(s) of the topic" in result.output and len(result.stdout.splitlines()) < 8, (
        result.output
    )
    assert not [log_record for log_record in caplog.records if log_record.name.startswith("flink_agents")]
