"""TaskManagers of a standalone cluster die by SIGKILL: nothing is lost, doubled or reordered."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.cluster.counting_run import CountingRun
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS, Combination

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster]


@pytest.mark.nightly
@pytest.mark.parametrize("combination", SETTINGS.combinations, ids=str)
def test_sigkill(flink_cluster: FlinkCluster, tmp_path: Path, combination: Combination) -> None:
    chance = random.Random(SETTINGS.seed)
    print(f"\nCHAOS_SEED={SETTINGS.seed} CHAOS_KILLS={SETTINGS.kills} CHAOS_RECORDS={SETTINGS.records}")
    slots = combination.parallelism // combination.taskmanagers
    flink_cluster.fresh_taskmanagers(combination.taskmanagers, slots)
    run = CountingRun(flink_cluster, tmp_path, SETTINGS.records, SETTINGS.seed)
    job = run.submit(combination.parallelism, combination.options)
    recoveries: list[float] = []
    for moment in sorted(chance.uniform(0.05, 0.8) for _ in range(SETTINGS.kills)):
        run.wait_for_output(job, int(moment * SETTINGS.records))
        # Output grows when a checkpoint completes; the kill must be able to fall anywhere else.
        time.sleep(chance.uniform(0, 0.4))
        recoveries.append(run.kill_and_replace(job, chance, slots))
    run.wait_for_end(job)

    verdict = run.verdict()
    restored = job.checkpoints()["restored"]
    seconds = " ".join(f"{recovery:.1f}" for recovery in recoveries)
    print(f"{combination}: {verdict}; {restored} recoveries, seconds until output: {seconds}")
    assert verdict.clean, f"seed {SETTINGS.seed}: {verdict}\n{flink_cluster.report(job)}"
    assert restored >= SETTINGS.kills


@pytest.mark.nightly
@pytest.mark.parametrize("combination", SETTINGS.many_keys_in, ids=str)
def test_sigkill_with_many_keys(
    flink_cluster: FlinkCluster, tmp_path: Path, combination: Combination
) -> None:
    """Each key comes rarely, so that most of what is in flight at the kill is of another key."""
    keys, rounds = SETTINGS.many_keys
    chance = random.Random(SETTINGS.seed)
    records = keys * rounds
    slots = combination.parallelism // combination.taskmanagers
    flink_cluster.fresh_taskmanagers(combination.taskmanagers, slots)
    run = CountingRun(flink_cluster, tmp_path, records, SETTINGS.seed, keys)
    job = run.submit(combination.parallelism, combination.options)
    run.wait_for_output(job, int(chance.uniform(0.2, 0.7) * records))
    seconds = run.kill_and_replace(job, chance, slots)
    run.wait_for_end(job)

    verdict = run.verdict()
    restored = job.checkpoints()["restored"]
    print(
        f"\n{combination}: {keys} keys, seed {SETTINGS.seed}: {verdict}; output again after {seconds:.1f} s"
    )
    assert verdict.clean, f"seed {SETTINGS.seed}: {verdict}\n{flink_cluster.report(job)}"
    assert restored >= 1
