"""The pages that show: each part of the trace where a visitor looks for it, and everything escaped."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flink_agents.plan import compile_agent
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing import OperatorHarness
from flink_agents.trace.records import TraceRecord
from flink_agents.ui.app import PAGES
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each_case
from tests.trace.test_trace_records import PLAIN, paying
from tests.ui.consoles import Browser, console
from tests.ui.samples import NOW, records_of_run, write

pytestmark = pytest.mark.own_conditions


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A console on the trace of a job with a run of each kind; the key of each run is its input."""
    place = tmp_path_factory.mktemp("trace")
    options = {"trace.level": "content", "trace.directory": str(place)}
    with OperatorHarness(paying(), lambda value: value, config=options, **PLAIN) as harness:
        harness.push_all([1, -1, "wait", "letter"])
    with console(ConsoleSettings(trace=place, signals="signals", plans=(compile_agent(paying()),))) as (
        console_browser,
        _,
        _,
    ):
        yield console_browser


def words(page: str) -> str:
    """The text of a page."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("<main>")[1])))


def run_of(browser: Browser, key: str) -> str:
    page = browser.page(link_to("/keys", key=key))
    return html.unescape(re.findall(r'href="(/run\?id=[^"]+)"', page)[0])


def test_the_overview_counts(browser: Browser) -> None:
    page = words(browser.page("/"))
    for text in (
        "4 runs in the trace",
        "1 waiting or suspended",
        "2 failed or dead-lettered",
        "ValueError",
        "paying",
    ):
        assert text in page
    assert "No cluster is named" in page


@each_case(
    "query, keys",
    [
        ({}, {"1", "-1", "wait", "letter"}),
        ({"status": "completed"}, {"1"}),
        ({"status": "suspended"}, {"wait"}),
        ({"q": "negative"}, {"-1"}),
        ({"error": "RuntimeError"}, {"letter"}),
        ({"agent": "paying", "since": "3600"}, {"1", "-1", "wait", "letter"}),
        ({"agent": "others"}, set[str]()),
        ({"status": "nonsense", "page": "x", "since": "-1"}, {"1", "-1", "wait", "letter"}),
        ({"page": "7"}, set[str]()),
        ({"slow": "1"}, {"1", "-1", "wait", "letter"}),
    ],
)
def test_runs_are_filtered(query: dict[str, str], keys: set[str], browser: Browser) -> None:
    page = browser.page(link_to("/runs", **query))
    assert set(re.findall(r'class="key" href="[^"]*">([^<]*)</a>', page)) == keys


@each_case(
    "key, said",
    [
        ("1", ["completed", "action pay", "charge", "request", "result", "Waited for"]),
        ("-1", ["dead-lettered", "ValueError", "a negative amount", "test_trace_records.py"]),
        ("wait", ["suspended", "What ends the wait", "the signal 'paid'", "at most until", "Send it"]),
        ("letter", ["RuntimeError", "no such order"]),
    ],
)
def test_one_run_is_told(key: str, said: list[str], browser: Browser) -> None:
    page = words(browser.page(run_of(browser, key)))
    assert [text for text in said if text not in page] == []


@each_case(
    "key, said",
    [
        ("1", ["Nothing of the key is unfinished", "completed"]),
        ("wait", ["suspended since", "the signal 'paid'"]),
        ("nobody", ["no run of the key nobody"]),
        ('["a", 1]', ["no run of the key"]),
    ],
)
def test_a_key_is_told(key: str, said: list[str], browser: Browser) -> None:
    page = words(browser.page(link_to("/keys", key=key)))
    assert [text for text in said if text not in page] == []


def test_waits_are_listed_with_what_ends_them(browser: Browser) -> None:
    page = browser.page("/waiting")
    assert "the signal 'paid'" in words(page)
    wait = html.unescape(re.findall(r'href="(/signals\?[^"]+)"', page)[0])
    assert "paid" in browser.page(wait) and "wait|0|" in browser.page(wait)


def test_the_plan_is_a_graph_with_counts(browser: Browser) -> None:
    page = browser.page("/agents")
    assert "<svg" in page and "4 runs" in words(page) and "as the trace shows it" not in page
    assert re.search(r'<text class="count"[^>]*>\d+</text>', page)


def test_what_is_not_there_is_said(browser: Browser) -> None:
    for path in ("/nothing", "/run?id=zzz", "/approval?id=zzz"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "There is no" in answer.text


HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</textarea></svg><svg onload=alert(1)>",
    "javascript:alert(1)",
    "a\u202eb\u2066c\u200bd\x00e\x1b[31mf\x7f",
    "\ud800 half",
    "../../etc/passwd",
    "%2e%2e%2f%00&a=b#c?d",
    "]]>--><!--",
    "hx-get=/signals\nhx-trigger=load",
    "é中\U0001f600" * 30,
    "",
    "\\' OR 1=1; --",
)  # fmt: skip

TAGS = {
    *("html head meta title link script body header a img nav form input main p h1 h2 h3 div section b span "
      "small table thead tbody tr th td time select option label noscript button code dl dt dd details "
      "summary pre svg rect path g text defs marker ul li textarea article br").split()
}  # fmt: skip
ATTRIBUTES = {"onerror", "onload", "onmouseover", "onclick", "style", "srcdoc", "formaction"}


class Checker(HTMLParser):
    """Fails if a page has a tag or an attribute that no template has."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name not in ATTRIBUTES, name
            if name in ("href", "src", "action", "hx-get"):
                assert (value or "").startswith(("/", "#")), value
                assert not (value or "").startswith("//"), value
            if tag == "script":
                assert name in ("src", "defer") and (value or "/static/").startswith("/static/")

    def handle_decl(self, decl: str) -> None:
        assert decl == "doctype html"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def check(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    checker.close()
    hidden = [character for character in page if not character.isprintable() and character not in "\n\t"]
    assert hidden == []


def hostile(chosen: random.Random) -> str:
    return "".join(chosen.choice(HOSTILE) for _ in range(chosen.randint(1, 3)))


def hostile_records(chosen: random.Random) -> list[TraceRecord]:
    """Records in which each text is hostile, of a run of any status."""
    status = chosen.choice(["completed", "failed", "dead-lettered", "suspended", "running"])
    key = chosen.choice([hostile(chosen), "s" + hostile(chosen), encode_key("plain")])
    records = records_of_run(chosen.randint(0, 9), key, status, agent=hostile(chosen), error=hostile(chosen))
    name = chosen.choice([records[0].run_id, hostile(chosen)])
    more = {hostile(chosen): hostile(chosen), "request": {hostile(chosen): [hostile(chosen)]}}
    more["waits"] = [{"name": hostile(chosen), "id": hostile(chosen), "deadline": 1e300}, hostile(chosen)]
    return [
        replace(
            record,
            run_id=name,
            name=hostile(chosen),
            job=hostile(chosen),
            outcome=record.outcome if record.kind == "run" else hostile(chosen),
            attributes={**more, **record.attributes}
            if chosen.random() < 0.7
            else {**record.attributes, **more},
        )
        for record in records
    ]


@pytest.mark.parametrize("seed", range(6))
def test_hostile_records_are_shown_as_text(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    place = tmp_path / "<b onload=x>"
    for number in range(15):
        write(place, hostile_records(chosen), f"{number}")
    with console(ConsoleSettings(trace=place)) as (browser, index, _):
        rows = index.query("SELECT run_id, key, agent, error_class FROM runs")
        assert rows and index.invalid == 0
        paths = list(PAGES)
        for row in rows:
            paths += [link_to("/run", id=row["run_id"]), link_to("/keys", raw=row["key"], key=row["key"])]
            paths += [
                link_to("/runs", agent=row["agent"], error=row["error_class"], key=row["key"], q=row["key"])
            ]
        for path in paths:
            answer = browser.get(path)
            assert answer.status_code == (404 if path in ("/run", "/approval") else 200), path
            check(answer.text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_addresses_are_shown_as_text(text: str, browser: Browser) -> None:
    for path in PAGES:
        names = ("id", "key", "raw", "agent", "status", "q", "error", "name", "wait", "value", "run", "page")
        answer = browser.get(link_to(path, **dict.fromkeys(names, text)))
        assert answer.status_code in (200, 404)
        check(answer.text)


def test_a_number_out_of_bounds_is_no_failure(tmp_path: Path) -> None:
    records = records_of_run(2**62, "sa", "suspended", end=NOW)
    write(tmp_path, [replace(record, time=9e14, seconds=1e14, attempt=10**30) for record in records])
    with console(ConsoleSettings(trace=tmp_path)) as (browser, index, _):
        for path in (*PAGES, link_to("/run", id=records[0].run_id)):
            assert browser.get(path).status_code in (200, 404)
