"""Every row of the table in ``docs/upgrades.md``, on a cluster.

A job with a run in every phase is stopped with a savepoint. Each edit of ``upgrade_edits.py`` is submitted
from that savepoint, and comes to what the page tells: the run continues, or it is a dead letter. No call is
repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from upgrade_edits import EDITS, PHASES

from flink_agents.runtime.flink.clusters.jobs import (
    ClusterJob,
    cancel,
    jobs_of,
    last_failure,
    retained_checkpoint,
    stop_with_savepoint,
)
from flink_agents.runtime.flink.clusters.run import JobRequest, run_on_cluster
from flink_agents.runtime.flink.following.rest import ClusterRest
from tests.cluster.flink_cluster import small_cluster
from tests.cluster.test_upgrades import until

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "upgrades.md"
CODE = ROOT / "tests" / "upgrade_edits.py"
FLINK = {
    "restart-strategy.type": "none",
    "execution.checkpointing.interval": "500 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}
DELAY = 120
"""Seconds after which a delayed event comes: the former job is stopped by then."""

JOB = """
import time
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
import upgrade_edits as edits
from flink_agents import AgentsExecutionEnvironment, Signal

DIRECTORY, EDIT = {settings}
PHASES = edits.PHASES

def slowly(number):
    time.sleep(0.1)
    return number

def numbers_of(env, name):
    source = NumberSequenceSource(0, 10**9)
    numbers = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)
    return numbers.map(slowly, output_type=Types.LONG()).uid(name + " slowly")

def signals_at(number):
    if EDIT is None:
        return [Signal("more", key="signalled", id="first")] if number == 10 else []
    wanted = [("more", "suspended"), ("go", "suspended"), ("go", "signalled")]
    return [Signal(name, key=key, id=f"{name} {key}") for name, key in wanted] if number % 50 == 0 else []

def write(file):
    def to(value):
        with open(f"{DIRECTORY}/{file}", "a", encoding="utf-8") as stream:
            stream.write(f"{value}\\n")
        return str(value)
    return to

env = AgentsExecutionEnvironment.get_execution_environment(
    config={
        "action-state.store": "sqlite",
        "action-state.sqlite.path": f"{DIRECTORY}/journal/journal.db",
        "action-state.on-mismatch": "dead-letter",
    }
)
few = numbers_of(env, "numbers").filter(lambda number: number < len(PHASES)).uid("few")
orders = few.map(lambda number: edits.Order(PHASES[number])).uid("orders")
signals = numbers_of(env, "signals").flat_map(signals_at).uid("signals of numbers")
made = {name: one for name, one in edits.EDITS.get(EDIT, {}).items() if name not in ("gone", "became")}
stream = env.from_datastream(orders, lambda order: order.phase).with_signals(signals)
applied = stream.apply(edits.agent(**made, policy="dead-letter"))
outputs = applied.to_datastream().map(lambda output: output[0], output_type=Types.STRING()).uid("phases")
outputs.map(write("outputs"), output_type=Types.STRING()).uid("write").print().uid("print")
letters = applied.dead_letters().map(lambda letter: letter.key, output_type=Types.STRING()).uid("letters")
letters.map(write("letters"), output_type=Types.STRING()).uid("write letters").print().uid("print letters")
env.execute("orders")
"""

CALLS = """
class Calls:
    def append(self, line):
        with open({file!r}, "a", encoding="utf-8") as stream:
            stream.write(line + "\\n")

CALLS = Calls()
"""


@pytest.fixture(scope="module")
def cluster_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRest]:
    with small_cluster(tmp_path_factory.mktemp("upgrade-table")) as client:
        yield client


def rows() -> dict[str, dict[str, str]]:
    """What the page tells: for each edit, what becomes of the run in each phase."""
    table = PAGE.read_text("utf-8").partition("| edit | ")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {
        edit: {phase: "dead letter" if phase in ended.split(", ") else "continues" for phase in PHASES}
        for edit, ended in lines
    }


def submit(rest: ClusterRest, directory: Path, edit: str | None, savepoint: str | None = None) -> ClusterJob:
    """Submit the job with an edit; its files are in the directory."""
    code = directory / "code"
    code.mkdir(parents=True)
    text = CODE.read_text("utf-8").replace("delay=3600", f"delay={DELAY}")
    text = text.replace("CALLS: list[str] = []", CALLS.format(file=str(directory / "calls")))
    if edit is not None:
        text = text.replace("STOPPED = [False]", "STOPPED = [True]")
        removed_name = EDITS[edit].get("gone")
        text += f"\ndel {removed_name}\n" if removed_name is not None else ""
        for name, successor in EDITS[edit].get("became", {}).items():
            text += f"\n{name} = {successor}\n"
    (code / "upgrade_edits.py").write_text(text, "utf-8")
    script = directory / "job.py"
    script.write_text(JOB.replace("{settings}", repr((str(directory), edit))), "utf-8")
    run_on_cluster(rest, JobRequest(script, (), savepoint, (code,), 1, True, FLINK), print, print)
    return jobs_of(rest)[0]


def lines_of(directory: Path, file: str) -> list[str]:
    path = directory / file
    return path.read_text("utf-8").splitlines() if path.exists() else []


def stopped(rest: ClusterRest, directory: Path) -> str:
    """Stop the former job when there is a run in every phase; returns the savepoint."""
    job = submit(rest, directory, None)
    until(lambda: last_failure(rest, job) is not None or len(lines_of(directory, "calls")) == 2 * len(PHASES))
    for _ in range(3):
        previous_checkpoint = retained_checkpoint(rest, job)
        until(lambda previous=previous_checkpoint: retained_checkpoint(rest, job) != previous)
    place = stop_with_savepoint(rest, job)
    assert lines_of(directory, "outputs") == lines_of(directory, "letters") == []
    return place


@pytest.fixture(scope="module")
def former(cluster_rest: ClusterRest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The savepoint of the former job, and its journal."""
    directory = tmp_path_factory.mktemp("former")
    return stopped(cluster_rest, directory), directory / "journal"


@pytest.mark.parametrize("edit", EDITS)
def test_a_row_of_the_page(
    cluster_rest: ClusterRest, former: tuple[str, Path], tmp_path: Path, edit: str
) -> None:
    savepoint, journal = former
    shutil.copytree(journal, tmp_path / "journal")
    job = submit(cluster_rest, tmp_path, edit, savepoint)
    try:
        until(lambda: last_failure(cluster_rest, job) is not None or len(results(tmp_path)) == len(PHASES))
        assert last_failure(cluster_rest, job) is None
        assert results(tmp_path) == rows()[edit]
        assert not [call for call in lines_of(tmp_path, "calls") if call.startswith("charge")]
    finally:
        cancel(cluster_rest, job)


def test_the_page_has_these_rows() -> None:
    assert list(rows()) == list(EDITS)


def results(directory: Path) -> dict[str, str]:
    """What has become of the run of each phase."""
    outcomes = dict.fromkeys(lines_of(directory, "outputs"), "continues")
    return outcomes | dict.fromkeys(lines_of(directory, "letters"), "dead letter")
