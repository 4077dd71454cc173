"""A job on a cluster: what is submitted, which lines are shown, how a job is named and stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.errors import (
    ClusterError,
    ClusterUnavailableError,
    JobFailedError,
    SavepointFailedError,
    SubmissionError,
    UnknownJobError,
)
from flink_agents.runtime.flink.clusters import run as cluster_run
from flink_agents.runtime.flink.clusters.jobs import find_job, stop_with_savepoint
from flink_agents.runtime.flink.clusters.run import JobRequest, run_on_cluster
from flink_agents.runtime.flink.following import rest
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.flink.launch.flink_home import FlinkHome

JOB = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32

CLIENT = f"""
print("before")
print("Job has been submitted with JobID {JOB}")
print("Program execution finished")
print("after")
"""

FAILING_CLIENT = """
print('Traceback (most recent call last):')
print('  File "job.py", line 3, in <module>')
print("ValueError: no such topic")
print("org.apache.flink.client.program.ProgramAbortException: java.lang.RuntimeException")
print("\\tat org.apache.flink.client.python.PythonDriver.main(PythonDriver.java:140)")
print("Caused by: java.lang.RuntimeException: Python process exits with code: 1")
raise SystemExit(1)
"""


class Flink(ClusterRest):
    """Answers with states in turn."""

    def __init__(self, *states: str) -> None:
        super().__init__("localhost:1")
        self.states = list(states)
        self.jobs = [
            (JOB, "orders", "RUNNING"),
            (OTHER, "bills", "RUNNING"),
            ("0" * 32, "orders", "FINISHED"),
        ]
        self.posted: list[tuple[str, Any]] = []
        self.savepoint: dict[str, Any] = {"location": "file:/savepoints/1"}

    def get(self, path: str) -> Any:
        if path == "/overview":
            return {"slots-available": 0}
        if path == "/config":
            return {"refresh-interval": -200}
        if path == "/taskmanagers":
            return {"taskmanagers": [{"id": "tm"}]}
        if path == "/jobs/overview":
            return {
                "jobs": [
                    {"jid": jid, "name": name, "state": state, "start-time": 1}
                    | {"tasks": {"scheduled": 2, "running": 0, "initializing": 0}}
                    for jid, name, state in self.jobs
                ]
            }
        what = path.removeprefix(f"/jobs/{JOB}").partition("?")[0]
        if what == "/status":
            return {"status": self.states.pop(0) if len(self.states) > 1 else self.states[0]}
        if what.startswith("/savepoints/"):
            return {"status": {"id": "COMPLETED"}, "operation": self.savepoint}
        return {
            "/config": {"name": "orders", "execution-config": {"restart-strategy": "none"}},
            "/exceptions": {"exceptionHistory": {"entries": []}},
        }[what]

    def text(self, path: str) -> bytes:
        self.printed = getattr(self, "printed", b"old\n") + b"new line\n"
        return self.printed

    def post(self, path: str, body: Any) -> Any:
        self.posted.append((path, body))
        return {"request-id": "r1"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a client's text instead of Flink's; returns the last state, what is said and what is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rest, "FIRST_POLL_SECONDS", 0)
    messages: list[str] = []
    shown: list[str] = []

    def with_client(flink: Flink, client: str) -> tuple[str | None, list[str], list[str]]:
        monkeypatch.setattr(JobRequest, "command", lambda *_: [sys.executable, "-c", client])
        request = JobRequest(Path("job.py"))
        return run_on_cluster(flink, request, messages.append, shown.append), messages, shown

    return with_client


class Restarted(Flink):
    """A JobManager that dies, and is started again: it knows no jobs."""

    def get(self, path: str) -> Any:
        if path == f"/jobs/{JOB}/checkpoints":
            return {"latest": {"completed": {"external_path": "file:/checkpoints/chk-7"}}}
        if path.endswith(("/status", "/exceptions?maxExceptions=100")) and len(self.states) == 1:
            raise ClusterError("refused", found=f"404: NotFoundException: Job {JOB} not found")
        return super().get(path)


def test_a_job_that_the_cluster_has_lost_is_told_with_its_last_checkpoint(run: Any) -> None:
    with pytest.raises(UnknownJobError, match="no longer knows job 'orders'") as caught:
        run(Restarted("CREATED", "RUNNING", "RUNNING", "RUNNING"), CLIENT)
    assert "--savepoint file:/checkpoints/chk-7" in (caught.value.fix or "")


def test_a_job_is_followed_to_its_end(run: Any, tmp_path: Path) -> None:
    state, messages, shown = run(Flink("CREATED", "RUNNING", "RUNNING", "FINISHED"), CLIENT)
    assert state == "FINISHED"
    assert messages == [
        f"job {JOB}: submitted to http://localhost:1",
        "job 'orders': CREATED",
        "job 'orders': RUNNING",
        "job 'orders': FINISHED",
    ]
    assert {"before", "after", "new line"} == set(shown)
    [log] = (tmp_path / ".flink-agents" / "logs").glob("run-job-*.log")
    assert "Program execution finished" in log.read_text()


def test_a_job_that_fails_raises(run: Any) -> None:
    with pytest.raises(JobFailedError):
        run(Flink("RUNNING", "FAILED"), CLIENT)


def test_a_script_that_fails_shows_its_own_traceback_only(run: Any) -> None:
    with pytest.raises(SubmissionError, match=r"job\.py ended with 1") as raised:
        run(Flink("RUNNING"), FAILING_CLIENT)
    assert "ValueError: no such topic" in str(raised.value)
    assert "ProgramAbortException" not in str(raised.value) and "PythonDriver" not in str(raised.value)


def test_a_job_without_slots_says_that_it_waits(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "WAITING_SECONDS", 0)
    _, messages, _ = run(Flink("RUNNING", "RUNNING", "FINISHED"), CLIENT)
    assert sum("waits for slots" in line for line in messages) == 1


def test_a_cluster_that_is_not_there_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_run.subprocess, "Popen", None)
    with pytest.raises(ClusterUnavailableError):
        run_on_cluster(ClusterRest("localhost:1"), JobRequest(Path("job.py")), print, print)


def test_the_command_line_of_a_job(tmp_path: Path) -> None:
    request = JobRequest(
        tmp_path / "job.py",
        ["--topic", "orders"],
        "file:/savepoints/1",
        [tmp_path / "a", tmp_path / "b.py"],
        2,
        True,
        {"pipeline.name": "n"},
        True,
    )
    _, *words = request.command(FlinkHome(tmp_path, tmp_path, tmp_path), "host:8081")
    assert words == [
        *("run", "-m", "host:8081", "-d", "-p", "2", "-s", "file:/savepoints/1", "-n", "-Dpipeline.name=n"),
        *("-pyclientexec", sys.executable, "-pyfs", f"{tmp_path / 'a'},{tmp_path / 'b.py'}"),
        *("-py", str(tmp_path / "job.py"), "--topic", "orders"),
    ]


@pytest.mark.parametrize(
    ("job", "found"), [("orders", JOB), ("bills", OTHER), (JOB[:6], JOB), (OTHER, OTHER)]
)
def test_a_job_is_found_by_name_or_id(job: str, found: str) -> None:
    assert find_job(Flink("RUNNING"), job).id == found


@pytest.mark.parametrize(
    ("job", "text"), [(None, "2 jobs are running, and none was named"), ("sales", "no running job")]
)
def test_a_job_that_is_not_clear_is_refused_with_those_that_run(job: str | None, text: str) -> None:
    with pytest.raises(UnknownJobError, match=text) as raised:
        find_job(Flink("RUNNING"), job)
    assert f"{JOB} 'orders' RUNNING; {OTHER} 'bills' RUNNING" in str(raised.value)


def test_the_only_job_need_not_be_named() -> None:
    flink = Flink("RUNNING")
    del flink.jobs[1]
    assert find_job(flink, None).name == "orders"
    flink.jobs = []
    with pytest.raises(UnknownJobError, match="no job is running"):
        find_job(flink, None)


def test_a_savepoint_that_failed_names_flinks_reason() -> None:
    flink = Flink("RUNNING", "FINISHED")
    job = find_job(flink, "orders")
    assert stop_with_savepoint(flink, job) == "file:/savepoints/1"
    assert flink.posted == [(f"/jobs/{JOB}/stop", {"drain": False})]
    trace = "java.lang.RuntimeException: x\n\tat a\nCaused by: java.io.IOException: no space\n\tat b"
    flink.savepoint = {"failure-cause": {"stack-trace": trace}}
    with pytest.raises(SavepointFailedError, match=r"found: java\.io\.IOException: no space"):
        stop_with_savepoint(flink, job, "file:/elsewhere", drain=True)
    assert flink.posted[-1][1] == {"drain": True, "targetDirectory": "file:/elsewhere"}
