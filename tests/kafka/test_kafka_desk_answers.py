"""Answers that cannot do what they say are not sent, and foreign records of a topic stop nobody."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from flink_agents import ApprovalOutcome, ApprovalRequest, ApprovalResponse, Signal
from flink_agents.api.errors import KafkaStreamError
from flink_agents.api.events.approvals import Decision
from flink_agents.cli.main import app
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.requests.desk import OUTCOME, outcome_json, request_json
from flink_agents.testing.kafka import KafkaBroker

REQUEST = ApprovalRequest(
    "sr-17|0|pay||0|0", "Pays", "pay", "r-17", "tool pay", {"amount": 4.5, "order": "tea"}
)
OTHER = ApprovalRequest("sr-18|0|pay||0|0", "Pays", "pay", "r-18", "tool pay", {"amount": 1})


class Topics:
    """A topic of requests and one of signals, of one test."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.client = broker.client_options
        self.signals, self.requests = f"signals-{uuid.uuid4().hex[:8]}", f"requests-{uuid.uuid4().hex[:8]}"
        self.desk = KafkaApprovals(self.signals, self.requests, **self.client)
        self.desk.create_topics()

    def put_record(
        self, key: str, value: bytes | None, headers: list[tuple[str, bytes]] | None = None
    ) -> None:
        producer = KafkaProducer(**self.client)
        producer.send(self.requests, key=key.encode(), value=value, headers=headers or [])
        producer.close()

    def send_requests(self, *requests: ApprovalRequest) -> None:
        for request in requests:
            self.put_record(f"{request.agent}|{request.id}", request_json(request))

    def end(self, request: ApprovalRequest, decision: Decision, **said: Any) -> None:
        outcome = ApprovalOutcome(request, decision, request.arguments, **said)
        self.put_record(f"{request.agent}|{request.id}", None, [(OUTCOME, outcome_json(outcome))])

    def sent(self) -> list[Any]:
        """The values of all signals."""
        consumer: Any = KafkaConsumer(group_id=None, **self.client)
        try:
            partition = TopicPartition(self.signals, 0)
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            sent_values: list[Any] = []
            while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
                for records in consumer.poll(timeout_ms=500).values():
                    sent_values += [json.loads(record.value)["value"] for record in records]
            return sent_values
        finally:
            consumer.close()

    def names(self) -> set[str]:
        admin = KafkaAdminClient(**self.client)
        try:
            return set(admin.list_topics())
        finally:
            admin.close()

    def run(self, *arguments: str, signals: str | None = None, requests: str | None = None) -> Any:
        options = [
            f"--bootstrap-servers={self.client['bootstrap_servers']}",
            f"--topic={requests or self.requests}",
        ]
        options += [] if arguments[0] == "list" else [f"--signals={signals or self.signals}"]
        return CliRunner().invoke(app, ["approvals", *arguments, *options])


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Topics:
    return Topics(kafka_broker)


FOREIGN = [
    b"no json",
    b"",
    b"[]",
    b'{"a": 1}',
    b'{"id": "x"}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"id": 1e999}',
    b"NaN",
]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "flink_agents.kafka"]


def test_foreign_records_are_skipped_counted_and_warned_of_once(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.send_requests(REQUEST)
    for number, value in enumerate(FOREIGN):
        topics.put_record(f"foreign-{number}", value)
    # One of them has the key of a request, which it does not hide.
    topics.put_record(f"{REQUEST.agent}|{REQUEST.id}", b"no json")
    topics.send_requests(OTHER)
    caplog.set_level(logging.WARNING, "flink_agents.kafka")
    assert {request.id for request in topics.desk.pending()} == {REQUEST.id, OTHER.id}
    assert [record.offset for record in topics.desk.foreign] == list(range(1, len(FOREIGN) + 2))
    warned = warnings_of(caplog)
    assert len(warned) == len(FOREIGN) + 1
    assert f"topic {topics.requests}, partition 0, offset 1" in warned[0]
    topics.desk.pending()
    assert warnings_of(caplog) == warned
    listed = topics.run("list")
    assert (listed.exit_code, listed.stdout.splitlines()[-1]) == (0, "2 pending")
    assert f"topic {topics.requests}, partition 0, offset 1" in listed.stderr
    assert f"skipped {len(FOREIGN) + 1} such records" in listed.stderr
    approved = topics.run("approve", REQUEST.id)
    assert (approved.exit_code, approved.stdout) == (0, "sent the approval of tool pay of Pays\n")


def test_no_topic_is_created_by_a_wrong_name(topics: Topics) -> None:
    topics.send_requests(REQUEST)
    for signals, requests, named in (("typo", None, "typo"), (None, "tippo", "tippo")):
        for command in ("approve", "deny"):
            done = topics.run(command, REQUEST.id, signals=signals, requests=requests)
            assert done.exit_code == 2
            assert f"topic {named!r} does not exist" in done.stderr
            assert "sent" not in done.output
    server = f"--bootstrap-servers={topics.client['bootstrap_servers']}"
    done = CliRunner().invoke(app, ["signal", server, "--topic=typo", "--name=paid", "--key=a"])
    assert (done.exit_code, "topic 'typo' does not exist" in done.stderr) == (2, True)
    with pytest.raises(KafkaStreamError, match="topic '.*' does not exist"):
        KafkaApprovals("typo", **topics.client).send([Signal("paid", 1, "a")])
    assert not {"typo", "tippo"} & topics.names()
    assert topics.sent() == []


WRONG = [
    ('{"amount": NaN}', 2, "takes JSON"),
    ('{"amount": Infinity}', 2, "takes JSON"),
    ('{"amount": -1e999}', 2, "takes JSON"),
    ('{"amount": [{"a": NaN}]}', 2, "takes JSON"),
    ('{"amount"', 2, "takes JSON"),
    ("[1]", 2, "JSON object"),
    ('{"amont": 3}', 1, "no argument 'amont', it has 'amount', 'order'"),
    ('{"amount": 3, "to": "me"}', 1, "no argument 'to'"),
]


def test_arguments_that_do_not_fit_are_not_sent(topics: Topics) -> None:
    topics.send_requests(REQUEST)
    for arguments, code, text in WRONG:
        done = topics.run("approve", REQUEST.id, "--arguments", arguments)
        assert (done.exit_code, text in done.stderr, done.stdout) == (code, True, ""), (
            arguments,
            done.output,
        )
    assert topics.sent() == []
    done = topics.run("approve", REQUEST.id, "--arguments", '{"note": "x"}', "--new-arguments")
    assert (done.exit_code, topics.sent()[0]["arguments"]) == (0, {"note": "x"})


SECOND = [
    (["deny"], ["approve"], "denied by Ada"),
    (["approve"], ["deny"], "approved by Ada"),
    (["approve"], ["approve", "--arguments", '{"amount": 1}'], "approved by Ada"),
    (["approve", "--arguments", '{"amount": 1}'], ["approve"], 'approved by Ada with {"amount": 1}'),
]


def test_a_contrary_second_answer_is_an_error(kafka_broker: KafkaBroker) -> None:
    for first, second, text in SECOND:
        topics = Topics(kafka_broker)
        topics.send_requests(REQUEST, OTHER)
        topics.desk.answer(ApprovalResponse(id=OTHER.id, approved=True))
        assert topics.run(*first, REQUEST.id, "--by=Ada").exit_code == 0
        done = topics.run(*second, REQUEST.id, "--by=Bo")
        assert done.exit_code == 1, done.output
        assert f"was answered already: {text}" in done.stderr
        again = topics.run(*first, REQUEST.id)
        assert (again.exit_code, "was sent before" in again.stdout) == (0, True)
        assert len(topics.sent()) == 2


ENDS = [
    (Decision.APPROVED, {"by": "Ada"}, 0, "approved tool pay of Pays by Ada"),
    (
        Decision.DENIED,
        {"by": "Bo", "reason": "too\x1b much"},
        3,
        "denied tool pay of Pays by Bo: too\\x1b much",
    ),
    (Decision.EXPIRED, {}, 3, "expired tool pay of Pays"),
]


def test_an_answer_waits_for_the_outcome(kafka_broker: KafkaBroker) -> None:
    for decision, details, code, text in ENDS:
        topics = Topics(kafka_broker)
        topics.send_requests(REQUEST)

        def job(topics: Topics = topics, decision: Decision = decision, said: Any = details) -> None:
            while not topics.sent():
                pass
            topics.end(OTHER, Decision.DENIED)
            topics.end(REQUEST, decision, **said)

        thread = threading.Thread(target=job)
        thread.start()
        done = topics.run("approve", REQUEST.id, "--wait", "--timeout", "120")
        thread.join()
        assert (done.exit_code, done.stdout.splitlines()) == (
            code,
            ["sent the approval of tool pay of Pays", text],
        )


def test_an_answer_that_nobody_takes_is_not_called_approved(topics: Topics) -> None:
    topics.send_requests(REQUEST)
    done = topics.run("approve", REQUEST.id, "--wait", "--timeout", "0")
    assert (done.exit_code, done.stdout) == (4, "sent the approval of tool pay of Pays\n")
    assert "is still pending after 0 s" in done.stderr
