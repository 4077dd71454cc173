"""``timeout=`` of an action counts the time in which it runs, not that in which its run is suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext
from flink_agents.api.errors import ActionTimeoutError
from flink_agents.runtime.execution.waits import durable_wait
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

pytestmark = pytest.mark.own_conditions

SHORT = 0.3
"""A timeout in seconds, for code that takes longer."""

LONG = 1.5
"""A timeout in seconds, for waits that take longer, and code that takes less also on a loaded machine."""


ONCE: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}


async def step() -> int:
    return 1


async def sleep(ctx: RunnerContext) -> Any:
    await ctx.sleep(3)
    return "slept"


async def wait_for_signal(ctx: RunnerContext) -> Any:
    return await ctx.wait_for_signal("word", str)


async def approve(ctx: RunnerContext) -> Any:
    return (await ctx.request_approval("pay", {})).approved


async def sleep_twice_side_by_side(ctx: RunnerContext) -> Any:
    async def pause() -> None:
        await ctx.sleep(1)
        await ctx.durable_execute_async(step)
        await ctx.sleep(1)

    await ctx.gather(pause(), pause())
    return "slept"


def timed_agent(body: Callable[..., Any], **settings: Any) -> Agent:
    async def work(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await ctx.durable_execute_async(step)
        answer = await body(ctx)
        await ctx.durable_execute_async(step)
        return OutputEvent(output=answer)

    return Agent(name="worker").add_action("work", [InputEvent], work, **settings)


def calling(agent: Agent, name: str = "caller", **settings: Any) -> Agent:
    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(agent, event.input))

    return Agent(name=name).add_action("ask", [InputEvent], ask, **settings)


PLACES: dict[str, Callable[..., Agent]] = {
    "top": lambda body, **timeout: timed_agent(body, **timeout),
    "sub-agent": lambda body, **timeout: calling(timed_agent(body, **timeout)),
    "caller": lambda body, **timeout: calling(timed_agent(body), **timeout),
    "both": lambda body, **timeout: calling(timed_agent(body, **timeout), **timeout),
    "two levels": lambda body, **timeout: calling(
        calling(timed_agent(body, **timeout), "middle", **timeout), **timeout
    ),
}

WAITS = [sleep, sleep_twice_side_by_side, wait_for_signal, approve]


@factors(body=WAITS, place=list(PLACES))
def test_a_timeout_does_not_count_the_time_of_a_suspended_run(body: Any, place: str) -> None:
    harness = OperatorHarness(PLACES[place](body, timeout=LONG), auto_run=False, **ONCE)
    harness.push("tea")
    harness.run_until_idle()
    # It is in state only, so nothing counts its time.
    assert [actor for subtask in harness._subtasks for actor in subtask.processor.actors] == []
    harness.advance_time(timedelta(days=30))
    for request in harness.approvals:
        harness.approve(request)
    for wait in harness.waits():
        if wait.name == "word":
            harness.signal(0, "word", "yes", wait=wait.id)
    harness.run_until_idle()
    harness.advance_time(timedelta(days=30))
    harness.run_until_idle()
    assert len(harness.outputs) == 1, harness.waits()


@factors(body=[sleep], place=list(PLACES))
def test_a_timeout_does_not_count_the_time_of_waits_at_the_end_of_the_input(
    body: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wait in memory looks at the clock of the harness after more than the timeout.
    monkeypatch.setattr(durable_wait, "LOOK_SECONDS", (LONG + 0.5, LONG + 0.5))
    harness = OperatorHarness(PLACES[place](body, timeout=LONG), auto_run=False, **ONCE)
    harness.push("tea")
    harness.end_input()
    assert harness.outputs == ["slept"]


@factors(place=list(PLACES), suspended=[False, True])
def test_a_timeout_counts_the_time_before_a_wait(place: str, suspended: bool) -> None:
    async def body(ctx: RunnerContext) -> Any:
        for _ in range(20):
            # Together, they take longer than the timeout; alone, none does.
            await asyncio.sleep(SHORT / 5)
            await ctx.sleep(0.01)
        return "done"

    harness = OperatorHarness(PLACES[place](body, timeout=SHORT), auto_run=suspended, **ONCE)
    with pytest.raises(Exception) as failure:
        harness.push("tea")
        if suspended:
            harness.advance_time(timedelta(days=1))
        else:
            harness.end_input()
    error: BaseException | None = failure.value
    while error is not None and not isinstance(error, ActionTimeoutError):
        error = error.__cause__
    assert error is not None, failure.value


@pytest.mark.parametrize("place", ["sub-agent", "two levels"])
def test_a_timeout_counts_a_call_that_hangs_beside_the_wait_of_another_agent(place: str) -> None:
    async def hangs(ctx: RunnerContext) -> Any:
        return await ctx.gather(ctx.sleep(3600), ctx.durable_execute_async(never))

    harness = OperatorHarness(PLACES[place](hangs, timeout=SHORT), **ONCE)
    with pytest.raises(Exception, match="took longer than its timeout"):
        harness.push("tea")


async def never() -> None:
    await asyncio.Event().wait()
