"""A job is stopped with a savepoint in mid-work and goes on at another parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.counting_run import CountingRun
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS, Combination

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

RECORDS = 2500


@pytest.mark.parametrize(("combination", "after"), SETTINGS.rescales, ids=str)
def test_rescale(flink_cluster: FlinkCluster, tmp_path: Path, combination: Combination, after: int) -> None:
    initial_parallelism = combination.parallelism
    run = CountingRun(flink_cluster, tmp_path, RECORDS, SETTINGS.seed)
    flink_cluster.fresh_taskmanagers(1, initial_parallelism)
    job = run.submit(initial_parallelism, combination.options)
    run.wait_for_output(job, RECORDS // 4)
    savepoint = job.stop_with_savepoint(tmp_path / "savepoints")
    flink_cluster.wait_for("the end of the stopped job", lambda: job.state() == "FINISHED", job)
    written = run.output.count()
    assert 0 < written < RECORDS

    flink_cluster.fresh_taskmanagers(1, after)
    resumed = run.submit(after, combination.options, savepoint)
    run.wait_for_end(resumed)

    verdict = run.verdict()
    print(f"\n{combination}, then p{after}, seed {SETTINGS.seed}: {written} before the stop; {verdict}")
    assert verdict.clean, f"seed {SETTINGS.seed}: {verdict}\n{flink_cluster.report(resumed)}"
