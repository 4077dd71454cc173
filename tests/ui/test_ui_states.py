"""What an operator reads about runs that have not ended: the same on each page and in each command."""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents.api.events.approvals import ApprovalRequest
from flink_agents.cli.main import app
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.records import STATUSES, TraceRecord, run_id_of, span_id
from flink_agents.ui.background import STALE_SECONDS, Background
from flink_agents.ui.outside import KeyAnswer, Outside
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each_case
from tests.ui.consoles import Browser, console
from tests.ui.samples import write

pytestmark = pytest.mark.own_conditions

NOW = 0.0
CALL = "durable call __main__:Quotes.quote.<locals>.price_of"
WAITS = [{"kind": "signal", "name": "flink-agents.approval", "deadline": None, "id": "pay||0"}]


@pytest.fixture(scope="module", autouse=True)
def _now() -> None:
    """Set the time when the first test starts: a collected module may wait for an hour."""
    globals()["NOW"] = time.time()


@dataclass
class Run:
    """Makes the records of one run, at times before now."""

    key: str
    number: int = 1
    records: list[TraceRecord] = field(default_factory=list[TraceRecord])

    def at(self, before: float, outcome: str, seconds: float | None = None, **said: Any) -> Run:
        run_id = run_id_of("job", self.key, self.number)
        path = () if outcome in ("started", "waiting", "running", "completed") else (outcome, before)
        if "since" in said:
            said["since"] = NOW - said["since"]
        self.records.append(
            TraceRecord(
                "run", "quotes", outcome, "job", "quotes", 0, 0, f"s{self.key}", self.number, run_id,
                span_id(run_id, *path), span_id(run_id) if path else None, NOW - before, seconds, False, said,
            )
        )  # fmt: skip
        return self


def runs() -> list[Run]:
    """A run of each status, with its key: what it is."""
    return [
        Run("calls").at(1000, "started").at(990, "waiting", **{"for": CALL, "since": 995}),
        Run("computes").at(1000, "started").at(990, "running", **{"for": "", "since": 995}),
        Run("begins").at(3, "started"),
        Run("asks").at(1000, "started").at(999, "suspended", 1.0, waits=WAITS, phases={"queued": 0.4}),
        Run("fails").at(5, "started").at(4, "failed", 1.0, error={"error": "OSError", "message": "gone"}),
        Run("queued")
        .at(1000, "started")
        .at(990, "waiting", **{"for": "earlier runs of its key", "since": 1000}),
        Run("late").at(1000, "started").at(1, "completed", 999.0, phases={"queued": 990.0}),
        Run("resumed")
        .at(1000, "started")
        .at(999, "suspended", 1.0, waits=WAITS)
        .at(100, "started")
        .at(98, "completed", 2.0),
    ]


STATUS = {
    "calls": "waiting",
    "computes": "running",
    "begins": "running",
    "asks": "suspended",
    "fails": "failed",
    "queued": "waiting",
    "late": "completed",
    "resumed": "completed",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trace")
    write(directory, [record for run in runs() for record in run.records])
    return directory


@pytest.fixture(scope="module")
def seen(place: Path) -> Iterator[tuple[Browser, Outside]]:
    with console(ConsoleSettings(trace=place, signals="signals", cluster="http://127.0.0.1:1")) as (
        browser,
        _,
        out,
    ):
        yield browser, out


def words(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("<main>")[1])))


def test_a_status_has_one_name_everywhere(place: Path, seen: tuple[Browser, Outside]) -> None:
    browser, _ = seen
    for status in STATUSES:
        keys = {key for key, of in STATUS.items() if of == status}
        page = browser.page(link_to("/runs", status=status))
        assert set(re.findall(r'class="key" href="[^"]*">([^<]*)</a>', page)) == keys, status
        result = CliRunner().invoke(app, ["runs", "--path", str(place), "--status", status])
        assert {line.split()[2] for line in result.stdout.splitlines()[1:]} == keys, status
    unfinished = words(browser.page("/waiting"))
    assert all(
        (key in unfinished) == (of not in ("completed", "dead-lettered")) for key, of in STATUS.items()
    )


@each_case(
    "key, queued, running, suspended",
    [
        ("calls", 0, 1000, 0),
        ("asks", 0.4, 0.6, 999),
        ("queued", 1000, 0, 0),
        ("late", 990, 9, 0),
        ("resumed", 0, 3, 899),
        ("begins", 0, 3, 0),
    ],
)
def test_durations_tell_queued_running_and_suspended_apart(
    key: str, queued: float, running: float, suspended: float, place: Path, seen: tuple[Browser, Outside]
) -> None:
    run = next(
        candidate for candidate in by_run(read_files(place)).values() if candidate.last.key == f"s{key}"
    )
    spent = run.spent(NOW)
    measured = (spent.queued, spent.running, spent.suspended)
    assert measured == pytest.approx((queued, running, suspended), abs=0.01)
    page = words(seen[0].page(link_to("/keys", key=key)))
    assert ("queued" in page) == bool(queued) or key == "queued"
    assert not suspended or "min suspended" in page


@each_case(
    "key, said",
    [
        ("calls", "durable call price_of"),
        ("computes", "your code"),
        ("asks", "an approval"),
        ("queued", "earlier runs of its key"),
    ],
)
def test_what_an_unfinished_run_does_is_told_everywhere(
    key: str, said: str, place: Path, seen: tuple[Browser, Outside]
) -> None:
    browser, _ = seen
    run = run_id_of("job", key, 1)
    tree = CliRunner().invoke(app, ["trace", run, "--path", str(place)]).stdout
    assert said in tree and f"key {key} " in tree
    page = words(browser.page(link_to("/run", id=run)))
    assert said in page or (key == "asks" and "What ends the wait" in page)
    assert "its own end" not in words(browser.page("/waiting"))
    assert key == "asks" or said in words(browser.page("/waiting"))


def test_what_waits_behind_a_run_is_the_jobs_to_say(seen: tuple[Browser, Outside]) -> None:
    browser, outside = seen
    for page in ("/", "/waiting"):
        row = re.findall(r"<tr>\s*<td><a class=\"key\"[^>]*>asks</a>.*?</tr>", browser.page(page), re.S)[0]
        assert "not known" in row
    outside._answers["sasks"] = KeyAnswer(["199 input(s) wait."], {"quotes": 199, "others": 0}, NOW)  # pyright: ignore[reportPrivateUsage]
    for page in (
        "/",
        "/waiting",
        link_to("/run", id=run_id_of("job", "asks", 1)),
        link_to("/keys", key="asks"),
    ):
        assert "199" in words(browser.page(page)), page


def test_a_key_and_its_run_lead_to_the_request(place: Path) -> None:
    approval_requests = [
        ApprovalRequest("sasks|1|pay||0|abc", "quotes", "pay", "asks", "tool pay", {}, int(NOW * 1000)),
        ApprovalRequest("no wait at all", "quotes", "pay", "asks", "nothing", {}, int(NOW * 1000)),
    ]
    with console(ConsoleSettings(trace=place, signals="signals", requests="requests")) as (
        browser,
        _,
        outside,
    ):
        requests: Any = outside._requests  # pyright: ignore[reportPrivateUsage]
        requests._make = lambda: approval_requests
        target = html.escape(link_to("/approval", id="sasks|1|pay||0|abc"))
        for page in (
            link_to("/keys", key="asks"),
            link_to("/run", id=run_id_of("job", "asks", 1)),
            "/waiting",
        ):
            assert target in browser.page(page), page
        assert target not in browser.page(link_to("/keys", key="calls"))


def test_an_old_value_is_renewed_or_said_to_be_old() -> None:
    answers, free = iter(["first", "second", "third"]), threading.Event()
    free.set()

    def make() -> str:
        free.wait()
        return next(answers)

    background: Any = Background(make, 5.0)

    def let_pass(seconds: float) -> None:
        background._read_at -= seconds
        background._tried -= seconds

    assert background.read(30).value == "first"
    let_pass(2 * STALE_SECONDS)
    assert background.read(30).value == "second" and not background.read(0).is_stale
    free.clear()
    let_pass(2 * STALE_SECONDS)
    assert background.read(0.01).is_stale
    free.set()


def test_a_key_is_listed_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        [record for number in range(3) for record in Run("k", number).at(5, "completed", 1.0).records],
    )
    with console(ConsoleSettings(trace=tmp_path)) as (browser, _, _):
        assert browser.page("/keys").count(">k</a>") == 1


LONGEST = ["suspended", "calls", "begun", "queued", "done", "quick"]
"""Keys of runs, by the time from start to end or now. Their last records have another order."""

WAITS_LONGEST = ["replayed", "calls", "computes", "suspended", "begun"]


def long_runs() -> dict[str, list[TraceRecord]]:
    """Runs by their keys."""
    slow_runs = [
        Run("suspended").at(50_000, "started").at(3000, "suspended", 47_000.0, waits=WAITS),
        Run("begun").at(2000, "started"),
        Run("calls").at(9000, "started").at(10, "waiting", **{"for": CALL, "since": 5000}),
        Run("computes").at(4000, "started").at(5, "running", **{"for": "", "since": 4000}),
        Run("replayed").at(7000, "started").at(6000, "suspended", 1.0, waits=WAITS),
        Run("queued").at(1500, "started").at(1400, "waiting", **{"for": "earlier runs", "since": 1500}),
        Run("done").at(1200, "started").at(1, "completed", 1199.0),
        Run("quick").at(2, "started").at(1, "completed", 1.0),
    ]
    return {run.key: run.records for run in slow_runs}


def keys_in(page: str) -> list[str]:
    return re.findall(r'class="key" href="[^"]*">([^<]*)</a>', page)


def test_the_longest_come_first_by_the_time_until_now(tmp_path: Path) -> None:
    records_by_key = long_runs()
    write(tmp_path, [record for key in reversed(LONGEST) for record in records_by_key[key]])
    with console(ConsoleSettings(trace=tmp_path)) as (browser, _, _):
        assert keys_in(browser.page("/runs?slow=1")) == LONGEST
        assert keys_in(browser.page("/runs?slow=1&agent=quotes")) == LONGEST
        assert keys_in(browser.page("/runs?slow=1&status=completed")) == ["done", "quick"]
        assert "from start to end or now" in browser.page("/runs")
    output = CliRunner().invoke(app, ["runs", "--path", str(tmp_path), "--slow"]).stdout
    assert [line.split()[2] for line in output.splitlines()[1:]] == LONGEST


def test_pages_of_the_longest_runs_follow_each_other(tmp_path: Path) -> None:
    # Open runs last until now, which may be long after `NOW`: the gaps are days.
    all_runs = [Run(f"open{n}").at(1e8 - 1e5 * n, "started") for n in range(60)]
    all_runs += [
        Run(f"done{n}").at(2e8, "started").at(1e8 + 1e5 * n + 5e4, "completed", 1e8 - 1e5 * n - 5e4)
        for n in range(60)
    ]
    write(tmp_path, [record for run in all_runs for record in run.records])
    with console(ConsoleSettings(trace=tmp_path)) as (browser, _, _):
        pages = [keys_in(browser.page(f"/runs?slow=1&page={n}")) for n in range(3)]
    keys = [key for page in pages for key in page]
    assert keys == [f"{name}{n}" for n in range(60) for name in ("open", "done")]


def test_waits_are_listed_by_when_they_began(tmp_path: Path) -> None:
    records_by_key = long_runs()
    # A restart repeats the record of a suspension.
    again = replace(records_by_key["replayed"][-1], time=NOW - 1, replayed=True)
    write(tmp_path, [*(record for key in reversed(WAITS_LONGEST) for record in records_by_key[key]), again])
    with console(ConsoleSettings(trace=tmp_path)) as (browser, _, _):
        assert keys_in(browser.page("/waiting")) == WAITS_LONGEST
        overview = browser.page("/").split("Longest waits")[1]
        assert keys_in(overview)[:5] == WAITS_LONGEST
        assert "1 h ago" in words(browser.page("/waiting"))
