"""A job with a slow operator: `why`, `top` and the console name it, by what Flink itself reports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.cli.main import app
from flink_agents.runtime.flink import compat
from flink_agents.ui.outside import Outside
from flink_agents.ui.settings import ConsoleSettings
from tests.cluster.waiting import wait_until
from tests.minicluster.sources import numbers

pytestmark = [pytest.mark.minicluster, pytest.mark.nightly]

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

SMALL = {
    "python.fn-execution.bundle.size": "20",
    "python.fn-execution.bundle.time": "100",
    "taskmanager.memory.segment-size": "4 kb",
    "taskmanager.network.memory.buffers-per-channel": "1",
    "taskmanager.network.memory.floating-buffers-per-gate": "1",
}
"""Options with which few records fill the buffers between two tasks."""

KEYS = 20
PATIENCE = 300.0


class Orders(Agent):
    """Books orders.

    Args:
        seconds: The time that it takes.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @action(InputEvent)
    async def book(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(self.seconds)
        return OutputEvent(output="x" * 200)


@pytest.mark.parametrize("slow", ["operator", "agent"])
def test_the_slow_part_of_a_job_is_named(
    agents_environment: MakeEnvironment, tmp_path: Path, slow: str
) -> None:
    def ship(value: str) -> str:
        time.sleep(0.05 if slow == "operator" else 0)
        return value

    config = {
        "trace.level": "runs",
        "trace.directory": str(tmp_path),
        "run.max-in-flight": 4,
        "queue.max-total": 4,
    }
    env = agents_environment(flink=SMALL, config=config)
    stream = env.from_datastream(numbers(env, 10**9), lambda number: number % KEYS)
    booked = stream.apply(Orders(0.5 if slow == "agent" else 0)).to_datastream()
    booked.map(ship).name("ship parcels").print()
    job: Any = env.stream_env.execute_async("slow orders")
    try:
        address = compat.rest_address(job._j_job_client)
        check(address, tmp_path, slow)
    finally:
        job.cancel().result()


def check(address: str, trace: Path, slow: str) -> None:
    cause, meaning = {
        "operator": (
            "ship parcels",
            "The key is not stuck. Outputs and next inputs of the agent Orders wait",
        ),
        "agent": ("agent Orders", "Inputs wait upstream of the agent Orders"),
    }[slow]
    cause = f"caused downstream by {cause}"

    def run_command(*arguments: str) -> str:
        return CliRunner().invoke(app, [*arguments, "--cluster", address, "--path", str(trace)]).stdout

    def explained() -> bool:
        explanation = run_command("why", "3")
        return cause in explanation and meaning in explanation

    wait_until("the slow part in why", explained, PATIENCE)
    wait_until("it in the console", lambda: cause in shown(address, trace), PATIENCE)
    overview = json.loads(run_command("top", "--once", "--json"))
    (agent,) = overview["agents"]
    assert any(cause in line for line in overview["backpressure"])
    assert (agent["downstream_share"] > 0.5) == (slow == "operator")


def shown(address: str, trace: Path) -> str:
    outside = Outside(ConsoleSettings(trace=trace, cluster=address))
    reading = outside.jobs()
    while reading is not None and reading.is_loading:
        reading = outside.jobs()
    jobs = reading.value if reading is not None else None
    return " ".join(line for job in jobs or () for line in job.backpressure)
