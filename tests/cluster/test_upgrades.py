"""The upgrade drill on a cluster: a job with pending work is stopped, and resumed with other code.

``tests/runtime/journal/test_journal_upgrades.py`` has all edits. These show that Flink and the commands take
part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.errors import ClusterError
from flink_agents.runtime.flink.clusters.jobs import (
    ClusterJob,
    cancel,
    dead_letters,
    jobs_of,
    last_failure,
    letter_lines,
    stop_with_savepoint,
)
from flink_agents.runtime.flink.clusters.run import JobRequest, run_on_cluster
from flink_agents.runtime.flink.following.rest import ClusterRest
from tests.cluster.flink_cluster import small_cluster

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster, pytest.mark.nightly]

DELAY = 5.0
PATIENCE = 300.0

JOB = """
import time
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action

DELAYED, SUSPENDED = 0, 1

class {event}(Event):
    number: int

class Orders(Agent):
    on_error = on_unhandled = "{policy}"

    @action(InputEvent)
    async def {take}(self, event, ctx):
        if event.input == SUSPENDED:
            await ctx.sleep({delay})
            return OutputEvent(output="resumed{ending}")
        if event.input == DELAYED:
            ctx.send_event({event}(number=event.input), delay={delay})
        return OutputEvent(output=f"{{event.input}}")

    @action({event})
    def later(self, event, ctx):
        return OutputEvent(output="delivered{ending}")

def slowly(number):
    time.sleep(0.05)
    return number

def write(line):
    with open({output!r}, "a", encoding="ascii") as stream:
        stream.write(f"{{line}}\\n")
    return line

env = AgentsExecutionEnvironment.get_execution_environment()
source = NumberSequenceSource(0, 10**9)
numbers = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
numbers = numbers.map(slowly).uid("slowly")
applied = env.from_datastream(numbers, lambda number: number).apply(Orders, name="{agent}")
applied.to_datastream().map(write, output_type=Types.STRING()).uid("write").print().uid("print")
if "{policy}" == "dead-letter":
    applied.dead_letters().map(str, output_type=Types.STRING()).uid("letters").print().uid("print letters")
env.execute("orders")
"""

FORMER = {
    "event": "Later",
    "take": "take",
    "ending": "",
    "agent": "orders",
    "policy": "dead-letter",
    "delay": DELAY,
}


@pytest.fixture(scope="module")
def cluster_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRest]:
    with small_cluster(tmp_path_factory.mktemp("upgrades")) as client:
        yield client


def submit(rest: ClusterRest, directory: Path, savepoint: str | None = None, **code: Any) -> ClusterJob:
    """Submit the job with changed code; returns it when it is known."""
    directory.mkdir(exist_ok=True)
    script = directory / "job.py"
    output = directory / "output"
    script.write_text(JOB.format(**(FORMER | code), output=str(output)), encoding="utf-8")
    options = {"restart-strategy.type": "none"}
    request = JobRequest(script, (), savepoint, (), 1, True, options)
    run_on_cluster(rest, request, print, print)
    return jobs_of(rest)[0]


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (result := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return result


def lines(directory: Path) -> set[str]:
    output = directory / "output"
    return set(output.read_text("ascii").split()) if output.exists() else set()


@pytest.fixture(scope="module")
def savepoint(cluster_rest: ClusterRest, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("former")
    job = submit(cluster_rest, directory, delay=3600)
    until(lambda: lines(directory) >= {"0", "5"})
    place = stop_with_savepoint(cluster_rest, job)
    assert not lines(directory) & {"resumed", "delivered"}
    return place


def test_a_safe_edit_continues(cluster_rest: ClusterRest, savepoint: str, tmp_path: Path) -> None:
    job = submit(cluster_rest, tmp_path, savepoint, ending="-new", delay=1)
    # What waits keeps its own time: an hour. The new code is at work all the same.
    until(lambda: lines(tmp_path) - {"0"})
    assert last_failure(cluster_rest, job) is None and not dead_letters(cluster_rest, job.id)
    cancel(cluster_rest, job)


@pytest.mark.parametrize("code", [{"event": "Renamed"}, {"take": "receive"}], ids=["event", "action"])
def test_an_unsafe_edit_fails_at_once_if_the_policy_says_so(
    cluster_rest: ClusterRest, savepoint: str, tmp_path: Path, code: dict[str, str]
) -> None:
    job = submit(cluster_rest, tmp_path, savepoint, policy="fail", **code)
    ended = until(
        lambda: next(
            (
                listed_job
                for listed_job in jobs_of(cluster_rest)
                if listed_job.id == job.id and listed_job.ended
            ),
            None,
        )
    )
    failure = last_failure(cluster_rest, ended)
    assert ended.state == "FAILED" and failure is not None
    assert "which was sent before the code changed" in failure or "actions that it lacks: take" in failure


def test_an_unsafe_edit_leaves_dead_letters(cluster_rest: ClusterRest, tmp_path: Path) -> None:
    first = submit(cluster_rest, tmp_path / "former")
    until(lambda: lines(tmp_path / "former") >= {"0", "5"})
    place = stop_with_savepoint(cluster_rest, first)
    job = submit(cluster_rest, tmp_path / "changed", place, event="Renamed", take="receive")
    letters = until(
        lambda: (
            (letter_counts := dead_letters(cluster_rest, job.id))
            and letter_counts["orders"].total() == 2
            and letter_counts
        )
    )
    assert letter_lines(letters) == ["agent orders: 2 dead letters: 2 by PlanChangedError"]
    until(lambda: len(lines(tmp_path / "changed")) > 3)
    cancel(cluster_rest, job)


def test_a_renamed_agent_is_rejected(cluster_rest: ClusterRest, savepoint: str, tmp_path: Path) -> None:
    job = None
    try:
        job = submit(cluster_rest, tmp_path, savepoint, agent="renamed")
    except ClusterError as error:
        assert "flink-agents-orders" in str(error) or "map" in str(error)
        return
    ended = until(
        lambda: next(
            (
                listed_job
                for listed_job in jobs_of(cluster_rest)
                if listed_job.id == job.id and listed_job.ended
            ),
            None,
        )
    )
    assert ended.state == "FAILED"
    assert "Cannot map" in (last_failure(cluster_rest, ended) or "")
