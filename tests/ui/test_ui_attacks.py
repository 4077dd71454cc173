"""What nobody should send: records, requests and answers of any form leave each page and command working."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents.api.events.approvals import ApprovalRequest
from flink_agents.cli.main import app as command
from flink_agents.trace.answers import describe_answer, describe_watched
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.rendering import explain_key, render_page, run_row, tree_lines
from flink_agents.trace.sinks.otel import spans_of
from flink_agents.ui.app import PAGES, make_app, make_index
from flink_agents.ui.background import Reading
from flink_agents.ui.outside import Outside
from flink_agents.ui.pages.acting import MOST_SHOWN
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import Access, ConsoleSettings
from tests.suite.tables import each_case
from tests.ui.consoles import BASE, Browser, console
from tests.ui.samples import NOW, records_of_run, write
from tests.ui.test_ui_pages import check

pytestmark = pytest.mark.own_conditions


def deep(levels: int = 400) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


NAMES = (
    "waits error message where for since calls phases sent memory parent traceparent model "
    "provider action input_tokens output_tokens cost finish_reason attempt request result inline actions "
    "retries target"
).split()
VALUES: dict[str, Any] = {
    "a number": 7,
    "a huge number": 10**400,
    "a time that no calendar has": 1e300,
    "negative": -1,
    "a string": "x",
    "an empty string": "",
    "a list": ["x", None, 7, {"name": 7}],
    "an empty list": [],
    "a dict": {"x": {"y": [1]}, "error": 7, "name": ["z"]},
    "nothing": None,
    "a bool": True,
    "deep": deep(),
    "half a character": "\ud800",
}


def altered(value: Any) -> Iterator[TraceRecord]:
    """Records of runs of each status, each with one attribute of another form."""
    number = 0
    for status in ("completed", "failed", "dead-lettered", "suspended", "running"):
        for name in NAMES:
            number += 1
            records = records_of_run(number, f"s{name}", status, end=NOW)
            if status == "running":
                records.append(replace(records[0], outcome="waiting", time=NOW))
            yield from (replace(record, attributes={**record.attributes, name: value}) for record in records)


@pytest.mark.nightly
@each_case("kind", list(VALUES))
def test_an_attribute_of_any_form_is_shown(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("trace")
    write(place, altered(VALUES[kind]))
    # What the command line shows.
    runs = by_run(read_files(place))
    for run in runs.values():
        assert run_row(run) and list(tree_lines(run)) and explain_key([run], "k")
    assert render_page(list(runs.values()))
    assert len(list(spans_of(read_files(place)))) > 50
    # What the console shows.
    with console(ConsoleSettings(trace=place)) as (browser, index, _):
        assert index.invalid == 0
        ids = [row["run_id"] for row in index.query("SELECT run_id FROM runs")]
        assert len(ids) == 5 * len(NAMES)
        for path in [
            *PAGES,
            *(link_to("/run", id=run_id) for run_id in ids),
            *(f"/keys?raw=s{name}" for name in NAMES),
        ]:
            answer = browser.get(path)
            assert answer.status_code == (404 if path in ("/run", "/approval") else 200), path
            check(answer.text)


@each_case(
    "line",
    [
        b"[" * 200_000,
        b'{"version":1,"attributes":' + b'{"a":' * 100_000,
        b"x" * 10_000_000,
        "{}".encode("utf-16"),
        b"\0" * 1000,
        b'{"version": 2, "kind": "run"}',
        b'{"version": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_line_of_any_form_is_skipped(line: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("trace")
    file = write(place, records_of_run(1, "sgood", "completed"))
    with file.open("ab") as opened:
        opened.write(line + b"\n")
    write(place, records_of_run(2, "sbetter", "completed"))
    with console(ConsoleSettings(trace=place)) as (browser, index, _):
        assert index.invalid == 1
        page_of_runs = browser.page("/runs")
        assert "good" in page_of_runs and "better" in page_of_runs
    listed = CliRunner().invoke(command, ["runs", "--path", str(place), "--json"])
    # The command line names its place, and shows the others.
    assert listed.exit_code == 0 and ".jsonl:6: a line" in listed.stderr, listed.output[:500]
    assert len([json.loads(listed_line) for listed_line in listed.stdout.splitlines()]) == 2


def test_a_value_of_10_mb_is_cut(tmp_path: Path) -> None:
    records = records_of_run(1, "sbig", "completed")
    write(tmp_path, [replace(record, attributes={"result": "<b>" * 3_500_000}) for record in records])
    with console(ConsoleSettings(trace=tmp_path)) as (browser, _, _):
        for path in ("/runs", "/keys?raw=sbig", link_to("/run", id=records[0].run_id)):
            assert len(browser.page(path)) < 500_000, path


ANSWERS: list[Any] = [
    {"run": 7},
    {"run": {"seconds": "long", "waits": 7}},
    {"suspended": {"begun": "never", "waits": [7]}},
    {"suspended": {"begun": 1e300}},
    {"aside": [7, None, {"waits": {"a": 1}}]},
    {"inputs": "many"},
    {"memory": [1]},
    {"memory": "4, left out", "signals": "3, left out", "delayed": "1, left out"},
    {"delayed": {}},
    {"without_input": 7},
    {"signals": {"a": {}}},
    {"replays": deep()},
    {},
]


@each_case("answer", ANSWERS)
def test_an_answer_of_any_form_is_explained(answer: dict[str, Any]) -> None:
    assert all(isinstance(line, str) for line in describe_answer(answer))


@each_case(
    "line", [{"time": "x"}, {"time": 1e300}, {"seconds": "x"}, {"seconds": None, "ended": True}, {"where": 7}]
)
def test_a_line_of_the_watchdog_of_any_form_is_explained(line: dict[str, Any]) -> None:
    assert describe_watched(line)


class Many(Outside):
    """Brokers with many requests for approvals."""

    def requests(self) -> Reading[list[ApprovalRequest]]:
        pending_requests = [
            ApprovalRequest(f"sk{n}|0|act||0|x", "a", "act", f"k{n}", "tool pay", {"amount": n})
            for n in range(10_000)
        ]
        return Reading(pending_requests, "", 0.0)


def test_ten_thousand_requests_make_no_long_page(tmp_path: Path) -> None:
    settings = ConsoleSettings(trace=tmp_path, signals="s", requests="r")
    index = make_index(settings)
    with Browser(make_app(settings, Access(), index, Many(settings)), base_url=BASE) as browser:
        text = browser.page("/approvals")
        assert text.count("Decide</a>") == MOST_SHOWN and "9,800 further requests" in text
        (matching_page,) = [browser.page("/approvals?q=K7654")]
        assert matching_page.count("Decide</a>") == 1 and "k7654" in matching_page
        assert "10000" in browser.page("/") and browser.page("/waiting")
        assert "No pending request matches" in browser.page("/approvals?q=nothing")


# -- requests ---------------------------------------------------------------------------------


@each_case(
    "origin",
    ["http://[", "http://[::1", "//", "http://127.0.0.1:8700@evil", "é", "http://127.0.0.1:99999999"],
)
def test_an_origin_of_any_form_is_rejected(origin: str) -> None:
    with console(ConsoleSettings()) as (browser, _, _):
        answer = browser.get("/runs", headers={b"origin": origin.encode("latin-1")})  # type: ignore[dict-item]
        assert answer.status_code == 403


@each_case("header", ["cookie", "authorization", "host", "content-type", "accept-language"])
def test_a_header_of_any_form_is_no_failure(header: str) -> None:
    values = [b"\xff\xfe", b'a=b; c="d; flink-agents-session-8700=.', b"Bearer \xe9", b"x" * 10_000]
    with console(ConsoleSettings(), Access(token="a long token")) as (browser, _, _):
        for value in values:
            answer = browser.get("/runs", headers={header.encode(): value})  # type: ignore[dict-item]
            assert answer.status_code in (401, 403)


@each_case(
    "body, status",
    [
        (b"&".join(b"a%d=1" % number for number in range(3000)), 413),
        (b"a=" + b"%ff" * 1000, 403),
        (b"\xff\x00=&=&&&", 403),
        (b"csrf", 403),
    ],
)
def test_a_form_of_any_form_is_rejected(body: bytes, status: int) -> None:
    with console(ConsoleSettings(signals="s")) as (browser, _, _):
        answer = browser.post("/signals/send", content=body, headers={"origin": BASE})
        assert answer.status_code == status


def test_half_a_form_is_not_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor who leaves while the form is sent: its first half has the token, and not the reason."""
    sent: list[Any] = []
    monkeypatch.setattr(Outside, "send_signal", lambda self, signal: sent.append(signal))
    settings = ConsoleSettings(signals="s")
    with console(settings) as (browser, _, _):
        token = browser.page("/signals").split('name="csrf" value="')[1].split('"')[0]
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        half = f"csrf={token}&name=paid&key=k&value=1".encode()
        headers = {"host": "127.0.0.1:8700", "origin": BASE, "cookie": cookie}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/signals/send",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        answers = list[Any]()

        def ask(messages: list[dict[str, Any]]) -> None:
            remaining_messages = iter(messages)

            async def receive() -> dict[str, Any]:
                return next(remaining_messages)

            async def send(message: Any) -> None:
                answers.append(message)

            asyncio.run(browser.app({**scope, "state": {}}, receive, send))  # type: ignore[arg-type,misc]

        ask([{"type": "http.request", "body": half, "more_body": True}, {"type": "http.disconnect"}])
        assert sent == [] and answers == []
        ask([{"type": "http.request", "body": half, "more_body": False}])
        assert len(sent) == 1 and answers[0]["status"] == 303


def test_a_page_that_fails_says_so_with_the_headers_of_all_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = ConsoleSettings(trace=tmp_path)
    index = make_index(settings)

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("<script>no</script>")

    app = make_app(settings, Access(), index, Outside(settings))
    with Browser(app, base_url=BASE, raise_server_exceptions=False) as browser:
        monkeypatch.setattr(index, "query", fail)
        answer = browser.get("/runs")
    assert answer.status_code == 500 and "This page failed" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    check(answer.text)


def test_two_consoles_of_one_machine_do_not_share_sessions() -> None:
    with (
        console(ConsoleSettings(signals="s")) as (first_browser, _, _),
        console(ConsoleSettings(signals="s"), Access(port=8701), "http://127.0.0.1:8701") as (
            second_browser,
            _,
            _,
        ),
    ):
        first_browser.page("/signals")
        token = first_browser.page("/signals").split('name="csrf" value="')[1].split('"')[0]
        for name, value in first_browser.cookies.items():
            second_browser.cookies.set(name, value)
        form = {"csrf": token, "name": "n", "key": "k"}
        answer = second_browser.post("/signals/send", data=form, headers={"origin": "http://127.0.0.1:8701"})
        assert answer.status_code == 403


@each_case(
    "found",
    [
        [{"job": "j", "runs": [{"run": 1, "records": [{"function": "<b>", "result": deep()}]}]}],
        [{"job": "<script>", "runs": []}],
        [{"job": 7, "runs": [{"run": "x", "records": [{}]}]}],
    ],
)
def test_a_journal_of_any_form_is_shown(found: list[dict[str, Any]]) -> None:
    with console(ConsoleSettings(journals=lambda key, run: found)) as (browser, _, _):
        for query in ("/journal?key=sk", "/journal?key=sk&run=" + "9" * 6000):
            answer = browser.get(query)
            assert answer.status_code == 200
            check(answer.text)


def test_json_of_any_depth_in_a_form_is_rejected() -> None:
    with console(ConsoleSettings(signals="s")) as (browser, _, _):
        for value in ("[" * 100_000, "1e999", "NaN", '{"a": ' * 50_000, "9" * 5000):
            answer = browser.submit("/signals/send", {"name": "n", "key": "k", "value": value}, "/signals")
            assert "takes JSON" in answer, value[:20]


def test_lines_are_json() -> None:
    """The samples of this module are what a sink writes."""
    assert json.loads(records_of_run(1, "s", "completed")[0].to_json())
