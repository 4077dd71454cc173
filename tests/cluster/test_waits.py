"""Runs that sleep and wait for answers in a cluster whose processes die.

``python -m tests.chaos_waits`` does the same with as many runs as one likes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS
from tests.cluster.waits_run import approvals, rescaled, sleeps

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]


def test_sleeping_runs_go_on_once_and_not_early(flink_cluster: FlinkCluster, tmp_path: Path) -> None:
    report = sleeps(flink_cluster, tmp_path, 30, 2.0, SETTINGS.seed)
    assert report.clean, f"seed {SETTINGS.seed}: {report}"
    assert report.restored >= 1


def test_each_run_gets_its_own_answer_around_a_restart(flink_cluster: FlinkCluster, tmp_path: Path) -> None:
    report = approvals(flink_cluster, tmp_path, 60, SETTINGS.seed)
    assert report.clean, f"seed {SETTINGS.seed}: {report}"
    assert report.restored >= 1


def test_each_run_that_inputs_overtake_gets_its_own_answer_around_a_restart(
    flink_cluster: FlinkCluster, tmp_path: Path
) -> None:
    report = approvals(flink_cluster, tmp_path, 60, SETTINGS.seed, keys=5)
    assert report.clean, f"seed {SETTINGS.seed}: {report}"
    assert report.restored >= 1


def test_runs_that_wait_go_on_from_a_savepoint_at_another_parallelism(
    flink_cluster: FlinkCluster, tmp_path: Path
) -> None:
    report = rescaled(flink_cluster, tmp_path, 60, SETTINGS.seed)
    assert report.clean, f"seed {SETTINGS.seed}: {report}"
    assert report.restored == 1
