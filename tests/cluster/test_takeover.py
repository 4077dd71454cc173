"""A cluster takes over a local job, and this machine takes the job back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flink_agents.runtime.flink.clusters.jobs import jobs_of, stop_with_savepoint
from flink_agents.runtime.flink.clusters.run import JobRequest, run_on_cluster
from flink_agents.runtime.flink.following.rest import ClusterRest
from tests.cluster.flink_cluster import small_cluster
from tests.cluster.waiting import wait_until

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

KEYS = 7

JOB = """
import os
import time
from pyflink.common import WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action

HERE = {here!r}

def charge(order, idempotency_key):
    with open(HERE + "/effects", "a", encoding="ascii") as stream:
        stream.write(f"{{order}} {{idempotency_key}}\\n")
    return order

class Till(Agent):
    @action(InputEvent)
    def pay(self, event, ctx):
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        order = ctx.durable_execute(charge, event.input)
        with open(HERE + "/counts", "a", encoding="ascii") as stream:
            stream.write(f"{{order}} {{count}}\\n")
        return OutputEvent(output=order)

def slowly(number):
    time.sleep(0.02)
    return number

if __name__ == "__main__":
    env = AgentsExecutionEnvironment.get_execution_environment(config={{
        "job-identifier": "till",
        "action-state.store": "sqlite",
        "action-state.sqlite.path": HERE + "/journal.sqlite",
    }})
    env.stream_env.set_parallelism(1)
    env.stream_env.enable_checkpointing(300)
    source = NumberSequenceSource(0, 10**9)
    numbers = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers = numbers.map(slowly).uid("slowly")
    env.from_datastream(numbers, key_selector=lambda number: number % {keys}).apply(Till)
    env.execute("till")
"""


def effects(directory: Path) -> list[tuple[int, str]]:
    file = directory / "effects"
    pairs = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(order), key) for order, key in pairs]


def run_here(directory: Path, *arguments: str) -> str:
    """Run the job here for a hundred orders, stop it with a savepoint, and return what it printed."""
    effect_count = len(effects(directory))
    flink_agents = str(Path(sys.executable).with_name("flink-agents"))
    command = [flink_agents, "run", "--local", *arguments, str(directory / "job.py")]
    with subprocess.Popen(
        command, cwd=directory, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(
                "a hundred orders",
                lambda: process.poll() is not None or len(effects(directory)) > effect_count + 100,
                240,
            )
            process.send_signal(signal.SIGTERM)
            printed = process.communicate(timeout=240)[1]
        finally:
            process.kill()
    assert process.returncode == 143, printed
    return printed


@pytest.fixture
def cluster_rest(tmp_path: Path) -> Iterator[ClusterRest]:
    with small_cluster(tmp_path / "cluster") as client:
        yield client


def newest_savepoint(directory: Path) -> Path:
    metadata_files = directory.glob(".flink-agents/jobs/till/savepoints/*/*/_metadata")
    return max(metadata_files, key=lambda path: int(path.parents[1].name)).parent


def test_a_job_moves_to_a_cluster_and_back(cluster_rest: ClusterRest, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    script = directory / "job.py"
    script.write_text(JOB.format(here=str(directory), keys=KEYS), encoding="utf-8")

    run_here(directory)
    place = newest_savepoint(directory)

    effect_count = len(effects(directory))
    run_on_cluster(cluster_rest, JobRequest(script, (), str(place), (), 1, True, {}), print, print)
    wait_until("the cluster to go on", lambda: len(effects(directory)) > effect_count + 100, 240)
    back = stop_with_savepoint(cluster_rest, jobs_of(cluster_rest)[0])

    # The job on the cluster had the same name: its local job run is over.
    printed = run_here(directory, "--fresh", "--savepoint", back)
    assert "resuming 'till' from savepoint " in printed

    orders = effects(directory)
    assert Counter(orders).most_common(1)[0][1] == 1, "an order was charged twice"
    numbers = sorted(order for order, _ in orders)
    assert numbers == list(range(len(numbers)))
    assert len({key for _, key in orders}) == len(orders)
    for order, count in (line.split() for line in (directory / "counts").read_text().splitlines()):
        assert int(count) == int(order) // KEYS + 1
    record = json.loads((directory / ".flink-agents/jobs/till/job-run.json").read_text())
    assert record["identifier"] == "till"
