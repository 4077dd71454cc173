"""A cluster of its own for a job of ``python -m benchmarks scale``, and what its TaskManagers cost."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from flink_agents.runtime.flink.clusters.jobs import jobs_of, last_failure
from flink_agents.runtime.flink.clusters.run import JobRequest, Submission
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.flink.launch.standalone import StandaloneCluster

SCRIPT = Path(__file__).with_name("job.py")
PATIENCE_SECONDS = 3600.0
POLL_SECONDS = 0.05
LOOK_SECONDS = 2.0
"""The interval in which the job's state is read."""

OPTIONS = {
    "jobmanager.memory.process.size": "1 gb",
    # Checkpoints are triggered, so that none is measured by chance.
    "execution.checkpointing.interval": "1 h",
    "execution.checkpointing.timeout": "30 min",
    "execution.checkpointing.incremental": "true",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "1 s",
    "heartbeat.interval": "2 s",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """Where the subtasks of a job run.

    Attributes:
        taskmanagers: The number of TaskManagers.
        slots: The number of slots of each.
        pinned: True to keep the threads of each TaskManager on one core.
    """

    taskmanagers: int = 1
    slots: int = 1
    pinned: bool = False

    def __str__(self) -> str:
        return f"{self.taskmanagers}x{self.slots}" + (" pinned" if self.pinned else "")


@dataclass(frozen=True)
class Sample:
    """A look at a running job.

    Attributes:
        seconds: The time.
        inputs: The number of inputs that have been finished.
        cpu_seconds: The CPU time of the TaskManagers.
        resident_bytes: Their memory.
    """

    seconds: float
    inputs: int
    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """A completed checkpoint.

    Attributes:
        bytes: Its size.
        seconds: The time from its trigger to its end.
    """

    bytes: int
    seconds: float


class ScaleJob:
    """A job, and the cluster that it runs on.

    Args:
        cluster: The cluster, which runs.
        folder: The folder of the job's files.
    """

    def __init__(self, cluster: StandaloneCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._rest = ClusterRest(cluster.status().address or "")
        self._processes = [psutil.Process(pid) for pid in cluster.status().taskmanagers]
        self._id = ""

    def pin(self) -> None:
        """Keep each TaskManager on one core; threads inherit this from the thread that starts them."""
        cores = sorted(os.sched_getaffinity(0))
        for number, process in enumerate(self._processes):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {cores[number % len(cores)]})

    def submit(self, request: JobRequest) -> None:
        """Submit the job."""
        lines: list[str] = []
        client = self._folder / "client"
        submission = Submission(request, self._rest.host_and_port, None, lines.append, client)
        status = submission.wait_for_end()
        job_id = submission.jobs.get()
        if status != 0 or job_id is None:
            raise SystemExit("\n".join([f"flink run ended with {status}", *lines, *submission.traceback]))
        self._id = job_id

    def sample(self) -> Sample:
        """Look at the job."""
        counts = [file.read_bytes() for file in self._folder.glob("count-*")]
        times = [process.cpu_times() for process in self._processes]
        return Sample(
            time.time(),
            sum(struct.unpack("<q", count)[0] for count in counts if count),
            sum(process_times.user + process_times.system for process_times in times),
            sum(process.memory_info().rss for process in self._processes),
        )

    def wait_for_inputs(self, inputs: int) -> Sample:
        """Return the first look at which so many inputs are finished."""

        def look() -> Sample | None:
            sample = self.sample()
            return sample if sample.inputs >= inputs else None

        return self._wait(f"{inputs} inputs", look)

    def heap_bytes(self) -> float:
        """Return the bytes of the TaskManager's heap that are in use."""
        return self._read_figure("heap")

    def _read_figure(self, name: str) -> float:
        """Return a figure that the next probe writes; of a new TaskManager, its first probe."""
        (self._folder / "probe").touch()
        file = self._folder / f"{name}-{self._processes[0].pid}"
        self._wait(name, file.exists)
        return float(file.read_text("ascii"))

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint."""
        place = f"/jobs/{self._id}/checkpoints"
        trigger = self._rest.post(place, {"checkpointType": "CONFIGURED"})["request-id"]

        def completed() -> Any:
            state = self._rest.get(f"{place}/{trigger}")
            operation = state["operation"] or {}
            if "failure-cause" in operation:
                raise SystemExit(f"the checkpoint failed: {operation['failure-cause']}")
            return (
                self._rest.get(place)["latest"]["completed"] if state["status"]["id"] == "COMPLETED" else None
            )

        checkpoint = self._wait("a checkpoint", completed)
        return Checkpoint(checkpoint["state_size"], checkpoint["end_to_end_duration"] / 1000)

    def restart(self) -> float:
        """Kill the TaskManager, start another one, and return the seconds until its first probe."""
        start_seconds = time.time()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._cluster.start(len(self._processes))
        self._processes = [psutil.Process(pid) for pid in self._cluster.status().taskmanagers]
        return self._read_figure("probe") - start_seconds

    def _wait(self, awaited: str, condition: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + PATIENCE_SECONDS
        looked = time.monotonic()
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise SystemExit(f"no {awaited} after {PATIENCE_SECONDS:.0f} s")
            if time.monotonic() - looked > LOOK_SECONDS:
                looked = time.monotonic()
                self._check_running(awaited)
            time.sleep(POLL_SECONDS)
        return result

    def _check_running(self, awaited: str) -> None:
        [job] = [job for job in jobs_of(self._rest) if job.id == self._id]
        if job.state in ("FAILED", "CANCELED"):
            raise SystemExit(f"the job is {job.state} before {awaited}: {last_failure(self._rest, job)}")


@contextmanager
def running_job(
    workload: str,
    inputs: int,
    keys: int,
    layout: Layout | None = None,
    *,
    probed: bool = False,
    config: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Iterator[ScaleJob]:
    """Run a job on a cluster of its own, and kill the cluster at the end.

    Args:
        workload: The workload, one of ``job.WORKLOADS``.
        inputs: The number of inputs.
        keys: The number of their keys.
        layout: Where the subtasks run. Default: one TaskManager with one slot.
        probed: True to send probes after the inputs.
        config: Options of the agents.
        options: Options of Flink.
    """
    layout = layout or Layout()
    flink = {**OPTIONS, **(options or {})}
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        cluster = StandaloneCluster(Path(folder) / "cluster")
        try:
            cluster.start(layout.taskmanagers, layout.slots, _free_port(), flink)
            job = ScaleJob(cluster, Path(folder))
            if layout.pinned:
                job.pin()
            sizes = (workload, str(inputs), str(keys), folder, str(int(probed)))
            words = (*sizes, json.dumps(dict(config or {})))
            parallelism = layout.taskmanagers * layout.slots
            job.submit(JobRequest(SCRIPT, words, parallelism=parallelism, detached=True, options=flink))
            yield job
        finally:
            status = cluster.status()
            for pid in (*status.taskmanagers, *status.jobmanagers):
                os.kill(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
