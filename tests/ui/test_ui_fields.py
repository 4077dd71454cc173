"""The form of an approval: a field for each type of value, and what a visitor enters there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, ApprovalRequest, ApprovalResponse, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.rendering import tree_lines
from flink_agents.ui.outside import Outside
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case
from tests.ui.consoles import Browser, console

pytestmark = pytest.mark.own_conditions

LONG = "The customer wrote:\n" + "please, " * 30
HIDDEN = "a\u202eb\x1b"
VALUES: dict[str, Any] = {
    "amount": 80,
    "share": 0.5,
    "urgent": True,
    "price": "12.50",
    "day": "2026-05-31",
    "moment": "2026-05-31T12:00:00+00:00",
    "currency": "EUR",
    "digits": "00123",
    "items": ["tea", 2],
    "address": {"city": "Bonn", "lines": [1, {"a": None}]},
    "note": None,
    "text": LONG,
    "odd": HIDDEN,
    "empty": "",
    "large": 2**70,
}


@dataclass
class Desk:
    """A console with one pending request, whose answers go nowhere else."""

    browser: Browser
    request: ApprovalRequest
    sent: list[ApprovalResponse]

    @property
    def address(self) -> str:
        return link_to("/approval", id=self.request.id)

    def fields(self) -> dict[str, str]:
        """Return what the form has in its fields, as a browser sends it."""
        page = self.browser.page(self.address)
        form = re.search(r"<form class=\"card decide\".*?</form>", page, re.DOTALL)
        assert form is not None
        values: dict[str, str] = {}
        for kind, markup in re.findall(
            r"<(input|textarea|select)((?:[^>\"]|\"[^\"]*\")*>(?:[^<]*</textarea>)?)", form[0]
        ):
            name = re.search(r'name="([^"]*)"', markup)
            assert name is not None, markup
            value = re.search(r'value="([^"]*)"', markup)
            text = value[1] if value else ""
            if kind == "textarea":
                # A browser leaves out the first line break, and sends others as two characters.
                text = (
                    markup.partition(">")[2]
                    .removesuffix("</textarea>")
                    .removeprefix("\n")
                    .replace("\n", "\r\n")
                )
            if kind == "select":
                part = form[0][form[0].index(markup) :]
                chosen = re.search(r'<option value="(\w+)" selected', part)
                text = chosen[1] if chosen else ""
            values[html.unescape(name[1])] = html.unescape(text)
        return values

    def answer(self, **changes: str) -> str:
        form = self.fields() | {"decision": "approve", "by": "Ada"}
        form |= {name if name in form else f"argument:{name}": text for name, text in changes.items()}
        return html.unescape(self.browser.submit("/approvals/answer", form, self.address))


@contextmanager
def desk(request: ApprovalRequest, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    sent: list[ApprovalResponse] = []
    with monkeypatch.context() as patch:
        patch.setattr(Outside, "request", lambda self, name: request if name == request.id else None)
        patch.setattr(Outside, "requests", lambda self: None)
        patch.setattr(Outside, "renew_requests", lambda self: None)
        patch.setattr(
            Outside,
            "send_answer",
            lambda self, response, new_arguments=False: sent.append(response) or request,
        )
        with console(ConsoleSettings(trace=trace, signals="signals")) as (browser, _, _):
            yield Desk(browser, request, sent)


def approval_request(arguments: dict[str, Any], key: Any = "k", canonical: str = "sk") -> ApprovalRequest:
    return ApprovalRequest(f"{canonical}|0|pay||0|x", "Paying", "pay", key, "refund", arguments)


def test_an_unchanged_form_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk(approval_request(VALUES), tmp_path, monkeypatch) as place:
        assert "sent: approved" in place.answer()
        [answer] = place.sent
        assert answer.arguments is None and answer.by == "Ada"


@each_case(
    ("name", "text", "value"),
    [
        ("amount", "81", 81),
        ("amount", " 81 ", 81),
        ("amount", "80.5", 80.5),
        ("share", "1", 1),
        ("urgent", "false", False),
        ("price", "13", "13"),
        ("price", "-0.01", "-0.01"),
        ("day", "2026-06-01", "2026-06-01"),
        ("moment", "2026-06-01T00:00", "2026-06-01T00:00"),
        ("currency", "USD", "USD"),
        ("currency", '"USD"', '"USD"'),
        ("currency", "", ""),
        ("digits", "A-7", "A-7"),
        ("items", '["milk"]', ["milk"]),
        ("address", '{"city": "Ulm"}', {"city": "Ulm"}),
        ("note", "call first", "call first"),
        ("note", "7", 7),
        ("text", "short\r\ntwo", "short\ntwo"),
        ("odd", '"plain"', "plain"),
        ("empty", "x", "x"),
        ("large", str(2**71), 2**71),
        ("more", '{"extra": 1}', {"extra": 1}),
    ],
)
def test_a_changed_field(
    name: str, text: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk(approval_request(VALUES), tmp_path, monkeypatch) as place:
        assert "sent: approved" in place.answer(**{name: text})
        [answer] = place.sent
        assert answer.arguments == (value if name == "more" else {name: value})


@each_case(
    ("name", "text", "said"),
    [
        ("amount", "eighty", "amount takes a number, such as 80"),
        ("amount", "", "amount takes a number"),
        ("amount", "1,5", "amount takes a number"),
        ("amount", "true", "amount takes a number"),
        ("amount", '"80"', "amount takes a number"),
        ("share", "1e999", "share takes a number"),
        ("share", "NaN", "share takes a number"),
        ("urgent", "perhaps", "urgent takes true or false"),
        ("price", "cheap", "price takes a number, such as 12.50"),
        ("day", "tomorrow", "day takes a date, such as 2026-05-31"),
        ("day", "2026-02-30", "day takes a date"),
        ("moment", "noon", "moment takes a time, such as"),
        ("items", "tea", "items takes a JSON list"),
        ("items", "{}", "items takes a JSON list"),
        ("address", "[", "address takes a JSON object"),
        ("odd", "plain", "odd takes JSON text in quotes"),
        ("more", "[]", "further arguments are a JSON object"),
        ("more", "{", "takes JSON"),
    ],
)
def test_an_invalid_field_shows_the_form_again(
    name: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk(approval_request(VALUES), tmp_path, monkeypatch) as place:
        page = place.answer(currency="USD", reason="why not", **{name: text})
        assert place.sent == [] and "Nothing was sent yet" in page and said in page
        for entered in ('value="USD"', 'value="why not"', 'value="Ada"', text):
            assert entered in page, entered
        # The corrected form is sent.
        assert "sent: approved" in place.answer(currency="USD")
        assert place.sent[0].arguments == {"currency": "USD"}


def test_a_denial_ignores_what_is_in_the_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk(approval_request(VALUES), tmp_path, monkeypatch) as place:
        assert "sent: denied" in place.answer(amount="eighty", decision="deny")
        assert place.sent[0].arguments is None


@each_case(
    ("kind", "shown"),
    [
        ("amount", 'type="number" step="any" name="argument:amount" value="80"'),
        ("urgent", '<select name="argument:urgent">'),
        ("day", 'type="date" name="argument:day" value="2026-05-31"'),
        ("price", 'inputmode="decimal" name="argument:price" value="12.50"'),
        ("currency", 'name="argument:currency" value="EUR"'),
        ("text", '<textarea name="argument:text"'),
        ("items", 'name="argument:items" value="[&#34;tea&#34;, 2]"'),
    ],
)
def test_fields_by_type(kind: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk(approval_request(VALUES), tmp_path, monkeypatch) as place:
        assert shown in place.browser.page(place.address), kind


@each_case(
    ("key", "canonical", "shown"),
    [("k", "sk", ">k<"), (7, "i7", ">7<"), (("eu", 7), 't["seu","i7"]', None)],
)
def test_keys_are_shown_as_people_know_them(
    key: Any, canonical: str, shown: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flink_agents.runtime.serde.keys import encode_key

    request = approval_request({"amount": 80}, key, encode_key(key))
    with desk(request, tmp_path, monkeypatch) as place:
        page = html.unescape(place.browser.page(place.address))
        assert (shown or '["eu", 7]') in page and "('eu', 7)" not in page
        assert ('["eu", 7]' if shown is None else str(key)) in place.answer()


class Paying(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        first = await ctx.request_approval("refund", {"amount": 80}, timeout=60)
        second = await ctx.request_approval("gift", {"amount": 5}) if event.input == "twice" else None
        return OutputEvent(output=f"{first.decision} {second and second.decision}")


@each_case("level", ["runs", "calls", "content"])
def test_who_decided_is_in_the_trace_and_on_the_page_of_the_run(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / level
    options = {"trace.level": level, "trace.directory": str(place)}
    with OperatorHarness(Paying, lambda record: record, config=options, **UNFORCED) as harness:
        for record in ("twice", "denied", "late"):
            harness.push(record)
        requests = {request.key: request for request in harness.approvals}
        observers: list[Any] = harness.observers
        for observer in observers:
            observer.writer.flush()
        with desk(requests["late"], place, monkeypatch) as console_:
            [run] = [run for run in by_run(read_files(place)).values() if run.last.key == "slate"]
            assert link_to("/run", id=run.run_id) in console_.browser.page(console_.address)
        harness.approve(requests["twice"], {"amount": 70}, by="Ada")
        harness.deny(requests["denied"], "too much", by="Bo")
        harness.advance_time(61_000)
        [gift] = [request for request in harness.approvals if request.what == "gift"]
        harness.approve(gift, by="Cy")
    runs = {run.last.key: run for run in by_run(read_files(place)).values()}
    trees = {key: " ".join(tree_lines(run)) for key, run in runs.items()}
    assert "refund  approved  by Ada with other values of amount" in trees["stwice"]
    assert (
        trees["stwice"].count("approval refund") == 1 and "approval gift  approved  by Cy" in trees["stwice"]
    )
    assert "refund  denied  by Bo because: too much" in trees["sdenied"]
    assert "refund  expired  because: no answer came" in trees["slate"]
    with console(ConsoleSettings(trace=place)) as (browser, _, _):
        page = browser.page(link_to("/run", id=runs["sdenied"].run_id))
        assert "by Bo because: too much" in page and 'class="status denied"' in page
