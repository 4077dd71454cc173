"""A counting job on a cluster: submitted, disturbed, and checked."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.counting_check import CommittedOutput, Verdict, judge
from tests.cluster.flink_cluster import FlinkCluster
from tests.cluster.flink_rest import ClusterJob

SCRIPT = Path(__file__).with_name("counting_job.py")
KEYS = 97
PER_SECOND = 1000


class CountingRun:
    """One run of the job over all its submissions, with one sink.

    Args:
        cluster: Where it runs.
        directory: Where it writes.
        records: How many records it reads.
        seed: Decides how long each call takes.
        keys: How many keys they have, in turns.
    """

    def __init__(
        self, cluster: FlinkCluster, directory: Path, records: int, seed: int, keys: int = KEYS
    ) -> None:
        self.output = CommittedOutput(directory / "out")
        self._cluster = cluster
        self._records = records
        self._keys = keys
        self._arguments = [
            *("--output", str(directory / "out"), "--records", str(records), "--keys", str(keys)),
            *("--per-second", str(PER_SECOND), "--seed", str(seed)),
        ]

    def submit(
        self, parallelism: int, options: Mapping[str, str] | None = None, savepoint: str | None = None
    ) -> ClusterJob:
        """Start the job, or go on from a savepoint."""
        return self._cluster.submit(
            SCRIPT, *self._arguments, parallelism=parallelism, savepoint=savepoint, options=options
        )

    def wait_for_output(self, job: ClusterJob, count: int) -> None:
        """Wait until at least ``count`` lines are committed."""
        self._cluster.wait_for(f"{count} committed lines", lambda: self.output.count() >= count, job)

    def wait_for_end(self, job: ClusterJob) -> None:
        """Wait until the job has read and written all; fail where nothing moves any more."""
        while (line_count := self.output.count()) < self._records:
            self._cluster.wait_for(
                f"more than {line_count} of {self._records} committed lines, or the end",
                lambda seen=line_count: self.output.count() > seen or job.state() == "FINISHED",
                job,
            )
            if job.state() == "FINISHED":
                return
        self._cluster.wait_for("the end of the job", lambda: job.state() == "FINISHED", job)

    def kill_and_replace(self, job: ClusterJob, chance: random.Random, slots: int) -> float:
        """Kill a TaskManager and start another; return the seconds until output comes again."""
        self._cluster.kill(chance.choice(self._cluster.taskmanagers))
        killed = time.monotonic()
        line_count = self.output.count()
        self._cluster.start_taskmanager(slots)
        self._cluster.wait_for(
            f"more than {line_count} committed lines after a SIGKILL",
            lambda: self.output.count() > line_count,
            job,
        )
        return time.monotonic() - killed

    def verdict(self) -> Verdict:
        """What the output differs in from the model."""
        return judge(self.output.lines(), self._records, self._keys)
