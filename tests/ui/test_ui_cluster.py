"""The console and a cluster that is killed: pages show what was known, say so, and go on when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flink_agents.ui.settings import ConsoleSettings
from tests.trace.clusters import Answers, cluster
from tests.ui.consoles import Browser, console

pytestmark = pytest.mark.own_conditions

JOB = {"jid": "j", "name": "orders", "state": "RUNNING", "start-time": 0, "tasks": {"running": 2, "total": 2}}
ANSWERS: Answers = {
    "/jobs/overview": {"jobs": [JOB]},
    "/jobs/j/checkpoints": {"counts": {"completed": 3, "failed": 1}},
    "/jobs/j/exceptions": {"exceptionHistory": {"entries": []}},
}
PAGES = ("/", "/agents", "/runs", "/waiting", "/approvals", "/dead-letters", "/signals", "/keys?key=k")
NOT_FOR_EVER = 600


def until(browser: Browser, said: Callable[[str], bool]) -> str:
    """Load the overview until it says something, as the browser does that polls it."""
    page = ""
    for _ in range(NOT_FOR_EVER):
        if said(page := browser.page("/")):
            return page
    raise AssertionError(page)


def test_the_console_outlives_its_cluster(tmp_path: Path) -> None:
    with cluster(bytes, ANSWERS) as address:
        port = int(address.rpartition(":")[2])
        settings = ConsoleSettings(trace=tmp_path, cluster=address, signals="answers")
        opened = console(settings)
        browser, _, outside = opened.__enter__()
        until(browser, lambda page: "orders" in page)
    try:
        # It is gone now.
        jobs = outside.jobs()
        assert jobs is not None
        outside._jobs.read_now()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        page = until(browser, lambda page: "Flink does not answer" in page)
        assert "orders" in page, "what was known is shown"
        assert [browser.get(path).status_code for path in PAGES] == [200] * len(PAGES)
        with cluster(bytes, ANSWERS | {"/jobs/overview": {"jobs": [{**JOB, "name": "again"}]}}, port):
            outside._jobs.read_now()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
            page = until(browser, lambda page: "again" in page)
            assert "Flink does not answer" not in page
    finally:
        opened.__exit__(None, None, None)
