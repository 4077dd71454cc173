"""The desk at which people see what agents ask, and answer: formats, topics, and the commands."""

from __future__ import annotations

import gc
import json
import shlex
import subprocess
import uuid
from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from pydantic import AfterValidator, TypeAdapter, ValidationError
from typer.testing import CliRunner

from flink_agents import Agent, ApprovalRequest, ApprovalResponse, InputEvent, OutputEvent, Signal, action
from flink_agents.api.errors import KafkaStreamError, KafkaValueError
from flink_agents.api.events.approvals import plain
from flink_agents.cli.kafka import approvals
from flink_agents.cli.main import app
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.requests.desk import (
    read_request,
    read_signal,
    request_json,
    request_with,
    signal_json,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.kafka import KafkaBroker


class Pays(Agent):
    @action(InputEvent, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=f"paid {event.input}")


def request_of(key: Any) -> tuple[OperatorHarness, ApprovalRequest]:
    harness = OperatorHarness(Pays, key_selector=lambda record: key)
    harness.push("kettle")
    [request] = harness.approvals
    return harness, request


def sent_and_read(signal: Signal) -> Signal:
    return read_signal(TypeAdapter(Signal).validate_json(signal_json(signal)))


KEYS = ["r-17", 'a|"b"|c', 7, ("a", 1), ("a", ("b|", 2)), True, None, 1.5, b"\x00\xff", date(2026, 11, 22)]


@pytest.mark.parametrize("key", KEYS)
def test_requests_and_answers_go_through_json_with_keys_of_any_type(key: Any) -> None:
    harness, request = request_of(key)
    read = read_request(request_json(request))
    assert (read, type(read.key)) == (request, type(key))
    answer = sent_and_read(read.approve({"input": "tea"}, by="Ada"))
    assert harness.signal(answer.key, answer.name, answer.value, wait=answer.wait) == ["paid tea"]


HALF = "half \ud800 of a character"
SHOWN = "half \\ud800 of a character"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"text": HALF}, {"text": SHOWN}),
        ({HALF: [HALF, {HALF: 1}]}, {SHOWN: [SHOWN, {SHOWN: 1}]}),
        ({"at most": float("inf"), "rate": [float("nan")]}, {"at most": "Infinity", "rate": ["NaN"]}),
    ],
    ids=["text", "name", "number"],
)
def test_a_request_with_what_json_cannot_say_is_written(said: Any, shown: Any) -> None:
    """The sink of a job would fail at it for ever."""
    request = ApprovalRequest("s\\ud800|0|work||0|1", "Shop", "work", "\ud800", HALF, plain(said))
    read = read_request(request_json(request))
    assert (read.id, read.key, read.what) == (request.id, "\ud800", SHOWN)
    assert read.arguments == shown


@pytest.mark.parametrize(
    "key", ["enowhere:Colour:RED", "eos:path:RED", "eflink_agents.api.events.signals:Signal:RED", "e", "t1:q"]
)
def test_an_id_of_a_wait_from_outside_names_a_key_or_is_refused_as_any_other(key: str) -> None:
    value = TypeAdapter(Annotated[Signal, AfterValidator(read_signal)])
    with pytest.raises(ValidationError, match="not the id of a wait"):
        value.validate_python({"name": "approval", "wait": f"{key}|0|pay||0"})


@pytest.mark.parametrize("key", ["r-17", 7, ("a", ("b", 2))])
def test_signals_without_a_wait_have_a_key_of_json(key: Any) -> None:
    signal = Signal("approval", {"granted": True}, key, id="s1")
    assert sent_and_read(signal) == signal


def raw_request(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "id": "sk|0|pay||0|1",
        "agent": "a",
        "action": "pay",
        "key": "k",
        "what": "tool pay",
    }
    return json.dumps({**fields, "arguments": {}, **changes}).encode()


@pytest.mark.parametrize("key", ["enowhere:Colour:RED", "cnowhere:Order:number:2:i7"])
def test_a_request_of_a_key_whose_class_is_not_here_can_be_answered(key: str) -> None:
    request = read_request(raw_request(id=f"{key}|0|pay||0|1"))
    assert request.key == key
    assert json.loads(signal_json(request.approve()))["wait"] == f"{key}|0|pay||0"


@pytest.mark.parametrize(
    "changes",
    [
        {"began_at": 10**400},
        {"began_at": -1},
        {"began_at": 10**17},
        {"expires_at": 10**30},
        {"expires_at": -5},
        {"id": "cnowhere:Order|pay||0|1"},
        {"id": ""},
        {"id": "|" * 10},
    ],
)
def test_a_request_that_no_agent_wrote_is_refused(changes: dict[str, Any]) -> None:
    """What no calendar has would end each command that shows it."""
    with pytest.raises(KafkaValueError, match="not a request"):
        read_request(raw_request(**changes))


def test_requests_with_one_id_that_differ_are_not_answered() -> None:
    """Who writes to their topic could show something harmless beside the real one."""
    real = read_request(raw_request())
    other_agent = read_request(raw_request(agent="b"))
    assert request_with(real.id, [other_agent, real]) == other_agent
    assert request_with("none", [real]) is None
    for changes in ({"arguments": {"amount": 1}}, {"what": "tool tip"}):
        with pytest.raises(KafkaValueError, match="different things"):
            request_with(real.id, [real, read_request(raw_request(agent="b", **changes))])


def test_what_is_no_request_is_refused_by_name() -> None:
    with pytest.raises(KafkaValueError, match="not a request"):
        read_request(b'{"a": 1}')
    with pytest.raises(KafkaValueError, match="not a request"):
        read_request(b'{"id": "x", "agent": "", "action": "", "key": 1, "what": ""}')


def test_a_desk_says_which_topic_it_misses() -> None:
    with pytest.raises(KafkaStreamError, match="needs their topic"):
        KafkaApprovals(requests="a").send([])
    with pytest.raises(KafkaStreamError, match="needs their topic"):
        KafkaApprovals(signals="a").pending()


@pytest.mark.parametrize("wait", ["", "garbage", "i0|0|pay", "i0|x|pay||0", "|0|pay||0"])
def test_a_signal_for_the_id_of_no_wait_is_refused_where_it_is_sent(wait: str) -> None:
    with pytest.raises(KafkaValueError, match="invalid id of a wait"):
        signal_json(Signal("approval", 1, wait=wait))


@pytest.mark.parametrize("key", ['{"a": 1}', '[1, {"a": 1}]', "NaN"])
def test_a_record_with_a_key_that_no_run_has_is_no_signal(key: str) -> None:
    kind = TypeAdapter(Annotated[Signal, AfterValidator(read_signal)])
    with pytest.raises(ValidationError, match="no run has the key"):
        kind.validate_json(f'{{"name": "approval", "key": {key}}}')


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["signal", "--topic", "a", "--name", "b", "--key", "1", "-o", "nonsense=1"], "Unrecognized configs"),
        (
            ["signal", "--topic", "a", "--name", "b", "--key", "1", "--bootstrap-servers", "h::"],
            "invalid literal",
        ),
        (["signal", "--topic", "a", "--name", "b", "--wait", "garbage"], "invalid id of a wait"),
        (["approvals", "list", "--topic", "a", "-o", "request_timeout_ms=abc"], "cannot create a client"),
        (["kafka", "redrive", "a", "--bootstrap-servers", "{bad"], "HOST:PORT or JSON"),
        (["kafka", "redrive", "a", "--bootstrap-servers", '{"nonsense": 1}'], "Unrecognized configs"),
        (
            ["kafka", "redrive", "a", "--bootstrap-servers", '{"bootstrap_servers": 1}'],
            "cannot create a client",
        ),
        pytest.param(
            *(["kafka", "redrive", "a", "--bootstrap-servers", "127.0.0.1:1"], "cannot be reached"),
            # It tries for half a minute.
            marks=pytest.mark.nightly,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_commands_say_what_is_wrong_with_their_options(arguments: list[str], problem: str) -> None:
    done = CliRunner().invoke(app, arguments)
    # What kafka-python leaves open where it refuses its options belongs to this test.
    gc.collect()
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
    assert problem in done.stderr
    assert "Traceback" not in done.output


# -- on a broker ---------------------------------------------------------------------


def put_records(client: dict[str, Any], topic: str, records: Iterable[tuple[str, bytes | None]]) -> None:
    producer = KafkaProducer(**client)
    for key, value in records:
        producer.send(topic, key=key.encode(), value=value)
    producer.close()


def values(client: dict[str, Any], topic: str) -> list[Any]:
    consumer: Any = KafkaConsumer(group_id=None, **client)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        signal_values: list[Any] = []
        while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
            for records in consumer.poll(timeout_ms=500).values():
                signal_values += [json.loads(record.value) for record in records]
        return signal_values
    finally:
        consumer.close()


@pytest.fixture
def desk(kafka_broker: KafkaBroker) -> tuple[KafkaApprovals, str, str]:
    """A desk with topics of its own, and their names."""
    signals = f"signals-{uuid.uuid4().hex[:8]}"
    requests = f"requests-{uuid.uuid4().hex[:8]}"
    kafka_desk = KafkaApprovals(signals, requests, **kafka_broker.client_options)
    kafka_desk.create_topics()
    kafka_desk.create_topics()
    return kafka_desk, signals, requests


def test_what_has_ended_is_pending_no_more(kafka_broker: KafkaBroker, desk: Any) -> None:
    kafka_desk, signals, requests = desk
    _, first = request_of("a")
    _, second = request_of("b")
    assert kafka_desk.pending() == []
    records = [("a", request_json(first)), ("b", request_json(second)), ("a", request_json(first))]
    put_records(kafka_broker.client_options, requests, records)
    assert kafka_desk.pending() == [first, second]
    put_records(kafka_broker.client_options, requests, [("a", None)])
    assert kafka_desk.pending() == [second]
    kafka_desk.answer(ApprovalResponse(id=second.id, approved=False, reason="no"))
    [sent_signal] = values(kafka_broker.client_options, signals)
    assert sent_signal["wait"] == second.id.rpartition("|")[0]
    assert sent_signal["value"] == {"id": second.id, "approved": False, "reason": "no"}


def test_the_commands_list_and_answer(kafka_broker: KafkaBroker, desk: Any) -> None:
    _, signals, requests = desk
    harness, request = request_of("r-17")
    client = kafka_broker.client_options
    put_records(client, requests, [("r-17", request_json(request))])
    options = [f"--bootstrap-servers={client['bootstrap_servers']}", f"--topic={requests}"]
    run = CliRunner().invoke
    listed = run(app, ["approvals", "list", *options])
    assert listed.exit_code == 0, listed.output
    assert shlex.split(listed.stdout.splitlines()[0]) == [request.id]
    assert "action pay of Pays, key 'r-17'" in listed.output
    assert [
        listed_request["id"]
        for listed_request in json.loads(run(app, ["approvals", "list", "--json", *options]).stdout)
    ] == [request.id]
    options.append(f"--signals={signals}")
    unknown = run(app, ["approvals", "deny", "r-18|0|pay||0|0", *options])
    assert (unknown.exit_code, values(client, signals)) == (1, [])
    changed = ["--arguments", '{"input": "tea"}', "--by", "Ada"]
    approved = run(app, ["approvals", "approve", request.id, *options, *changed])
    assert approved.exit_code == 0, approved.output
    assert approved.stdout == "sent the approval of action pay of Pays\n"
    [sent_signal] = values(client, signals)
    answer = read_signal(TypeAdapter(Signal).validate_python(sent_signal))
    assert harness.signal(answer.key, answer.name, answer.value, wait=answer.wait) == ["paid tea"]


@pytest.mark.parametrize(
    "key", ["r-17", "so'k; echo $(id) `id`", "two\nlines \\ '", "\x1b[31mred", "\u202eé"]
)
def test_an_id_is_printed_as_one_word_of_a_shell(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, request = request_of(key)

    class Desk:
        foreign = ()

        def pending(self) -> list[ApprovalRequest]:
            return [request]

    monkeypatch.setattr(approvals, "_open_desk", lambda *_, **__: Desk())
    listed = CliRunner().invoke(app, ["approvals", "list", "--topic", "approvals"]).stdout
    word = listed.splitlines()[0]
    assert word.isprintable()
    result = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert result.stdout.decode() == request.id
    printed = json.loads(CliRunner().invoke(app, ["approvals", "list", "--topic", "a", "--json"]).stdout)
    assert [listed_request["id"] for listed_request in printed] == [request.id]


def test_the_command_signal_sends_one(kafka_broker: KafkaBroker, desk: Any) -> None:
    _, signals, _ = desk
    client = kafka_broker.client_options
    options = [f"--bootstrap-servers={client['bootstrap_servers']}", f"--topic={signals}", "--name=paid"]
    run = CliRunner().invoke
    sent = run(app, ["signal", *options, "--key", '["a", 1]', "--value", '{"amount": 3}', "--id", "s1"])
    assert sent.exit_code == 0, sent.output
    assert values(client, signals) == [{"name": "paid", "value": {"amount": 3}, "key": ["a", 1], "id": "s1"}]
    assert run(app, ["signal", *options, "--value", "{"]).exit_code == 2
    assert run(app, ["signal", *options, "--key", "a", "--wait", "b"]).exit_code == 2


def test_a_topic_that_is_not_there_is_named(kafka_broker: KafkaBroker) -> None:
    desk = KafkaApprovals(requests=f"none-{uuid.uuid4().hex}", **kafka_broker.client_options)
    with pytest.raises(KafkaStreamError, match="topic '.*' does not exist"):
        desk.pending()
