"""Submissions of the durable job, each from the state of an earlier one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tests.cluster import durable_job
from tests.cluster.durable_check import IN_WINDOW, Workload
from tests.cluster.durable_run import OPTIONS, RunFiles
from tests.cluster.durable_stores import RunStore
from tests.cluster.flink_cluster import FlinkCluster, FlinkProcess
from tests.cluster.flink_rest import ClusterJob

CLUSTER_OPTIONS = {
    # A TaskManager that stands still is given up soon.
    "heartbeat.timeout": "6 s",
    "execution.checkpointing.num-retained": "1000",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}
"""Flink options of a cluster whose jobs are restored."""

TASKMANAGER_OPTIONS = {"heartbeat.timeout": "10 min"}
"""Those of its TaskManagers: one that stood still goes on, and does not give itself up."""

SLOWLY = 100
FAST = 1000
"""Speeds of the source, in events a second: of a job that is to be stopped in mid-work, and of others."""

SLOTS = 3

IN_FLIGHT = 3
"""With so many calls between effect and record, one at least is to be recorded at once."""


class Restores:
    """See the module.

    Args:
        cluster: Where the jobs run, one after the other; its TaskManagers are replaced.
        directory: Where they write.
        store: Where durable calls are recorded.
        workload: What the jobs do.
        seed: Of the durations of calls.

    Attributes:
        files: What they write.
    """

    def __init__(
        self, cluster: FlinkCluster, directory: Path, store: RunStore, workload: Workload, seed: int
    ) -> None:
        self.files = RunFiles(directory)
        self._cluster = cluster
        self._directory = directory
        self._store = store
        self._workload = workload
        self._seed = seed
        cluster.fresh_taskmanagers(1, SLOTS)

    def start(
        self,
        parallelism: int,
        origin: str | None = None,
        identifier: str | None = None,
        files: RunFiles | None = None,
        per_second: float = FAST,
        workload: Workload | None = None,
    ) -> ClusterJob:
        """Submit the job.

        Args:
            parallelism: Of the agent and the windows.
            origin: A checkpoint or savepoint to begin at.
            identifier: Its ``job-identifier``.
            files: What it writes, where that is not :attr:`files`.
            per_second: Speed of its source.
            workload: What it does, where that is not what the others do.
        """
        # The latest one serves no job yet; a process takes one Python job only.
        for used in self._cluster.taskmanagers[:-1]:
            self._cluster.kill(used)
        words = (files or self.files).arguments(workload or self._workload, per_second, self._seed)
        arguments = durable_job.parse_arguments(words)
        options = {**OPTIONS, **self._store.flink_options}
        if identifier is not None:
            options["flink-agents.job-identifier"] = identifier
        return self._cluster.submit_here(
            lambda env: durable_job.build(env, arguments), parallelism, origin, options
        )

    def wait_for_outputs(self, job: ClusterJob, count: int) -> None:
        """Wait until there are ``count`` more outputs; the next TaskManager starts meanwhile."""
        wanted = self.files.outputs.count() + count
        self._cluster.wait_for("the first output", lambda: self.files.outputs.count() > wanted - count, job)
        self._cluster.start_taskmanager(SLOTS)
        self._cluster.wait_for(f"{wanted} outputs", lambda: self.files.outputs.count() >= wanted, job)

    def end(self, job: ClusterJob) -> None:
        """Wait until the job has done all its work; the next TaskManager starts meanwhile."""
        if len(self._cluster.taskmanagers) == 1:
            self._cluster.start_taskmanager(SLOTS)
        self._cluster.wait_for("the end of the job", lambda: job.state() == "FINISHED", job)

    def stop(self, job: ClusterJob) -> str:
        """Stop the job with a savepoint; returns where it lies."""
        savepoint = job.stop_with_savepoint(self._directory / "savepoints")
        self._cluster.wait_for("the end of the stopped job", lambda: job.state() == "FINISHED", job)
        return savepoint

    def cancel(self, job: ClusterJob) -> list[str]:
        """Cancel the job; returns where its checkpoints lie, the oldest first."""
        job.cancel()
        self._cluster.wait_for("the end of the cancelled job", lambda: job.state() == "CANCELED")
        metadata_files = (self._cluster.directory / "checkpoints" / job.id).glob("chk-*/_metadata")
        paths = sorted(
            (path.parent for path in metadata_files), key=lambda path: int(path.name.partition("-")[2])
        )
        return [path.as_uri() for path in paths]

    def unfinished(self) -> set[int]:
        """Numbers that have a recorded call, and no output that is committed."""
        lines = [line.split() for line in self.files.effects()]
        recorded = {int(words[2]) for words in lines if words[0] == "record"}
        return recorded - {int(line.split()[1]) for line in self.files.outputs.lines()}

    def recorded(self) -> set[str]:
        """Tokens of calls that an action relied on."""
        return self._tokens("record")

    def _tokens(self, kind: str) -> set[str]:
        lines = [line.split() for line in self.files.effects()]
        return {words[4] for words in lines if words[0] == kind}

    def freeze(self, job: ClusterJob) -> FlinkProcess:
        """Stop the TaskManager that executes calls, at a moment with calls between effect and record."""

        def frozen() -> FlinkProcess | None:
            process = self._process_of_latest_effect()
            process.freeze()
            in_flight = self._tokens("effect") - self.recorded()
            if len(in_flight) >= IN_FLIGHT and self._store.is_free():
                return process
            process.thaw()
            return None

        return self._cluster.wait_for(f"{IN_FLIGHT} calls between effect and record", frozen, job)

    def _process_of_latest_effect(self) -> FlinkProcess:
        effects = [line for line in self.files.effects() if line.startswith("effect ")]
        pid = int(effects[-1].split()[-1])
        return next(process for process in self._cluster.taskmanagers if process.popen.pid == pid)

    def problems(self, without: Collection[str] = ()) -> dict[str, int]:
        """In what the files differ from the model: counts that are not 0, but for calls in their window.

        Args:
            without: Lines of effects that do not count.
        """
        ignored = frozenset(without)
        effects = [line for line in self.files.effects() if line not in ignored]
        verdict = self.files.verdict(self._workload, effects)
        verdict.repeated_after_record += self._store.recorded_twice()
        problem_counts = {name: count for name, count in verdict.counts().items() if count}
        for name in IN_WINDOW:
            problem_counts.pop(name, None)
        return problem_counts
