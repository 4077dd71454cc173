"""TaskManagers die while durable calls are made: each output once, no recorded call again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.durable_check import Workload
from tests.cluster.durable_run import Chaos, DurableRun
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS, Combination

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster]

KEYS = 50


@pytest.mark.parametrize("combination", SETTINGS.durable_in, ids=str)
def test_nothing_recorded_runs_twice(
    flink_cluster: FlinkCluster, tmp_path: Path, combination: Combination
) -> None:
    workload = Workload(SETTINGS.durable_events, KEYS)
    chaos = Chaos(workload, SETTINGS.durable_kills, SETTINGS.seed, combination=combination)
    report = DurableRun(flink_cluster, tmp_path, chaos, RunStore.of("sqlite", tmp_path)).execute()
    found = json.dumps(report.as_json())
    print(f"\nCHAOS_SEED={SETTINGS.seed}: {found}")
    assert report.clean, f"{found}\n{report.failure or flink_cluster.report()}"
    assert report.verdict.events == SETTINGS.durable_events
    assert (report.kills, report.recoveries > 0) == (SETTINGS.durable_kills, True)
