"""The console at a real broker: its pages answer requests, send signals and put dead letters back."""

from __future__ import annotations

import html
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kafka import KafkaProducer

from flink_agents import Agent, ApprovalRequest, InputEvent, OutputEvent, action
from flink_agents.connectors.kafka import KafkaApprovals
from flink_agents.connectors.kafka.requests.desk import answers_to, key_of, request_json
from flink_agents.connectors.kafka.requests.latest import reader_of, records_until_now
from flink_agents.connectors.kafka.values import write_value
from flink_agents.testing import OperatorHarness
from flink_agents.testing.kafka import KafkaBroker
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.kafka.test_kafka_redrive import letter_of, write_letters
from tests.trace.test_trace_records import PLAIN
from tests.ui.consoles import Browser, console

pytestmark = pytest.mark.own_conditions

HOSTILE = "<script>alert(1)</script>\u202e"


class Pays(Agent):
    @action(InputEvent, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=f"paid {event.input}")


@dataclass
class Desk:
    """A console with topics of its own, and what lies in them."""

    broker: KafkaBroker
    browser: Browser
    requests: str
    signals: str
    letters: str

    def request_approval(self, key: Any, value: Any) -> tuple[OperatorHarness, ApprovalRequest]:
        """Let a run ask for an approval, and show the request to the console."""
        harness = OperatorHarness(Pays, key_selector=lambda record: key, **PLAIN)
        harness.push(value)
        [request] = harness.approvals
        self.write(self.requests, key_of(request).encode(), request_json(request))
        self.until("/approvals", request.what)
        return harness, request

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        producer = KafkaProducer(**self.broker.client_options)
        producer.send(topic, key=key, value=value).get(timeout=60)
        producer.close()

    def until(self, path: str, text: str) -> str:
        """Load a page until it says something: a browser polls it, too."""
        while text not in (page := html.unescape(self.browser.page(path))):
            assert "cannot be read" not in page, page
        return page

    def answer(self, request: ApprovalRequest, **fields: str) -> str:
        page = self.browser.page(link_to("/approval", id=request.id))
        form_inputs = re.findall(
            r'name="((?:argument|before):[^"]*)"[^>]*?(?:value="([^"]*)"|>([^<]*)<)', page
        )
        shown = {html.unescape(name): html.unescape(value or text) for name, value, text in form_inputs}
        form = {"id": request.id, **shown, **fields}
        return html.unescape(
            self.browser.submit("/approvals/answer", form, link_to("/approval", id=request.id))
        )


@pytest.fixture(scope="module")
def desk(kafka_broker: KafkaBroker) -> Iterator[Desk]:
    name = uuid.uuid4().hex[:8]
    requests = f"requests-{name}"
    signals = f"answers-{name}"
    letters = f"letters-{name}"
    KafkaApprovals(signals, requests, **kafka_broker.client_options).create_topics()
    for topic in (letters, f"{letters}-to"):
        KafkaApprovals(topic, **kafka_broker.client_options).create_topics()
    settings = ConsoleSettings(
        client=kafka_broker.client_options, requests=requests, signals=signals, dead_letters=(letters,)
    )
    with console(settings) as (browser, _, _):
        yield Desk(kafka_broker, browser, requests, signals, letters)


def test_a_request_is_approved_with_a_changed_argument_once(desk: Desk) -> None:
    harness, request = desk.request_approval("ada", "kettle")
    page = desk.answer(request, decision="approve", by="Ada", **{"argument:input": "tea"})
    assert "sent: approved" in page and "the job has not taken it yet" in page
    [answer] = answers_to(request, desk.signals, desk.broker.client_options)
    assert (answer.approved, answer.arguments, answer.by) == (True, {"input": "tea"}, "Ada")
    # Somebody whose page is older presses a button, too.
    browser = desk.browser
    form = {"id": request.id, "decision": "deny", "reason": "no"}
    assert "approved by Ada already" in html.unescape(browser.submit("/approvals/answer", form, "/signals"))
    assert len(answers_to(request, desk.signals, desk.broker.client_options)) == 1
    signal = request.answer(answer)
    assert harness.signal(signal.key, signal.name, signal.value, wait=signal.wait) == ["paid tea"]
    desk.write(desk.requests, key_of(request).encode(), None)
    assert "no longer pending" in html.unescape(browser.submit("/approvals/answer", form, "/signals"))


def test_a_request_is_denied_with_a_reason(desk: Desk) -> None:
    _, request = desk.request_approval(("bo", 1), 7)
    assert "sent: denied" in desk.answer(request, decision="deny", reason="too much")
    [answer] = answers_to(request, desk.signals, desk.broker.client_options)
    assert (answer.approved, answer.arguments, answer.reason) == (False, None, "too much")


def test_answers_that_do_not_fit_are_not_sent(desk: Desk) -> None:
    _, request = desk.request_approval("cy", HOSTILE)
    page = desk.browser.page(link_to("/approval", id=request.id))
    assert "<script>alert" not in page and "\u202e" not in page
    for fields, message in [
        ({"decision": "approve", "argument:input": "{"}, "takes JSON"),
        ({"decision": "approve", "argument:input": "NaN"}, "takes JSON"),
        ({"decision": "approve", "argument:input": "1e999"}, "takes JSON"),
        ({"decision": "approve", "argument:other": "1", "before:other": "2"}, "has no argument 'other'"),
        ({"decision": "approve", "more": "[]"}, "a JSON object"),
        ({"decision": "maybe"}, "neither approves nor denies"),
    ]:
        assert message in desk.answer(request, **fields)
    assert answers_to(request, desk.signals, desk.broker.client_options) == []
    assert "sent: approved" in desk.answer(request, decision="approve")
    [answer] = answers_to(request, desk.signals, desk.broker.client_options)
    # Nobody changed anything, whatever characters the argument has.
    assert answer.arguments is None


def test_a_signal_is_sent(desk: Desk) -> None:
    for form, message in [
        ({"name": "paid", "key": '["a", 1]', "value": '{"sum": 2}', "id": "s-1"}, "sent the signal paid"),
        ({"name": "paid", "wait": "sa|0|pay||0"}, "sent the signal paid"),
        ({"name": "paid", "key": "a", "value": "{"}, "takes JSON"),
        ({"name": "paid", "wait": "nonsense"}, "invalid id of a wait"),
        ({"name": "", "key": "a"}, "needs a name"),
        ({"name": "paid"}, "needs a name"),
    ]:
        assert message in html.unescape(desk.browser.submit("/signals/send", form, "/signals"))
    with reader_of(desk.signals, desk.broker.client_options) as (consumer, partitions):
        consumer.seek_to_beginning(*partitions)
        sent = [
            record.value for record in records_until_now(consumer, partitions) if b'"paid"' in record.value
        ]
    assert [b'"sum"' in value for value in sent] == [True, False]
    assert b'"id":"s-1"' in sent[0] and b'"wait":"sa|0|pay||0"' in sent[1]


def test_dead_letters_are_put_back_each_once(desk: Desk) -> None:
    target = f"{desk.letters}-to"
    write_letters(
        desk.broker, desk.letters, [letter_of(target, number, ValueError(HOSTILE)) for number in range(3)]
    )
    page = desk.until("/dead-letters", f"{desk.letters}/0/2")
    raw = desk.browser.page("/dead-letters")
    assert "<script>alert" not in raw and "\u202e" not in raw and "clerk" in page
    browser = desk.browser
    form = {"topic": desk.letters, "place": [f"{desk.letters}/0/1"], "to": target}
    assert f"1 into {target}" in browser.submit("/dead-letters/redrive", form, "/dead-letters")
    assert "sent back before" in browser.submit("/dead-letters/redrive", form, "/dead-letters")
    assert "no dead letter is chosen" in browser.submit(
        "/dead-letters/redrive", {"topic": desk.letters}, "/dead-letters"
    )
    assert "no dead letter is chosen" in browser.submit(
        "/dead-letters/redrive", {**form, "topic": "others"}, "/dead-letters"
    )
    letters_page = browser.page("/dead-letters")
    assert [f"{desk.letters}/0/{number}" in letters_page for number in range(3)] == [True, False, True]
    with reader_of(target, desk.broker.client_options) as (consumer, partitions):
        consumer.seek_to_beginning(*partitions)
        assert [record.value for record in records_until_now(consumer, partitions)] == [b"v1"]


def test_the_trace_is_read_from_a_topic(kafka_broker: KafkaBroker) -> None:
    from tests.ui.samples import records_of_run

    topic = f"trace-{uuid.uuid4().hex[:8]}"
    KafkaApprovals(topic, **kafka_broker.client_options).create_topics()
    producer = KafkaProducer(**kafka_broker.client_options)
    for record in records_of_run(0, "sada", "suspended"):
        producer.send(topic, key=record.run_id.encode(), value=record.to_json().encode())
    producer.send(topic, value=write_value({"no": "record"}, "value"))
    producer.close()
    with console(ConsoleSettings(trace_topic=topic, client=kafka_broker.client_options)) as (
        browser,
        index,
        _,
    ):
        while "suspended" not in browser.page("/runs?q=ada"):
            pass
        assert index.invalid == 1
