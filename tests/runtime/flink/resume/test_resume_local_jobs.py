"""Local jobs as commands and the console see them: each state, and each place that shows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents import Agent, ApprovalRequest, InputEvent, OutputEvent, action
from flink_agents.cli.kafka import approvals
from flink_agents.cli.main import app
from flink_agents.cli.runs import metrics
from flink_agents.runtime.flink.resume.job_run import JobFolder, JobRun, RunRecord, Start, write_atomically
from flink_agents.runtime.flink.resume.local_jobs import (
    JobState,
    jobs_of,
    lock_holder,
    point_to,
    state_of,
)
from flink_agents.testing import OperatorHarness
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case
from tests.trace.clusters import cluster
from tests.ui.consoles import console

pytestmark = pytest.mark.own_conditions

BEGAN = "2026-01-02T03:04:05.000+00:00"
ENDED = "2026-01-02T03:05:00.000+00:00"
ALIVE = 1_767_323_090.0
HOLDER = (
    "import fcntl, sys\nfile = open(sys.argv[1], 'r+b')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
    "print('held', flush=True)\nsys.stdin.read()"
)
"""Holds a lock as the JVM of a job does."""


class Paying(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == "ask":
            await ctx.request_approval("refund", {"total": 5})
        return OutputEvent(output=event.input)


class Place:
    """A directory with a script, the folder of its job, and the trace of a waiting run."""

    def __init__(self, directory: Path, name: str = "orders") -> None:
        self.directory = directory
        self.name = name
        self.script = directory / f"{name}.py"
        self.script.touch()
        self.traces = directory / "flink-agents-trace"
        self.state_dir = directory / ".flink-agents"
        self.folder = JobFolder.for_job(self.state_dir, name)
        self.folder.create()
        self.folder.lock.touch()
        self.record = RunRecord(self.folder)
        self.processes: list[subprocess.Popen[str]] = []
        options = {
            "trace.level": "runs",
            "trace.directory": str(self.traces),
            "job-identifier": name,
        }
        with OperatorHarness(
            Paying, lambda record: record[1:] and "k", config=options, job_id=name, **UNFORCED
        ) as harness:
            for record in ("ask", "one", "two"):
                harness.push(record)

    def start(self, **values: Any) -> None:
        program = {"path": str(self.script), "beside": f"../{self.script.name}"}
        log = self.directory / "job.log"
        log.write_text("2026-01-02 03:04:09 ERROR DiskError: no space left\n")
        start = replace(Start(1, "1" * 32, BEGAN, 1, os.getpid(), log=str(log)), **values)
        run = JobRun(self.name, identifier=self.name, program=program, plans={"Paying": "a"})
        self.record.write(replace(run, starts=(start,)))
        progress = {"start": 1, "checkpoint": None, "alive": ALIVE, "journal": None}
        write_atomically(self.folder.progress, json.dumps(progress), durable=False)

    def hold(self) -> int:
        command = [sys.executable, "-c", HOLDER, str(self.folder.lock)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process.pid

    def pause(self) -> None:
        pid = self.hold()
        os.kill(pid, signal.SIGSTOP)
        until = time.monotonic() + 30
        while (job_state := state_of(self.folder)) is None or job_state.state is not JobState.PAUSED:
            assert time.monotonic() < until, job_state
            time.sleep(0.01)


@pytest.fixture
def new_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Place]]:
    places: list[Place] = []
    monkeypatch.setattr(metrics, "IDLE_SECONDS", 0.1)

    def make(name: str = "orders") -> Place:
        directory = tmp_path / f"{len(places)}"
        directory.mkdir()
        places.append(Place(directory, name))
        return places[-1]

    yield make
    for process in [process for place in places for process in place.processes]:
        process.kill()
        process.communicate()


def killed(place: Place) -> None:
    place.start()


def failed(place: Place) -> None:
    place.start(ended=ENDED, error="job.py:7 in pay: ValueError: a typo")


def stopped(place: Place) -> None:
    place.start(ended=ENDED, stopped=True)


def cancelled(place: Place) -> None:
    place.start(ended=ENDED)


def stopped_earlier(place: Place) -> None:
    """A version without times of ends recorded it."""
    place.start(stopped=True)


def never_started(place: Place) -> None:
    place.start()
    run = place.record.read()
    assert run is not None
    place.record.write(replace(run, starts=()))


def finished(place: Place) -> None:
    place.start()
    place.record.set(finished=ENDED)


def restarted(place: Place) -> None:
    """A start after one that failed: the error of that one is gone."""
    failed(place)
    run = place.record.read()
    assert run is not None
    place.record.write(replace(run, starts=(*run.starts, Start(2, "2" * 32, BEGAN, 1, 1))))


def running(place: Place) -> None:
    place.start()
    place.hold()


def paused(place: Place) -> None:
    place.start()
    place.pause()


DOWN = "The job 'orders' does not run"
RESUME = "To resume it: python "
STATES: list[tuple[Callable[[Place], None], JobState, list[str]]] = [
    (killed, JobState.KILLED, [DOWN, "about 2026-01-02", "Its last error: DiskError", "Its log", RESUME]),
    (failed, JobState.FAILED, [DOWN, "2026-01-02", "Its last error: job.py:7 in pay: ValueError", RESUME]),
    (stopped, JobState.STOPPED, [DOWN, "2026-01-02", "it was stopped", RESUME]),
    (cancelled, JobState.STOPPED, [DOWN, "it was stopped", RESUME]),
    (stopped_earlier, JobState.STOPPED, [DOWN, "it was stopped", RESUME]),
    (restarted, JobState.KILLED, [DOWN, "was killed", RESUME]),
    (never_started, JobState.NEW, [DOWN, "never started", RESUME]),
    (finished, JobState.FINISHED, [DOWN, "it has finished"]),
    (paused, JobState.PAUSED, ["The job 'orders' is paused", "kill -CONT"]),
    (running, JobState.RUNNING, []),
]
NAMES = [prepare.__name__ for prepare, _, _ in STATES]


def run_cli(place: Place, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.chdir(place.directory)
    return CliRunner().invoke(app, list(arguments))


def request() -> ApprovalRequest:
    return ApprovalRequest("sk|0|pay||0|x", "Paying", "pay", "k", "refund", {"total": 5}, 1_000, None)


class Requests:
    """The topic of requests."""

    foreign = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def pending(self) -> list[ApprovalRequest]:
        return [replace(request(), id="sother|0|pay||0|x", what="gift"), request()]

    read = pending

    def close(self) -> None:
        pass


@each_case(("prepare", "state", "words"), STATES, ids=NAMES)
def test_commands_say_if_a_job_runs(
    prepare: Callable[[Place], None],
    state: JobState,
    words: list[str],
    new_place: Callable[..., Place],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = new_place()
    prepare(place)
    monkeypatch.setattr("flink_agents.connectors.kafka.requests.pending.PendingRequests", Requests)
    monkeypatch.setattr(approvals, "_open_desk", Requests)
    why = run_cli(place, monkeypatch, "why", "k", "--requests", "r", "--client", "h:1")
    runs = run_cli(place, monkeypatch, "runs")
    pending = run_cli(place, monkeypatch, "approvals", "list", "--topic", "r")
    for result in (why, runs) if state in (JobState.NEW, JobState.FINISHED) else (why, runs, pending):
        assert [word for word in words if word not in result.output] == [], result.output
        assert words or "does not run" not in result.output
    assert "suspended" in why.stdout and "2 input(s) of the key wait behind it" in why.stdout
    assert "gift" not in why.output, "the request of another key"
    # No answer, and no end of a run, before the job runs again.
    assert ("approvals approve" in why.stdout) == (not words)
    assert ("when it runs again" in why.stdout) == bool(words)
    lines = [json.loads(line) for line in run_cli(place, monkeypatch, "runs", "--json").stdout.splitlines()]
    assert [line["job_state"]["state"] for line in lines] == [state] * 3
    assert all((line["job_state"]["resume"] is not None) == (state in RESUMED) for line in lines)


RESUMED = (JobState.KILLED, JobState.FAILED, JobState.STOPPED)


@each_case(("prepare", "state", "words"), STATES, ids=NAMES)
def test_the_console_says_if_a_job_runs(
    prepare: Callable[[Place], None],
    state: JobState,
    words: list[str],
    new_place: Callable[..., Place],
) -> None:
    place = new_place()
    prepare(place)
    with console(ConsoleSettings(trace=place.traces)) as (browser, index, _):
        run = index.query("SELECT run_id FROM runs WHERE status = 'suspended'")[0][0]
        for path in ("/", "/runs", "/waiting", f"/run?id={run}", "/keys?raw=sk", "/runs?job=orders"):
            page = browser.page(path).replace("&#39;", "'")
            assert [word for word in words if word not in page] == [], path
            assert words or "does not run" not in page
        assert f'class="status {state}"' in browser.page("/")


@each_case(("prepare", "state", "words"), STATES, ids=NAMES)
def test_top_without_a_cluster(
    prepare: Callable[[Place], None],
    state: JobState,
    words: list[str],
    new_place: Callable[..., Place],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = new_place()
    prepare(place)
    answers = {
        "/jobs/overview": {"jobs": [{"jid": "j", "name": "orders", "state": "RUNNING"}]},
        "/jobs/j": {"vertices": [{"id": "v", "name": "agent Paying"}]},
        "/jobs/j/vertices/v/subtasks/metrics": [
            {"id": "a.flink_agents.Paying.runtime.waits_suspended", "sum": 1, "max": 1}
        ],
    }
    with cluster(bytes, answers) as address:
        if place.record.read().starts:  # type: ignore[union-attr]
            place.record.set_start(rest=address)
        if state in (JobState.NEW, JobState.FINISHED):
            # They have nothing to continue, so that the cluster of this machine is shown.
            monkeypatch.setattr("flink_agents.cli.runs.top.DEFAULT_CLUSTER", address)
        shown = run_cli(place, monkeypatch, "top", "--once", "--json", "--interval", "0.2")
    assert shown.exit_code == 0, shown.output
    report = json.loads(shown.stdout)
    works = state in (JobState.RUNNING, JobState.NEW, JobState.FINISHED)
    assert [agent["agent"] for agent in report["agents"]] == (["Paying"] if works else [])
    assert all(word in " ".join(report["not_running"]) for word in words) or works


def test_other_jobs_do_not_count(new_place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several jobs have folders here, and a job of the same name has one elsewhere."""
    place = new_place()
    elsewhere = new_place()
    running(place)
    failed(elsewhere)
    other_place = Place(place.directory, "bills")
    failed(other_place)
    assert {job.run.name: job.state for job in jobs_of([place.state_dir])} == {
        "orders": JobState.RUNNING,
        "bills": JobState.FAILED,
    }
    output = run_cli(place, monkeypatch, "runs").output
    assert "The job 'bills' does not run" in output and "'orders'" not in output
    monkeypatch.chdir(elsewhere.directory)
    runs_output = CliRunner().invoke(app, ["runs", "--path", str(place.traces)]).output
    assert "'orders'" not in runs_output, "the job that wrote this trace runs"


def test_a_trace_names_its_job_wherever_that_has_its_folder(
    new_place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = new_place()
    failed(place)
    moved = tmp_path / "elsewhere" / "traces"
    moved.parent.mkdir()
    place.traces.rename(moved)
    point_to(place.folder, "orders", moved)
    monkeypatch.chdir(tmp_path)
    assert DOWN in CliRunner().invoke(app, ["why", "k", "--path", str(moved)]).output


def test_a_run_of_a_job_run_that_was_replaced(
    new_place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place()
    failed(place)
    aside = place.folder.place_aside()
    assert aside is not None
    run = place.record.read()
    assert run is not None
    place.record.write(replace(run, identifier="orders@2", generation=2))
    place.hold()
    assert "The job 'orders' started over" in run_cli(place, monkeypatch, "why", "k").output


def test_arguments_of_the_script_are_part_of_the_command(new_place: Callable[..., Place]) -> None:
    place = new_place()
    failed(place)
    place.record.set(script="token")
    (place.state_dir / "scripts" / "orders.py").mkdir(parents=True)
    token = place.state_dir / "scripts" / "orders.py" / "token"
    token.write_text(json.dumps({"process": 1, "fresh": False, "arguments": ["eu", "a b"]}))
    job_state = state_of(place.folder)
    assert job_state is not None and job_state.command is not None
    assert job_state.command.endswith("orders.py eu 'a b'")


def test_an_observer_takes_no_lock(new_place: Callable[..., Place]) -> None:
    place = new_place()
    assert lock_holder(place.folder.lock) is None
    assert lock_holder(place.folder.path / "none") is None
    pid = place.hold()
    assert lock_holder(place.folder.lock) == pid


@each_case("text", ["", "{", '{"version": 99}', "[]"])
def test_a_record_that_cannot_be_read_is_left_out(text: str, new_place: Callable[..., Place]) -> None:
    place = new_place()
    place.folder.record.write_text(text)
    assert jobs_of([place.state_dir]) == []
