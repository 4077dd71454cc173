"""On a cluster, runs leave the store while the job goes on, and a killed TaskManager finds what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from flink_agents.api.action_state import ActionStateStore, JournalInfo
from flink_agents.cli.journals.operations import PAGE, Place
from tests.cluster.counting_check import CommittedOutput
from tests.cluster.durable_check import Workload, judge
from tests.cluster.durable_run import OPTIONS, SCRIPT
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.settings import SETTINGS

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

WORKLOAD = Workload(events=9000, keys=50)
PER_SECOND = 150

ENOUGH = 600
"""So many runs are pruned before the kill, and again after it."""


class Journals:
    """What the store holds of a job that runs."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.most_kept = 0

    def pruned(self) -> int:
        """How many runs were pruned; notes how many are kept."""

        async def read(store: ActionStateStore) -> list[JournalInfo]:
            return [
                info for info in await store.journals(limit=PAGE) if info.journal.journal_id[:1] != "\x00"
            ]

        infos = Place(self._store.name, self._store.options).run_query(read)
        assert len(infos) <= WORKLOAD.keys < PAGE
        self.most_kept = max(self.most_kept, sum(info.runs for info in infos))
        return sum(info.pruned_through + 1 for info in infos)


def test_the_store_stays_flat_while_the_job_runs(flink_cluster: FlinkCluster, tmp_path: Path) -> None:
    store = RunStore.for_directory("sqlite", tmp_path)
    outputs, windows = CommittedOutput(tmp_path / "out"), CommittedOutput(tmp_path / "windows")
    flink_cluster.fresh_taskmanagers(count=1, slots=2)
    arguments = [
        *("--output", str(tmp_path / "out"), "--windows", str(tmp_path / "windows")),
        *("--effects", str(tmp_path / "effects"), "--events", str(WORKLOAD.events)),
        *("--keys", str(WORKLOAD.keys), "--per-second", str(PER_SECOND), "--seed", str(SETTINGS.seed)),
    ]
    job = flink_cluster.submit(SCRIPT, *arguments, parallelism=2, options={**OPTIONS, **store.flink_options})
    flink_cluster.wait_for("output", lambda: outputs.count() > 0, job)
    journals = Journals(store)

    flink_cluster.wait_for("runs to be pruned", lambda: journals.pruned() >= ENOUGH, job)
    flink_cluster.kill(flink_cluster.taskmanagers[0])
    flink_cluster.start_taskmanager(slots=2)
    pruned_runs = journals.pruned()
    more = pruned_runs + ENOUGH
    flink_cluster.wait_for("more runs to be pruned", lambda: journals.pruned() >= more, job)
    flink_cluster.wait_for("the end of the job", lambda: journals.pruned() and job.state() == "FINISHED", job)

    effects = (tmp_path / "effects").read_text(encoding="ascii").splitlines()
    verdict = judge(outputs.lines(), windows.lines(), effects, WORKLOAD)
    assert verdict.clean, f"seed {SETTINGS.seed}: {verdict}\n{flink_cluster.report(job)}"
    assert job.checkpoints()["restored"] > 0
    pruned = journals.pruned()
    print(f"\nat most {journals.most_kept} of {WORKLOAD.events} runs were kept, {pruned} were pruned")
    assert pruned > WORKLOAD.events / 2
    assert journals.most_kept < WORKLOAD.events / 2
