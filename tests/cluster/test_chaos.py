"""TaskManagers die while durable calls are made: each output once, no recorded call again."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flink_agents.testing.kafka import KafkaBroker
from tests.chaos import chaos_of, parse_arguments
from tests.cluster.blows import HEARTBEATS, PATIENT
from tests.cluster.branching_check import workload_of
from tests.cluster.broker_trouble import BrokerTrouble
from tests.cluster.durable_run import Chaos, DurableRun, Report
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS, Combination

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

KEYS = 50
ENOUGH_REBUILDS = 3


@pytest.mark.parametrize(("combination", "job"), SETTINGS.durable_in, ids=str)
def test_nothing_recorded_runs_twice(
    flink_cluster: FlinkCluster, tmp_path: Path, combination: Combination, job: str
) -> None:
    workload = workload_of(job, SETTINGS.durable_events, KEYS)
    chaos = Chaos(workload, SETTINGS.durable_kills, SETTINGS.seed, combination=combination)
    report = DurableRun(flink_cluster, tmp_path, chaos, RunStore.for_directory("sqlite", tmp_path)).execute()
    assert_clean(report, flink_cluster)


@pytest.fixture
def cluster_for_kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FlinkCluster]:
    """One whose TaskManagers may stand still, where some do; else the one that all tests share."""
    if SETTINGS.kafka_overlaps:
        with FlinkCluster(tmp_path / "flink", HEARTBEATS, PATIENT) as cluster:
            yield cluster
    else:
        yield request.getfixturevalue("flink_cluster")


# kafka-python does not close the sockets of connections that were refused.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("job", SETTINGS.kafka_jobs)
def test_nothing_recorded_in_kafka_runs_twice(
    cluster_for_kafka: FlinkCluster, kafka_broker: KafkaBroker, tmp_path: Path, job: str
) -> None:
    arguments = [
        "--store",
        "kafka",
        "--job",
        job,
        "--seed",
        str(SETTINGS.seed),
        "--events",
        str(SETTINGS.kafka_events),
    ]
    arguments += ["--kills", str(SETTINGS.durable_kills), "--overlaps", str(SETTINGS.kafka_overlaps)]
    # Slowly, so that the job does not end while it makes up for what the broker did.
    arguments += ["--outage", str(SETTINGS.kafka_outage), "--per-second", "150"]
    chaos = chaos_of(parse_arguments(arguments))
    trouble = BrokerTrouble(kafka_broker, SETTINGS.seed, SETTINGS.kafka_outage)
    store = RunStore.in_kafka(kafka_broker.bootstrap_servers)
    report = DurableRun(cluster_for_kafka, tmp_path, chaos, store, trouble).execute()
    gc.collect()  # now, and not in a test that does not know of them
    assert_clean(report, cluster_for_kafka)
    # A rebuild can be over before the broker stands still, but not each time.
    assert report.done.kills_in_rebuild > 0 or chaos.rebuilds < ENOUGH_REBUILDS
    assert report.done.overlaps == SETTINGS.kafka_overlaps
    assert trouble.done.count > 0


def assert_clean(report: Report, cluster: FlinkCluster) -> None:
    """Nothing is there that must not be, and all was done that was asked for."""
    report_text = json.dumps(report.as_json())
    print(f"\nCHAOS_SEED={SETTINGS.seed}: {report_text}")
    assert report.clean, f"{report_text}\n{report.failure or cluster.report()}"
    assert report.verdict.events == report.chaos.workload.events
    assert (report.done.kills, report.recoveries > 0) == (SETTINGS.durable_kills, True)
