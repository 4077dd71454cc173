"""A real cluster tells of its agents: by Flink's Prometheus reporter, its logs, ``why`` and ``top``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents.cli.checks.cluster import cluster_checks
from flink_agents.cli.main import app
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.trace.log_lines import read_marked
from tests.cluster import watched_job
from tests.cluster.flink_cluster import FlinkCluster, free_ports
from tests.cluster.flink_rest import ClusterJob
from tests.runtime.metrics_page import listed_metrics

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

SCRIPT = Path(watched_job.__file__)
ALERTS = Path(__file__).parents[2] / "docs" / "alerts.yml"
REPORTER = "metrics.reporter.prometheus"
HERE = "flink_taskmanager_job_task_operator_flink_agents_Watched_"


@pytest.fixture(scope="module")
def port() -> str:
    return str(free_ports(1)[0])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, port: str) -> Iterator[FlinkCluster]:
    """A cluster of its own, whose TaskManager serves metrics."""
    factory = "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
    reporter = {f"{REPORTER}.factory.class": factory, f"{REPORTER}.port": port}
    with FlinkCluster(tmp_path_factory.mktemp("watched"), taskmanager_options=reporter) as watched_cluster:
        yield watched_cluster


@pytest.fixture(scope="module")
def job(cluster: FlinkCluster) -> ClusterJob:
    cluster.start_taskmanager(slots=1)
    return cluster.submit(SCRIPT, parallelism=1)


def scraped(port: str) -> dict[str, float]:
    """The metrics of the agent as Prometheus reads them."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples = re.findall(rf"^{HERE}(\w+?)\{{.*\}} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in samples}


def run_command(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_metrics_are_read_back_by_the_reporter(cluster: FlinkCluster, job: ClusterJob, port: str) -> None:
    def stuck() -> bool:
        try:
            samples = scraped(port)
        except OSError:
            return False
        wanted = ("runtime_runs_stuck", "runtime_waits_suspended", "runtime_events_dead_lettered")
        return all(samples.get(name, 0) >= 1 for name in wanted)

    cluster.wait_for("a stuck run, and one that was ended, among the metrics", stuck, job)
    metrics = scraped(port)
    for metric in listed_metrics():
        if metric.always:
            group = metric.group.replace("NAME", "act").replace(".", "_")
            name = f"{group}_{metric.name}" + ("_p99" if metric.kind == "histogram" else "")
            assert metric.kind == "meter" or name in metrics, f"{name} is not among {sorted(metrics)}"
    assert metrics["runtime_events"] > 0 and metrics["runtime_waits_signal"] == 1
    assert metrics["runtime_events_dead_lettered"] == 1
    assert metrics["runtime_dead_letters_RunEndedError_"] == 1


def test_a_real_prometheus_reads_them(
    cluster: FlinkCluster, job: ClusterJob, port: str, tmp_path: Path
) -> None:
    """That is Debian's package ``prometheus``. If it is missing, the test above reads the reporter."""
    command = shutil.which("prometheus")
    if command is None:
        pytest.skip("no prometheus: apt-get install prometheus")
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: ['{ALERTS}']\n"
        f"scrape_configs: [{{job_name: flink, static_configs: [{{targets: ['localhost:{port}']}}]}}]\n"
    )
    (prometheus_port,) = free_ports(1)
    where = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with subprocess.Popen([command, *where, f"--web.listen-address=127.0.0.1:{prometheus_port}"]) as process:
        try:

            def value() -> float:
                query = f"http://127.0.0.1:{prometheus_port}/api/v1/query?query={HERE}runtime_events"
                try:
                    with urllib.request.urlopen(query, timeout=30) as answer:
                        results = json.load(answer)["data"]["result"]
                except OSError:
                    return 0.0
                return float(results[0]["value"][1]) if results else 0.0

            cluster.wait_for("Prometheus to have the events", lambda: value() > 0, job)
            with urllib.request.urlopen(
                f"http://127.0.0.1:{prometheus_port}/api/v1/rules", timeout=30
            ) as answer:
                (group,) = json.load(answer)["data"]["groups"]
            assert len(group["rules"]) >= 5
        finally:
            process.terminate()


def test_the_logs_answer_without_a_trace(cluster: FlinkCluster, job: ClusterJob) -> None:
    cluster_rest = ClusterRest(cluster.rest.address)

    def answers() -> list[dict[str, Any]]:
        return [answer for log in cluster_rest.task_logs() for answer in read_marked(log, "agent-reply ")]

    def has_answers() -> bool:
        return {1, 2} <= {
            int(answer["key"][1:]) for answer in answers() if answer.get("run") or answer.get("suspended")
        }

    cluster.wait_for("answers about both keys", has_answers, job)
    last = {answer["key"]: answer for answer in answers()}
    assert last["i1"]["suspended"][0]["waits"][0]["name"] == "never"
    assert last["i2"]["run"]["action"] == "act" and "watched_job.py" in last["i2"]["run"]["where"]
    result = run_command("why", "2", "--cluster", cluster.rest.address)
    assert result.exit_code == 0 and "in action act at" in result.output, result.output


def test_top_and_doctor_see_the_job(cluster: FlinkCluster, job: ClusterJob) -> None:
    shown = run_command("top", "--once", "--cluster", cluster.rest.address)
    assert shown.exit_code == 0 and "Watched" in shown.output, shown.output
    results = {check.name: check for check in cluster_checks(cluster.rest.address)}
    assert any(name.startswith("job ") for name in results), json.dumps(list(results))
    assert results["slots"].status == "warn"
