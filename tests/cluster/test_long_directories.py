"""A job with RocksDB changes its parallelism on a cluster whose directory has a path of any length.

RocksDB names logs by the whole path of a database, and the restore from an incremental checkpoint at another
parallelism makes databases with longer paths. Such a name must not be too long for a file.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.runtime.flink.clusters.jobs import (
    ClusterJob,
    cancel,
    jobs_of,
    last_failure,
    retained_checkpoint,
)
from flink_agents.runtime.flink.clusters.run import JobRequest, run_on_cluster
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.flink.launch.standalone import StandaloneCluster
from tests.cluster.flink_cluster import free_ports

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

MEMORY = {"taskmanager.memory.process.size": "1 gb", "jobmanager.memory.process.size": "1 gb"}
ROCKSDB = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.interval": "500 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "restart-strategy.type": "none",
}
KEYS = 50
PATIENCE = 240.0

JOB = """
import time
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action

OUTPUT, KEYS = {settings}

class Counter(Agent):
    output_type = str

    @action(InputEvent)
    def count(self, event, ctx):
        seen = ctx.short_term_memory.get("seen", 0) + 1
        ctx.short_term_memory.set("seen", seen)
        return OutputEvent(output=f"{event.input % KEYS} {seen}")

def slowly(number):
    time.sleep(0.002)
    return number

def write(line):
    with open(OUTPUT, "a", encoding="ascii") as stream:
        stream.write(f"{line}\\n")
    return line

env = AgentsExecutionEnvironment.get_execution_environment()
source = NumberSequenceSource(0, 10**9)
numbers = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
numbers = numbers.map(slowly, output_type=Types.LONG()).uid("slowly")
counted = env.from_datastream(numbers, lambda number: number % KEYS).apply(Counter)
counted.to_datastream().map(write, output_type=Types.STRING()).uid("write").print().uid("print")
env.execute("counts")
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path is as long as that of a project of a user."""
    base_directory = Path(tempfile.mkdtemp(prefix="long-directory-", dir="/tmp"))
    yield base_directory / "x".ljust(39 - len(str(base_directory)), "x")
    shutil.rmtree(base_directory)


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (result := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return result


def counts(output: Path) -> dict[str, list[int]]:
    """What each key has counted, in order."""
    counts_by_key: dict[str, list[int]] = {}
    for line in output.read_text("ascii").splitlines() if output.exists() else ():
        key, seen = line.split()
        counts_by_key.setdefault(key, []).append(int(seen))
    return counts_by_key


def submit(rest: ClusterRest, script: Path, parallelism: int, checkpoint: str | None) -> ClusterJob:
    request = JobRequest(script, (), checkpoint, (), parallelism, True, ROCKSDB)
    run_on_cluster(rest, request, print, print)
    return jobs_of(rest)[0]


def stopped_at(rest: ClusterRest, job: ClusterJob, output: Path, least: int) -> str:
    """Cancel a job that has counted that far, and return its last checkpoint."""

    def counted() -> bool:
        assert last_failure(rest, job) is None, last_failure(rest, job)
        key_counts = counts(output)
        return len(key_counts) == KEYS and all(max(seen) > least for seen in key_counts.values())

    until(counted)
    previous_checkpoint = retained_checkpoint(rest, job)
    until(lambda: (now := retained_checkpoint(rest, job)) is not None and now != previous_checkpoint)
    cancel(rest, job)
    checkpoint = retained_checkpoint(rest, job)
    assert checkpoint is not None
    return checkpoint.place


def test_rescaling_from_an_incremental_checkpoint(directory: Path, tmp_path: Path) -> None:
    assert 25 <= len(str(directory)) <= 57, "RocksDB's names of logs were too long at these lengths"
    cluster = StandaloneCluster(directory)
    script = tmp_path / "job.py"
    place = None
    try:
        cluster.start(1, 3, free_ports(1)[0], MEMORY)
        address = cluster.status().address
        assert address is not None
        cluster_rest = ClusterRest(address)
        least = 5
        for parallelism in (1, 3, 2):
            output = tmp_path / f"output-{parallelism}"
            script.write_text(JOB.replace("{settings}", repr((str(output), KEYS))), encoding="utf-8")
            job = submit(cluster_rest, script, parallelism, place)
            place = stopped_at(cluster_rest, job, output, least)
            for seen in counts(output).values():
                assert (seen[0] > 1) == (parallelism != 1), "a key counts on from its state"
                assert seen == list(range(seen[0], seen[0] + len(seen)))
            least = max(max(seen) for seen in counts(output).values()) + 20
    finally:
        cluster.stop()
