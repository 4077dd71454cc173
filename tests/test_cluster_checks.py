"""``flink-agents doctor --cluster``: what is read off Flink's REST interface, and what is made of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents.cli import main
from flink_agents.cli.checks.cluster import cluster_checks

JAR = "/opt/flink/lib/flink-python-2.3.0.jar"
PATTERNS = "pemja.;py4j."
OPTION = "classloader.parent-first-patterns.additional"


class Cluster:
    """The answers of a cluster."""

    def __init__(self) -> None:
        self.version = "2.3.0"
        self.jobmanager_jars = ["/opt/flink/lib/flink-cep-2.3.0.jar", JAR]
        self.jobmanager_options = {OPTION: PATTERNS, "rest.port": "8081"}
        self.logs: dict[str, str | None] = {"tm-1": self.log([JAR], {OPTION: PATTERNS})}

    def log(self, jars: list[str], options: dict[str, str]) -> str:
        lines = [
            f"INFO  [] - Loading configuration property: {key}, {value}" for key, value in options.items()
        ]
        return "\n".join(
            ["INFO -  Starting TaskManager", f"INFO [] -  Classpath: {':'.join(jars)}:", *lines, ""]
        )

    def ask(self, path: str) -> Any:
        if path == "/overview":
            return {"flink-version": self.version, "slots-total": 2 * len(self.logs)}
        if path == "/jobs/overview":
            return {"jobs": []}
        if path == "/taskmanagers":
            return {"taskmanagers": [{"id": name} for name in self.logs]}
        if path == "/jobmanager/config":
            return [{"key": key, "value": value} for key, value in self.jobmanager_options.items()]
        if path == "/jobmanager/environment":
            return {"jvm": {}, "classpath": self.jobmanager_jars}
        _, _, name, _ = path.split("/")
        if (log := self.logs[name]) is None:
            raise OSError("404")
        return log


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def check_statuses(cluster: Cluster) -> dict[str, str]:
    results = cluster_checks("http://there", cluster.ask)
    assert all(bool(result.fix) == (result.status != "ok") for result in results)
    return {result.name: result.status for result in results}


ALL = {
    "cluster": "ok",
    "JobManager, class path": "ok",
    "JobManager, class loading": "ok",
    "TaskManager tm-1, class path": "ok",
    "TaskManager tm-1, class loading": "ok",
}


def test_a_cluster_on_which_jobs_follow_one_another(cluster: Cluster) -> None:
    assert check_statuses(cluster) == ALL


@pytest.mark.parametrize("order", ["parent-first", "Parent-First"])
def test_where_all_classes_are_the_clusters_none_is_named(cluster: Cluster, order: str) -> None:
    cluster.jobmanager_options = {"classloader.resolve-order": order}
    cluster.logs = {"tm-1": cluster.log([JAR], cluster.jobmanager_options)}
    assert check_statuses(cluster) == ALL


@pytest.mark.parametrize("patterns", ["", "pemja.", "py4j.;org.mine.", "org.mine."])
def test_a_missing_pattern_is_named_in_each_process(cluster: Cluster, patterns: str) -> None:
    cluster.jobmanager_options = {OPTION: patterns}
    assert check_statuses(cluster) == ALL | {"JobManager, class loading": "warn"}
    cluster.logs = {"tm-1": cluster.log([JAR], {OPTION: patterns})}
    cluster.jobmanager_options = {OPTION: PATTERNS}
    assert check_statuses(cluster) == ALL | {"TaskManager tm-1, class loading": "warn"}


def test_a_missing_jar_is_named_in_each_process(cluster: Cluster) -> None:
    cluster.jobmanager_jars.remove(JAR)
    assert check_statuses(cluster) == ALL | {"JobManager, class path": "warn"}
    cluster.jobmanager_jars.append(JAR)
    cluster.logs = {"tm-1": cluster.log(["/opt/flink/lib/flink-dist-2.3.0.jar"], {OPTION: PATTERNS})}
    assert check_statuses(cluster) == ALL | {"TaskManager tm-1, class path": "warn"}


@pytest.mark.parametrize("log", [None, "", "INFO the file was rolled\n"])
def test_what_a_taskmanager_does_not_tell_is_not_guessed(cluster: Cluster, log: str | None) -> None:
    cluster.logs = {"tm-1": log}
    states = check_statuses(cluster)
    assert states["TaskManager tm-1"] == "warn"
    assert set(states) == {
        "cluster",
        "JobManager, class path",
        "JobManager, class loading",
        "TaskManager tm-1",
    }


def test_a_cluster_without_taskmanagers_and_one_of_another_version(cluster: Cluster) -> None:
    cluster.logs = {}
    assert check_statuses(cluster)["cluster"] == "warn"
    cluster.version = "2.2.1"
    assert check_statuses(cluster)["cluster"] == "fail"


def test_something_that_is_no_flink() -> None:
    (result,) = cluster_checks("http://there", lambda path: {"hello": "world"})
    assert result.status == "fail" and "KeyError" in result.found


JOB = {"jid": "j", "name": "orders", "state": "RUNNING"}
GOOD: dict[str, Any] = {
    "/overview": {"flink-version": "2.3.0", "slots-total": 2, "slots-available": 1},
    "/jobs/overview": {"jobs": [JOB, {**JOB, "jid": "old", "state": "FINISHED"}]},
    "/jobs/j": {"vertices": [{"id": "v", "name": "agent A"}]},
    "/jobs/j/checkpoints": {"latest": {"completed": {"id": 3}, "failed": {"id": 2}}},
    "/jobs/j/checkpoints/config": {"interval": 1000},
    "/jobs/j/exceptions?maxExceptions=1": {},
    "/jobs/j/vertices/v/backpressure": {"backpressureLevel": "ok"},
}
METRICS = "/jobs/j/vertices/v/subtasks/metrics"
STUCK = "0.agent_A.flink_agents.A.runtime.runs_stuck"
GOOD[METRICS] = [{"id": "0.numRecordsIn"}, {"id": STUCK}]
SHARED = {OPTION: PATTERNS, "execution.checkpointing.dir": "s3://bucket/checkpoints"}
LOST = {"latest": {"completed": {"id": 3}, "failed": {"id": 4, "failure_message": "no space left"}}}
RAISED = {"exceptionHistory": {"entries": [{"stacktrace": "ValueError: no\n at"}]}}


@pytest.mark.parametrize(
    ("path", "answer", "options", "check", "status"),
    [
        ("", None, SHARED, "job orders", "ok"),
        ("/overview", {**GOOD["/overview"], "slots-available": 0}, SHARED, "slots", "warn"),
        ("/jobs/overview", {"jobs": [{**JOB, "state": "RESTARTING"}]}, SHARED, "job orders", "fail"),
        ("/jobs/j/checkpoints/config", None, SHARED, "job orders, checkpoints", "fail"),
        ("/jobs/j/checkpoints/config", {"interval": 2**63 - 1}, SHARED, "job orders, checkpoints", "fail"),
        ("/jobs/j/checkpoints/config", {"interval": 600_000}, SHARED, "job orders, checkpoints", "warn"),
        ("/jobs/j/checkpoints", LOST, SHARED, "job orders, checkpoints", "fail"),
        ("", None, {OPTION: PATTERNS}, "job orders, checkpoint directory", "warn"),
        (
            "/jobs/j/vertices/v/backpressure",
            {"backpressureLevel": "high"},
            SHARED,
            "job orders, backpressure",
            "warn",
        ),
        ("/jobs/j", None, SHARED, "job orders", "ok"),
        (
            f"{METRICS}?get={STUCK}&agg=sum",
            [{"id": STUCK, "sum": 1.0}],
            SHARED,
            "job orders, stuck runs",
            "warn",
        ),
        (f"{METRICS}?get={STUCK}&agg=sum", [{"id": STUCK, "sum": 0.0}], SHARED, "job orders", "ok"),
    ],
)
def test_a_broken_job_is_found(
    cluster: Cluster, path: str, answer: Any, options: dict[str, str], check: str, status: str
) -> None:
    cluster.jobmanager_options = options
    answers = GOOD | ({path: answer} if path else {}) | {"/jobs/j/exceptions?maxExceptions=1": RAISED}

    def ask(asked: str) -> Any:
        if asked not in answers:
            return cluster.ask(asked)
        if answers[asked] is None:
            raise OSError("404")
        return answers[asked]

    results = {result.name: result for result in cluster_checks("http://there", ask)}
    assert results[check].status == status, results
    assert bool(results[check].fix) == (status != "ok")
    broken = {name for name, result in results.items() if result.status != "ok"}
    assert broken == ({check} if status != "ok" else set())


def test_a_local_directory_is_shared_by_nobody(cluster: Cluster) -> None:
    cluster.logs = {f"host-{number}:1": cluster.log([JAR], {OPTION: PATTERNS}) for number in range(2)}
    cluster.jobmanager_options = SHARED | {"execution.checkpointing.dir": "file:///tmp/checkpoints"}
    results = cluster_checks("there", lambda path: GOOD[path] if path in GOOD else cluster.ask(path))
    (warned,) = [result for result in results if result.name == "job orders, checkpoint directory"]
    assert warned.status == "warn" and "2 hosts" in warned.found


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        cluster: Cluster = self.server.cluster  # pyright: ignore[reportAttributeAccessIssue]
        answer = cluster.ask(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def address(cluster: Cluster) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.cluster = cluster  # pyright: ignore[reportAttributeAccessIssue]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_the_command_asks_the_cluster(address: str) -> None:
    done = CliRunner().invoke(main.app, ["doctor", "--cluster", address, "--json"])
    assert done.exit_code == 0, done.output
    assert {check["name"]: check["status"] for check in json.loads(done.stdout)} == ALL


def test_the_command_fails_where_nobody_answers(address: str) -> None:
    done = CliRunner().invoke(main.app, ["doctor", "--cluster", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "fix: start the cluster" in done.output


def test_an_address_without_http_is_one_of_a_cluster() -> None:
    """All other commands take it, too."""
    (result,) = cluster_checks("localhost:1")
    assert "refused" in result.found
