"""A console with the runs of several jobs: a visitor chooses one, and all links keep to it."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flink_agents.trace.records import TraceRecord
from flink_agents.ui.app import PAGES
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each_case
from tests.ui.consoles import Browser, console
from tests.ui.samples import records_of_run, write

pytestmark = pytest.mark.own_conditions

JOBS = ("orders", "refunds & co", "<script>alert(1)</script>\"'?job=#")


def records_of(job: str, number: int) -> list[TraceRecord]:
    """The records of a suspended, a running and a completed run of a job, with an agent of its own."""
    records: list[TraceRecord] = []
    for place, status in enumerate(("suspended", "running", "completed")):
        for record in records_of_run(
            number * 10 + place, f"skey{number}-{place}", status, agent=f"agent{number}"
        ):
            records.append(replace(record, job=job))
    return records


def keys_in(page: str) -> set[str]:
    return set(re.findall(r"key\d-\d", page.split("<main>")[1]))


def links_in(page: str) -> list[str]:
    addresses = re.findall(r'(?:href|action|hx-get)="(/[^"]*)"', page)
    return [html.unescape(address) for address in addresses if not address.startswith("/static/")]


def write_jobs(place: Path) -> None:
    for number, job in enumerate(JOBS):
        write(place, records_of(job, number), f"job{number}")


def check_page(browser: Browser, path: str, job: str, number: int) -> None:
    page = browser.page(link_to(path, job=job))
    assert all(key.startswith(f"key{number}-") for key in keys_in(page)), (path, keys_in(page))
    other_agents = {f"agent{index}" for index in range(len(JOBS)) if index != number}
    assert not [agent for agent in other_agents if agent in page.split("<main>")[1]], path
    assert "<script>alert" not in page
    keeps = link_to("/", job=job).partition("?")[2]
    forms = re.findall(r"<form.*?</form>", page, re.DOTALL)
    for address in links_in(page):
        # A form that is sent by GET has the job in a field.
        fields = [
            form for form in forms if f'action="{html.escape(address)}"' in form and 'name="job"' in form
        ]
        assert keeps in address or fields, (path, address)


@each_case(("number", "job"), list(enumerate(JOBS)))
def test_each_page_is_of_the_chosen_job(
    number: int, job: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("trace")
    write_jobs(place)
    settings = ConsoleSettings(trace=place, signals="s", answers="a")
    with console(settings) as (browser, index, _):
        for path in PAGES:
            if path not in ("/run", "/approval", "/journal"):
                check_page(browser, path, job, number)
        assert keys_in(browser.page(link_to("/runs", job=job))) == {
            f"key{number}-{place}" for place in range(3)
        }
        assert keys_in(browser.page(link_to("/runs", job=job, slow=1))) == keys_in(
            browser.page(link_to("/runs", job=job))
        )
        assert "3</b><span>runs in the trace" in browser.page(link_to("/", job=job))
        run_id = index.query("SELECT run_id FROM runs WHERE agent = ?", [f"agent{number}"])[0]["run_id"]
        assert browser.get(link_to("/run", id=run_id, job=job)).status_code == 200
        assert browser.get(link_to("/run", id=run_id, job="another")).status_code == 404


def test_without_a_choice_all_jobs_are_shown(tmp_path: Path) -> None:
    write_jobs(tmp_path)
    with console(ConsoleSettings(trace=tmp_path)) as (browser, index, _):
        assert index.jobs() == sorted(JOBS)
        page = browser.page("/runs?status=suspended")
        assert keys_in(page) == {f"key{number}-0" for number in range(len(JOBS))}
        chooser = page.split('aria-label="Job"')[1].split("</select>")[0]
        assert [html.unescape(option) for option in re.findall(r">([^<]+)</option>", chooser)][1:] == sorted(
            JOBS
        )
        # Filters that mean the same in each job stay.
        assert 'name="status" value="suspended"' in page
        assert not [address for address in links_in(page) if "job=" in address]
        # A choice is that of one request.
        assert keys_in(browser.page(link_to("/runs", job=JOBS[0]))) != keys_in(browser.page("/runs"))


def test_a_trace_of_one_job_has_no_choice(tmp_path: Path) -> None:
    write(tmp_path, records_of("orders", 1))
    with console(ConsoleSettings(trace=tmp_path)) as (browser, _, _):
        assert 'aria-label="Job"' not in browser.page("/runs")
        # An address of a job that is gone: there is a way back.
        page = browser.page("/runs?job=gone")
        assert "No run is like that" in page and 'aria-label="Job"' in page
