"""The deadline of a run: it ends pauses and waits, once, whatever crashes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, RunDeadlineError
from flink_agents.api.events.approvals import APPROVALS_TAG
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

HOUR: dict[str, Any] = {"run.deadline": "1 h"}


class Steps(Agent):
    """Waits for two answers, and sleeps between them."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        seen: list[Any] = [event.input]
        try:
            seen.append(await ctx.wait_for_signal("first"))
            await ctx.sleep(1800)
            seen.append(await ctx.wait_for_signal("second"))
        except RunDeadlineError:
            seen.append("too late")
        return OutputEvent(output=seen)


def test_a_wait_ends_at_the_deadline_of_its_run(agent_harness: Make) -> None:
    harness = agent_harness(Steps, config=HOUR)
    harness.push("a")
    assert harness.advance_time(3_599_999) == []
    assert harness.advance_time(1) == [["a", "too late"]]
    assert harness.state().pending == {}


def test_the_deadline_counts_from_the_begin_of_the_run(agent_harness: Make) -> None:
    harness = agent_harness(Steps, config=HOUR)
    harness.push_all(["a", "b"])
    harness.advance_time(1_200_000)
    harness.signal(0, "first", 1)
    harness.advance_time(1_800_000)
    harness.restore(harness.snapshot())
    assert harness.advance_time(599_999) == []
    assert harness.advance_time(1) == [["a", 1, "too late"]]
    # The run behind it has begun now.
    assert harness.advance_time(3_599_999) == []
    assert harness.advance_time(1) == [["b", "too late"]]


def test_a_pause_is_cut_off_by_the_deadline_and_ends_by_it(agent_harness: Make) -> None:
    harness = agent_harness(Steps, config={"run.deadline": "20 min"})
    harness.push("a")
    harness.signal(0, "first", 1)
    assert harness.advance_time(1_200_000) == [["a", 1, "too late"]]


def test_what_is_there_in_time_is_taken(agent_harness: Make) -> None:
    harness = agent_harness(Steps, config=HOUR)
    harness.push("a")
    harness.signal(0, "first", 1)
    harness.signal(0, "second", 2)
    assert harness.advance_time(1_800_000) == [["a", 1, 2]]
    harness.advance_time(3_600_000)
    assert len(harness.outputs) == 1


def test_waits_behind_the_deadline_end_at_once(agent_harness: Make) -> None:
    class Stubborn(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            late = 0
            for _ in range(3):
                try:
                    await asyncio.gather(ctx.sleep(3600), ctx.sleep(7200))
                except RunDeadlineError:
                    late += 1
            return OutputEvent(output=late)

    harness = agent_harness(Stubborn, config={"run.deadline": "1 min"})
    harness.push("a")
    assert harness.advance_time(60_000) == [3]


def test_a_run_that_does_not_catch_it_fails(agent_harness: Make) -> None:
    class Sleeps(Agent):
        @action(InputEvent)
        async def work(self, event: InputEvent, ctx: Any) -> None:
            await ctx.sleep(7200)

    harness = agent_harness(Sleeps, config=HOUR)
    harness.push("a")
    with pytest.raises(ActionFailedError, match="taken for too long"):
        harness.advance_time(3_600_000)


def test_a_request_for_an_approval_expires_with_its_run(agent_harness: Make) -> None:
    class Pays(Agent):
        @action(InputEvent)
        async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
            try:
                await ctx.request_approval("pay", {}, timeout=7200)
            except RunDeadlineError:
                return OutputEvent(output="given up")
            return OutputEvent(output="paid")

    harness = agent_harness(Pays, config=HOUR)
    start_ms = harness.current_time
    harness.push("a")
    [request] = harness.side_output(APPROVALS_TAG)
    assert request.expires_at == start_ms + 3_600_000
    assert harness.advance_time(3_600_000) == ["given up"]
    assert [str(outcome.decision) for outcome in harness.side_output(APPROVALS_TAG)[1:]] == ["expired"]


def test_another_deadline_counts_for_runs_that_go_on(agent_harness: Make) -> None:
    harness = agent_harness(Steps, config=HOUR)
    harness.push("a")
    snapshot = harness.snapshot()
    longer = agent_harness(Steps, config={"run.deadline": "2 h"})
    longer.restore(snapshot)
    assert longer.advance_time(3_600_000) == []
    assert longer.advance_time(3_600_000) == [["a", "too late"]]
