"""Pauses between attempts follow the clock of the harness."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RetryableError, RetryPolicy, RunnerContext, action
from flink_agents.testing import OperatorHarness

HOUR = 3_600_000
PATIENT = RetryPolicy(initial_interval=3600, max_interval=3600, max_attempts=3, jitter=0)
ATTEMPTS: list[Any] = []


def flaky(failures: int = 2) -> str:
    """Fail the first times."""
    ATTEMPTS.append("attempt")
    if len(ATTEMPTS) <= failures:
        raise ConnectionError("flaky")
    return "done"


async def flaky_async() -> str:
    return flaky()


def busy() -> str:
    """Fail once, as a service does that says when to come again."""
    ATTEMPTS.append("attempt")
    if len(ATTEMPTS) < 2:
        raise RetryableError("busy", retry_after=3600)
    return "done"


class DurableAsync(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(flaky_async, retry=PATIENT))


class DurableDef(Agent):
    @action(InputEvent)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(flaky, retry=PATIENT))


class Told(Agent):
    """Has no policy: the failure says that it can be repeated, and when."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(busy))


class ActionAsync(Agent):
    @action(InputEvent, retry=PATIENT)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=flaky())


class ActionDef(Agent):
    @action(InputEvent, retry=PATIENT)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=flaky())


AGENTS = [DurableAsync, DurableDef, Told, ActionAsync, ActionDef]


@pytest.fixture(autouse=True)
def no_attempts() -> None:
    ATTEMPTS.clear()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the agent loop does."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


@pytest.mark.executes_once
@pytest.mark.parametrize("agent", AGENTS)
def test_a_push_passes_pauses_on_the_clock(agent: type[Agent]) -> None:
    pauses = 1 if agent is Told else 2
    with OperatorHarness(agent) as harness:
        start_ms = harness.current_time
        assert harness.push(1) == ["done"]
        assert harness.current_time == start_ms + pauses * HOUR
    assert len(ATTEMPTS) == pauses + 1


@pytest.mark.executes_once
@pytest.mark.parametrize("agent", AGENTS)
def test_without_settling_a_pause_ends_when_the_clock_says_so(agent: type[Agent]) -> None:
    attempts = 2 if agent is Told else 3
    with OperatorHarness(agent, auto_run=False, crash=None) as harness:
        harness.push(1)
        for attempt in range(1, attempts):
            until(lambda expected=attempt: len(ATTEMPTS) == expected and harness.retries_waiting == 1)
            harness.advance_time(HOUR - 1)
            assert (len(ATTEMPTS), harness.retries_waiting) == (attempt, 1)
            harness.advance_time(1)
        until(lambda: len(ATTEMPTS) == attempts)
        harness.run_until_idle()
        assert harness.outputs == ["done"]


@pytest.mark.executes_once
@pytest.mark.parametrize("agent", AGENTS)
def test_settling_ends_a_pause_that_has_begun(agent: type[Agent]) -> None:
    with OperatorHarness(agent, auto_run=False, crash=None) as harness:
        harness.push(1)
        until(lambda: harness.retries_waiting == 1)
        harness.run_until_idle()
        assert harness.outputs == ["done"]


@pytest.mark.executes_once
@pytest.mark.parametrize("agent", AGENTS)
def test_the_end_of_the_input_waits_for_no_pause(agent: type[Agent]) -> None:
    with OperatorHarness(agent, auto_run=False, crash=None) as harness:
        harness.push(1)
        until(lambda: harness.retries_waiting == 1)
        harness.end_input()
        assert harness.outputs == ["done"]


@pytest.mark.executes_once
def test_an_operator_that_is_closed_in_a_pause_leaves_nothing() -> None:
    with OperatorHarness(DurableAsync, auto_run=False, crash=None) as harness:
        snapshot = harness.snapshot()
        harness.push(1)
        until(lambda: harness.retries_waiting == 1)
        harness.restore(snapshot)
        assert harness.retries_waiting == 0
        harness.advance_time(HOUR)
        assert harness.outputs == []


def test_an_input_that_waits_for_room_ends_pauses() -> None:
    config = {"run.max-in-flight": 1, "queue.max-total": 1, "queue.max-per-key": 1}
    with OperatorHarness(ActionAsync, lambda number: number, config=config, auto_run=False) as harness:
        harness.push_all(range(4))
        harness.run_until_idle()
        assert len(harness.outputs) == 4
