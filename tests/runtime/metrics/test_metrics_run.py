"""What the runtime measures by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.runtime.metrics.run_metrics import WINDOW, LocalMetricGroup, RunMetrics
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once


class Step(Event):
    number: int


class Chain(Agent):
    """An action on Flink's thread, and one on the loop."""

    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Event:
        ctx.agent_metric_group.get_counter("events").inc(100)
        return Step(number=event.input)

    @action(Step, on_error="ignore")
    async def end(self, event: Step, ctx: Any) -> Event:
        await asyncio.sleep(0)
        return OutputEvent(output=10 // event.number)


def test_events_and_actions_are_counted_on_all_threads() -> None:
    with OperatorHarness(Chain, forced_serialization=False) as harness:
        harness.push_all([1, 0, 2])
        metrics = harness.run_metrics
    assert metrics["events"] == metrics["events_per_second"] == 3
    assert metrics["actions"] == metrics["actions_per_second"] == 5
    assert metrics["action_failures"] == metrics["action.end.failures"] == 1
    assert metrics["action.start.latency_us"] == 3
    assert metrics["action.end.latency_us"] == 2
    assert metrics["commit_delay_us"] == 3


def test_names_of_the_author_are_not_touched() -> None:
    with OperatorHarness(Chain, forced_serialization=False) as harness:
        harness.push(1)
        assert harness.metrics == {"events": 100}


class Direct(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=event.input)


def test_runs_on_the_spot_wait_nowhere() -> None:
    harness = OperatorHarness(Direct, forced_serialization=False)
    harness.push_all(range(7))
    metrics = harness.run_metrics
    assert (metrics["events"], metrics["actions"], metrics["commit_delay_us"]) == (7, 7, 0)
    assert {metrics[f"runs_{where}"] for where in ("in_flight", "queued", "spilled")} == {0}


class Gated(Agent):
    """Waits for a gate that the test opens."""

    gate: Any = None

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> Event:
        await asyncio.to_thread(type(self).gate.wait)
        return OutputEvent(output=event.input)


@contextmanager
def gated(config: dict[str, int]) -> Iterator[OperatorHarness]:
    """Records are pairs of a key and a number."""
    Gated.gate = threading.Event()
    options: Any = {"config": config, "forced_serialization": False, "auto_run": False}
    with OperatorHarness(Gated, lambda record: record[0], **options) as harness:
        try:
            yield harness
        finally:
            Gated.gate.set()


def test_where_runs_are() -> None:
    with gated({"queue.max-per-key": 2}) as harness:
        harness.push_all([("busy", 0), ("other", 0)])
        while harness.run_metrics["runs_in_flight"] < 2:
            time.sleep(0.001)
        harness.push_all(("busy", number) for number in range(1, 6))
        metrics = harness.run_metrics
        assert metrics["runs_in_flight"] == 2
        # One of the busy key is executed, two are queued behind it; the rest stays in state.
        assert metrics["runs_queued"] == 2
        assert metrics["runs_spilled"] == 3
        Gated.gate.set()
        harness.run_until_idle()
        metrics = harness.run_metrics
        assert metrics["events"] == 7
        assert [metrics[f"runs_{where}"] for where in ("in_flight", "queued", "spilled")] == [0, 0, 0]


def test_backpressure_is_timed() -> None:
    with gated({"run.max-in-flight": 1, "queue.max-total": 1}) as harness:
        harness.push_all([("a", 1), ("b", 2)])
        assert harness.run_metrics["backpressure_ms"] == 0
        threading.Timer(0.05, Gated.gate.set).start()
        harness.push(("c", 3))  # waits for one of them to end
        assert harness.run_metrics["backpressure_ms"] > 0
        harness.run_until_idle()
        assert sorted(harness.outputs) == [("a", 1), ("b", 2), ("c", 3)]


def test_timeouts_and_retries_by_action() -> None:
    async def never(event: InputEvent, ctx: Any) -> None:
        await asyncio.Event().wait()

    agent = Agent(name="late").add_action(
        "never", [InputEvent], never, timeout=0.001, retry=RetryPolicy(max_attempts=2, initial_interval=0)
    )
    agent.on_error = "ignore"
    with OperatorHarness(agent, forced_serialization=False) as harness:
        harness.push(1)
        metrics = harness.run_metrics
    assert [metrics[f"action_{name}"] for name in ("failures", "retries", "timeouts")] == [2, 1, 2]
    assert [metrics[f"action.never.{name}"] for name in ("failures", "retries", "timeouts")] == [2, 1, 2]
    assert metrics["events_ignored"] == 1


def test_latencies_are_those_of_the_latest_executions() -> None:
    metrics = RunMetrics(["act"])
    run: Any = None
    for number in range(WINDOW + 5):
        metrics.action_ended(run, "act", number / 1e6, inline=True)
    metrics.action_ended(run, "act", 1.0, inline=False)
    assert dict(metrics.group.values())["action.act.latency_us"] == WINDOW + 6
    histogram = metrics.group.get_sub_group("action").get_sub_group("act").get_histogram("latency_us")
    assert histogram.quantile(0) == pytest.approx(6)
    assert histogram.quantile(1) == 1e6
    assert dict(metrics.group.values())["actions"] == WINDOW + 6
    metrics.action_ended(run, "act", 2.0, inline=True)
    assert dict(metrics.group.values())["action.act.latency_us"] == WINDOW + 7
    assert histogram.quantile(1) == 2e6


def test_groups_are_brought_up_to_date_before_they_are_read() -> None:
    group = LocalMetricGroup("g", lambda: group.get_gauge("now").set(3))
    assert dict(group.values()) == {"now": 3}
