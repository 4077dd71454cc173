"""Runs for which the watermark behind waits no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hold_tools import CLOSED, HOLD, timed_outputs, watermark_behind

from flink_agents import Agent, EventTime, InputEvent, OutputEvent, action
from flink_agents.api.events.event_time import LATE_TAG, LateOutputs
from flink_agents.runtime.operator.low_watermark import HELD_MS, LATE_OUTPUTS, NO_TIMESTAMP, PROGRESS_MS
from flink_agents.testing import OperatorHarness

MakeHarness = Callable[..., OperatorHarness]


@pytest.mark.executes_once
@pytest.mark.parametrize("late", LateOutputs)
def test_stragglers_follow_the_policy(
    hold_harness: MakeHarness, late: LateOutputs, caplog: pytest.LogCaptureFixture
) -> None:
    CLOSED.add("slow")
    harness = hold_harness(event_time=EventTime.hold_watermarks(max_hold="1 s", late=late))
    harness.push(("a", "slow"), timestamp=10)
    harness.push(("a", "behind"), timestamp=20)
    harness.push(("a", "after"), timestamp=90)
    harness.watermark(20)
    harness.advance_time(900)
    assert harness.output_watermark == 9
    harness.advance_time(200)
    assert harness.output_watermark == 20
    CLOSED.clear()
    harness.run_until_idle()
    everything = [("slow", 10), ("behind", 20), ("after", 90)]
    assert timed_outputs(harness) == (everything if late is LateOutputs.EMIT else everything[2:])
    assert harness.late_outputs == (["slow", "behind"] if late is LateOutputs.SIDE else [])
    assert [at for at, _ in harness.side_times(LATE_TAG)] == ([10, 20] if late is LateOutputs.SIDE else [])
    # Only the main output is concerned.
    assert [record for _, record in harness.side_output("seen")] == ["slow", "behind", "after"]
    assert harness.memory("a") == {"count": 3}
    assert harness.run_metrics[LATE_OUTPUTS] == 2
    (warning,) = [record for record in caplog.records if record.name == "flink_agents.event_time"]
    text = warning.getMessage()
    assert text.startswith("key 'a': a run with event time 10 ended after the output watermark had passed it")
    assert "waits for 1 s" in text and f"late={late.value!r}" in text and "Raise max_hold" in text


@pytest.mark.executes_once
def test_one_endless_run_costs_one_timeout(hold_harness: MakeHarness) -> None:
    CLOSED.add("endless")
    harness = hold_harness(event_time=EventTime.hold_watermarks(max_hold="50 ms"))
    harness.push(("a", "endless"), timestamp=0)
    harness.watermark(0)
    harness.advance_time(50 + 2 * HELD_MS)
    assert harness.output_watermark == 0
    for at in range(1, 20):
        harness.push(("a", at), timestamp=at)
        harness.watermark(at)
        harness.advance_time(PROGRESS_MS)
        assert harness.output_watermark == at
    assert harness.outputs == []
    CLOSED.clear()
    harness.run_until_idle()
    assert timed_outputs(harness) == [("endless", 0), *((at, at) for at in range(1, 20))]


@pytest.mark.executes_once
def test_after_a_straggler_a_key_holds_again(hold_harness: MakeHarness) -> None:
    harness = hold_harness(event_time=EventTime.hold_watermarks(max_hold="1 s", late="drop"))
    CLOSED.add("slow")
    harness.push(("a", "slow"), timestamp=1)
    harness.watermark(1)
    harness.advance_time(2000)
    CLOSED.clear()
    harness.run_until_idle()
    CLOSED.add("slower")
    harness.push(("a", "slower"), timestamp=5)
    harness.watermark(10)
    assert watermark_behind(harness) == 4
    CLOSED.clear()
    harness.run_until_idle()
    assert timed_outputs(harness) == [("slower", 5)]
    assert harness.run_metrics[LATE_OUTPUTS] == 1


@pytest.mark.executes_once
def test_what_another_run_keeps_in_time_is_no_straggler(hold_harness: MakeHarness) -> None:
    CLOSED.update(("endless", "other"))
    harness = hold_harness(event_time=EventTime.hold_watermarks(max_hold="60 s", late="drop"))
    harness.push(("a", "endless"), timestamp=5)
    harness.watermark(5)
    harness.advance_time(61_000)
    harness.push(("a", "behind"), timestamp=20)
    for record in (1, 2, "other"):
        harness.push(("b", record), timestamp=20)
    harness.watermark(30)
    while len(harness.outputs) < 2:
        harness.advance_time(1)
    assert watermark_behind(harness) == 19
    CLOSED.discard("endless")
    while len(harness.outputs) < 3:
        harness.advance_time(1)
    assert timed_outputs(harness) == [(1, 20), (2, 20), ("behind", 20)]
    assert harness.run_metrics[LATE_OUTPUTS] == 1


class Durable(Agent):
    """Makes a durable call for each input, so that an attempt knows which came before."""

    side_outputs = {"seen": None}

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(echo, event.input[1])
        while event.input[1] in CLOSED:
            await asyncio.sleep(0.001)
        return OutputEvent(output=event.input[1])


def echo(value: Any) -> Any:
    return value


@pytest.mark.executes_once
def test_a_run_that_is_held_back_for_another_input_holds_nothing(agent_harness: MakeHarness) -> None:
    """The input that it waits for may be behind the watermark: both would wait for each other."""
    harness = agent_harness(
        Durable,
        lambda record: record[0],
        event_time=HOLD,
        auto_run=False,
        config={"action-state.reorder-timeout": timedelta(days=100)},
    )
    snapshot = harness.snapshot()
    for at, record in enumerate(("first", "second"), start=1):
        harness.push(("a", record), timestamp=at)
    harness.run_until_idle()
    harness.current_watermark = NO_TIMESTAMP
    harness.restore(snapshot)
    CLOSED.add("first")
    harness.push(("a", "second"), timestamp=2)
    harness.watermark(50)
    while watermark_behind(harness) != 50:
        assert harness.outputs == []
    harness.push(("a", "first"), timestamp=1)
    CLOSED.clear()
    harness.run_until_idle()
    assert timed_outputs(harness) == [("first", 1), ("second", 2)]
