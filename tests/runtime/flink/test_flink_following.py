"""What is said of a job that runs: its restarts, its failure, its log."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flink_agents.api.errors import ClusterUnavailableError, JobFailedError
from flink_agents.runtime.flink.clusters.jobs import ClusterJob, last_failure, shown_state
from flink_agents.runtime.flink.following import local_jobs, rest
from flink_agents.runtime.flink.following.console import KEPT, new_log
from flink_agents.runtime.flink.following.local_jobs import JobFacts, LocalJob
from flink_agents.runtime.flink.following.rest import ClusterRest, JobFollower, JobUpdate
from tests.suite.tables import each_case

FAILURE = (
    "java.lang.RuntimeException: pemja.core.PythonException: "
    "<class 'flink_agents.api.errors.runs.ActionFailedError'>: "
    "shop.py:{line} in Shop.sell: ValueError: {text}\n"
    "  agent Shop, action sell\n\tat pemja.core.PythonInterpreter.invoke(Native Method)"
)


class Flink(ClusterRest):
    """Answers what a test has written into it."""

    def __init__(self, strategy: str = "Restart with fixed delay (PT1S). #3 restart attempts.") -> None:
        super().__init__("localhost:1")
        self.state = "RUNNING"
        self.failures: list[dict[str, Any]] = []
        self.strategy = strategy
        self.result: Any = None

    def get(self, path: str) -> Any:
        what = path.removeprefix("/jobs/j1").partition("?")[0]
        return {
            "/config": {"execution-config": {"restart-strategy": self.strategy}},
            "/status": {"status": self.state},
            "/exceptions": {"exceptionHistory": {"entries": self.failures[::-1]}},
            "/execution-result": {"job-execution-result": self.result},
            "": {
                "vertices": [
                    {"name": "Source: list -> Map", "metrics": {"read-records": 0}},
                    {"name": "agent Shop", "metrics": {"read-records": 7}},
                ]
            },
        }[what]

    def fail(self, line: int, state: str) -> None:
        entry = {"timestamp": line, "exceptionName": "E", "taskName": "agent Shop"}
        self.failures.append(entry | {"stacktrace": FAILURE.format(line=line, text="no")})
        self.state = state


def test_each_restart_is_told_once_with_the_authors_line() -> None:
    flink = Flink()
    follower = JobFollower(flink, "j1", "orders")
    assert (follower.poll_job().restarts, follower.poll_job().changed) == ([], False)
    flink.fail(1, "RESTARTING")
    first = follower.poll_job()
    assert [str(restart) for restart in first.restarts] == [
        "restart 1 of 3: shop.py:1 in Shop.sell: ValueError: no"
    ]
    assert (first.changed, first.ended, follower.poll_job().restarts) == (True, False, [])
    flink.fail(2, "RUNNING")
    flink.fail(3, "RUNNING")
    assert [str(restart)[:14] for restart in follower.poll_job().restarts] == [
        "restart 2 of 3",
        "restart 3 of 3",
    ]


def test_the_last_failure_is_no_restart() -> None:
    flink = Flink()
    follower = JobFollower(flink, "j1", "orders")
    follower.poll_job()
    flink.fail(1, "RESTARTING")
    flink.state = "FAILING"  # The history of failures may come later than the state.
    assert (follower.poll_job().restarts, follower.poll_job().failure) == ([], None)
    flink.fail(2, "FAILED")
    news = follower.poll_job()
    assert [str(restart)[:14] for restart in news.restarts] == ["restart 1 of 3"]
    assert isinstance(news.failure, JobFailedError)
    assert str(news.failure).startswith("shop.py:2 in Shop.sell: ValueError: no")
    assert news.ended


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("RESTARTING", "restart 2 of 3: shop.py:2 in Shop.sell: ValueError: no"),
        ("RUNNING", "restart 2 of 3: shop.py:2 in Shop.sell: ValueError: no"),
        ("FAILED", "shop.py:2 in Shop.sell: ValueError: no"),
        ("CANCELED", None),
    ],
)
def test_the_last_failure_of_a_job_that_nobody_follows(state: str, told: str | None) -> None:
    flink = Flink()
    flink.fail(1, "RESTARTING")
    flink.fail(2, state)
    assert last_failure(flink, ClusterJob("j1", "orders", state)) == told


def test_a_job_that_was_cancelled_since_no_restart_helps_has_failed() -> None:
    flink = Flink()
    flink.fail(1, "CANCELED")
    text = "PythonException: <class 'ModuleNotFoundError'>: No module named 'shop'"
    flink.failures[0]["stacktrace"] = text
    job = ClusterJob("j1", "orders", "CANCELED")
    failure = last_failure(flink, job)
    assert failure is not None and failure.startswith("the workers lack the module 'shop'")
    assert (shown_state(job, failure), shown_state(job, None)) == ("FAILED", "CANCELED")


NO_SLOTS = "org.apache.flink.runtime.jobmanager.scheduler.NoResourceAvailableException: Could not acquire"
GONE = (
    "java.util.concurrent.TimeoutException: The heartbeat of TaskManager with id localhost:4711-ab timed out."
)
CLOSED = (
    "Connection unexpectedly closed by remote task manager 'localhost/127.0.0.1:4711 [ localhost:4711-ab ]'."
)


@each_case(
    ("failures", "told"),
    [
        ([GONE], "TaskManager localhost:4711-ab is gone"),
        ([CLOSED], "TaskManager localhost/127.0.0.1:4711 [ localhost:4711-ab ] is gone"),
        ([GONE, NO_SLOTS], "TaskManager localhost:4711-ab is gone, and the others have too few slots"),
        (
            [GONE, NO_SLOTS, NO_SLOTS],
            "TaskManager localhost:4711-ab is gone, and the others have too few slots",
        ),
        ([NO_SLOTS], "the cluster has too few free slots for the job"),
    ],
    ids=str,
)
def test_a_job_without_slots_names_the_taskmanager_that_is_gone(failures: list[str], told: str) -> None:
    flink = Flink()
    for number, text in enumerate(failures):
        flink.fail(number, "RESTARTING")
        flink.failures[-1]["stacktrace"] = text
    restarts = JobFollower(flink, "j1", "orders").poll_job().restarts
    assert told in str(restarts[-1])


def test_a_job_that_did_not_fail_has_no_last_failure() -> None:
    assert last_failure(Flink(), ClusterJob("j1", "orders", "RUNNING")) is None


class StaleFlink(Flink):
    """Answers with failures of some time ago; fails at a request, and gives no answer to another one."""

    def __init__(self, fails_at: int, silent_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.told: list[dict[str, Any]] = []
        self.requests = 0
        self.fails_at = fails_at
        self.silent_at = silent_at
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        if seconds >= 3:
            self.told = list(self.failures)

    def get(self, path: str) -> Any:
        self.requests += 1
        if self.requests == self.fails_at:
            self.fail(1, "RESTARTING")
            self.fail(2, "FAILED")
        if self.requests == self.silent_at:
            raise ClusterUnavailableError("no answer")
        if "/exceptions" in path:
            return {"exceptionHistory": {"entries": self.told[::-1]}}
        return super().get(path)


@pytest.mark.parametrize("silent_at", [0, *range(1, 9)])
@pytest.mark.parametrize("fails_at", range(1, 6))
def test_a_failure_is_told_whenever_it_comes_and_whichever_answer_is_lost(
    fails_at: int, silent_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flink = StaleFlink(fails_at, silent_at, monkeypatch)
    follower = JobFollower(flink, "j1", "orders", answers_age=3)
    looks: list[JobUpdate] = []
    while not looks or not looks[-1].ended:
        with contextlib.suppress(ClusterUnavailableError):
            looks.append(follower.poll_job())
    restarts = [str(restart) for news in looks for restart in news.restarts]
    limit = "" if silent_at == 1 else " of 3"  # The limit is asked for once.
    assert restarts == [f"restart 1{limit}: shop.py:1 in Shop.sell: ValueError: no"]
    assert [news.state for news in looks if news.changed][-1] == "FAILED"
    assert str(looks[-1].failure).startswith("shop.py:2 in Shop.sell: ValueError: no")


@pytest.mark.parametrize(
    ("result", "begin"),
    [
        ({"failure-cause": {"stack-trace": FAILURE.format(line=5, text="no")}}, "shop.py:5 in Shop.sell"),
        ({}, None),
        (None, None),
    ],
)
def test_a_job_that_could_not_begin_has_the_failure_of_its_result(result: Any, begin: str | None) -> None:
    flink = Flink()
    flink.state = "FAILED"
    flink.result = result
    failure = JobFollower(flink, "j1", "orders").poll_job().failure
    assert failure is None if begin is None else str(failure).startswith(begin)


def test_a_strategy_without_limit_has_no_number_to_name() -> None:
    flink = Flink("Cluster level default restart strategy")
    follower = JobFollower(flink, "j1", "orders")
    flink.fail(1, "RESTARTING")
    assert str(follower.poll_job().restarts[0]).startswith("restart 1: shop.py:1")


def test_inputs_are_counted_by_agent() -> None:
    assert JobFollower(Flink(), "j1", "orders").inputs_read() == {"Shop": 7}


PROGRESS = """
from flink_agents.runtime.flink.following.console import ProgressBars, is_terminal
assert is_terminal()
with ProgressBars({"Shop": 7}) as progress:
    progress.show_progress({"Shop": 3, "Till": 2})
    progress.show_progress({"Shop": 5, "Till": 4})
"""


def test_progress_is_shown_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with os.fdopen(ours, "rb", 0) as terminal:
        process = subprocess.Popen([sys.executable, "-c", PROGRESS], stderr=theirs, env=environment)
        os.close(theirs)
        shown = b""
        try:
            while part := terminal.read(4096):
                shown += part
        except OSError:
            pass  # Linux says so that nobody writes any more.
        assert process.wait() == 0, shown
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode("utf-8", "replace"))
    assert re.search(r"agent Shop .* 5/7 +inputs", text) and re.search(r"agent Till .* 4/\? +inputs", text)


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterUnavailableError, match="http://localhost:1\n"):
        ClusterRest("localhost:1").get("/overview")


def test_each_job_has_a_log_and_the_oldest_go(tmp_path: Path) -> None:
    for number in range(KEPT):
        old = tmp_path / f"old-{number}.log"
        old.touch()
        os.utime(old, (number, number))
    first, second = (new_log("my job: a -> b", tmp_path / ".") for _ in range(2))
    assert first is not None and second is not None and first != second
    assert first.name.startswith("my-job-a-b-") and first.is_file()
    log_names = {path.name for path in tmp_path.glob("*.log")}
    assert len(log_names) == KEPT and not log_names & {"old-0.log", "old-1.log"}


def test_no_log_where_none_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert new_log("job", tmp_path / "file" / "logs") is None


@pytest.mark.parametrize("waited", [0.0, rest.FIRST_SECONDS])
def test_a_caller_polls_more_often_at_first(waited: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(rest.time, "sleep", pauses.append)
    rest.sleep_until_next_poll(time.monotonic() - waited)
    assert pauses == [rest.POLL_SECONDS if waited else rest.FIRST_POLL_SECONDS]


class Clock:
    """The event of a job's end, and the time: each wait takes as long as it may."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.is_ended = False
        self.set = lambda: setattr(self, "is_ended", True)
        self.is_set = lambda: self.is_ended
        self.monotonic = lambda: sum(self.waits)

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.is_ended


@pytest.mark.parametrize(("silent_at", "polls_without"), [(None, 4), (2.75, 7)])
def test_a_local_job_is_polled_once_a_second_and_lost_a_second_after_its_task_manager(
    silent_at: float | None, polls_without: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    class Losing(Flink):
        def get(self, path: str) -> Any:
            if path == "/taskmanagers":
                return {"taskmanagers": ["tm"] if clock.monotonic() < 2 else []}
            if clock.monotonic() == silent_at:
                raise ClusterUnavailableError("no answer")
            return super().get(path)

    closed: list[Any] = []
    monkeypatch.setattr(local_jobs, "time", clock)
    monkeypatch.setattr(local_jobs.flink_compat, "close_minicluster", closed.append)
    job = LocalJob(SimpleNamespace(getJobID=lambda: SimpleNamespace(toString=lambda: "j1")), JobFacts("job"))
    job.reports_itself()
    monkeypatch.setattr(job, "_ended", clock)
    flink = Losing()
    job._poll_until_end(flink, JobFollower(flink, "j1", "job"), None)
    assert clock.waits == [0.25, 1.0, 1.0] + [0.25] * polls_without
    assert len(closed) == 1 and clock.is_ended
