"""A standalone cluster of this package, and jobs that are submitted to it and followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.errors import JobFailedError, MissingTimestampsError, ModuleNotOnWorkersError
from flink_agents.runtime.flink.clusters.run import JobRequest, run_on_cluster
from flink_agents.runtime.flink.following.rest import ClusterRest
from flink_agents.runtime.flink.launch.standalone import StandaloneCluster
from tests.cluster.flink_cluster import free_ports

pytestmark = [pytest.mark.minicluster, pytest.mark.cluster]

OPTIONS = {"taskmanager.memory.process.size": "1 gb", "jobmanager.memory.process.size": "1 gb"}

JOB = """
from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action

class Till(Agent):
    @action(InputEvent)
    def book(self, event, ctx):
        return OutputEvent(output=event.input + 1)

env = AgentsExecutionEnvironment.get_execution_environment()
{setup}
env.from_list(range(5), lambda number: number % 2).apply({agent}).to_datastream().print()
env.execute("orders")
print("the script ends")
"""

FAILING = """
class Failing(Till):
    @action(InputEvent)
    def book(self, event, ctx):
        raise LookupError("no such order")

env.stream_env.enable_checkpointing(500)
"""

WINDOW = """
import asyncio
from pyflink.common import Time
from pyflink.datastream.window import TumblingEventTimeWindows

class Slow(Till):
    @action(InputEvent)
    async def book(self, event, ctx):
        await asyncio.sleep(0.01)
        return OutputEvent(output=event.input)

stream = env.from_list(range(5), lambda number: number % 2).apply(Slow).to_datastream()
windows = stream.key_by(lambda number: number).window(TumblingEventTimeWindows.of(Time.seconds(1)))
windows.reduce(lambda one, other: one).print()
"""

SHIPPED = """
from flink_agents import Agent, InputEvent, OutputEvent, action

class Shipped(Agent):
    @action(InputEvent)
    def book(self, event, ctx):
        return OutputEvent(output=event.input * 10)
"""


@pytest.fixture(scope="module")
def cluster_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRest]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("standalone"))
    try:
        assert cluster.start(slots=1, port=free_ports(1)[0], options=OPTIONS)
        status = cluster.status()
        assert (status.running, status.registered, status.free_slots) == (True, 2, 2)
        assert not cluster.start(), "it was started twice"
        assert status.address is not None
        yield ClusterRest(status.address)
    finally:
        assert cluster.stop()
    assert not cluster.status().jobmanagers


@pytest.fixture
def run(cluster_rest: ClusterRest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def submit(
        setup: str = "", agent: str = "Till", **request: Any
    ) -> tuple[str | None, list[str], list[str]]:
        script = tmp_path / "job.py"
        script.write_text(JOB.format(setup=setup, agent=agent), encoding="utf-8")
        messages.clear()
        shown.clear()
        return (
            run_on_cluster(cluster_rest, JobRequest(script, **request), messages.append, shown.append),
            messages,
            shown,
        )

    messages: list[str] = []
    shown: list[str] = []
    submit.said = messages  # pyright: ignore[reportFunctionMemberAccess]
    return submit


def test_a_job_is_submitted_and_followed_to_its_end(run: Any) -> None:
    state, messages, shown = run()
    assert state == "FINISHED"
    assert re.fullmatch(r"job [0-9a-f]{32}: submitted to http://localhost:\d+", messages[0])
    assert messages[-1] == "job 'orders': FINISHED"
    numbers = sorted(int(line.rpartition(" ")[2]) for line in shown if re.fullmatch(r"(\d> )?\d", line))
    assert numbers == [1, 2, 3, 4, 5] and "the script ends" in shown
    assert not any("org.apache.flink" in line for line in shown)


@pytest.mark.nightly
def test_restarts_and_the_failure_have_the_authors_line(run: Any) -> None:
    options = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "4 s",
    }
    with pytest.raises(JobFailedError, match=r"^\S*job\.py:") as raised:
        run(FAILING, "Failing", options=options)
    assert "LookupError: no such order" in str(raised.value)
    restarts = [line for line in run.said if line.startswith("restart")]
    assert len(restarts) == 1
    assert re.fullmatch(
        r"restart 1 of 1: \S*job\.py:\d+ in Failing\.book: LookupError: no such order", restarts[0]
    )


@pytest.mark.nightly
def test_a_window_behind_an_agent_names_it(run: Any) -> None:
    with pytest.raises(MissingTimestampsError, match="agent 'Slow'"):
        run(WINDOW, options={"restart-strategy.type": "none"})


@pytest.mark.nightly
def test_a_module_that_workers_lack_is_named_and_can_be_shipped(run: Any, tmp_path: Path) -> None:
    (tmp_path / "shipped_till.py").write_text(SHIPPED, encoding="utf-8")
    with pytest.raises(ModuleNotOnWorkersError, match="'shipped_till'"):
        run("from shipped_till import Shipped", "Shipped")
    _, _, shown = run("from shipped_till import Shipped", "Shipped", py_files=[tmp_path / "shipped_till.py"])
    numbers = sorted(int(line.rpartition(" ")[2]) for line in shown if re.fullmatch(r"(\d> )?\d+", line))
    assert numbers == [0, 10, 20, 30, 40]
