"""A pause or a wait that nobody awaits does nothing: the action that made it fails, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]


async def book(item: str) -> str:
    return f"booked {item}"


class ForgetsAPause(Agent):
    """Means to wait for a minute."""

    @action(InputEvent)
    async def pause(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.sleep(60)
        return OutputEvent(output=event.input)


class ForgetsASignal(Agent):
    """Means to wait for a payment, behind a pause that it does await."""

    @action(InputEvent)
    async def sell(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(60)
        ctx.wait_for_signal("paid", int)
        return OutputEvent(output=event.input)


class AwaitsLater(Agent):
    """Makes its waits first, so that the second is not awaited yet when the run is suspended."""

    @action(InputEvent)
    async def order(self, event: InputEvent, ctx: Any) -> OutputEvent:
        first = ctx.wait_for_signal("first", int)
        second = ctx.wait_for_signal("second", int)
        booked = await ctx.durable_execute_async(book, event.input)
        return OutputEvent(output=(booked, await first, await second))


class SwallowsTheSuspension(Agent):
    """Ends where it is cancelled, as its run is suspended, with a wait that it has not come to."""

    @action(InputEvent)
    async def order(self, event: InputEvent, ctx: Any) -> OutputEvent | None:
        first = ctx.wait_for_signal("first", int)
        second = ctx.wait_for_signal("second", int)
        try:
            return OutputEvent(output=(await first, await second))
        except asyncio.CancelledError:
            return None


class GivesUp(Agent):
    """Cancels a pause that goes on, and tells the id of a wait that somebody else may ask for."""

    @action(InputEvent)
    async def race(self, event: InputEvent, ctx: Any) -> OutputEvent:
        pause = asyncio.ensure_future(ctx.sleep(60))
        booked = await ctx.durable_execute_async(book, event.input)
        pause.cancel()
        return OutputEvent(output=(booked, ctx.wait_for_signal("told").id))


class CancelsAtOnce(Agent):
    """Gives a pause to a task that never begins, and another one to a task that it leaves behind."""

    @action(InputEvent)
    async def race(self, event: InputEvent, ctx: Any) -> OutputEvent:
        asyncio.ensure_future(ctx.sleep(60)).cancel()
        if event.input == "left":
            asyncio.ensure_future(ctx.sleep(60))
        else:
            await ctx.sleep(0)
        return OutputEvent(output=event.input)


@pytest.mark.parametrize("agent", [ForgetsAPause, ForgetsASignal])
def test_a_forgotten_await_of_a_wait_fails_its_action(agent_harness: Make, agent: type[Agent]) -> None:
    harness = agent_harness(agent)
    called = r"ctx.sleep\(60\)" if agent is ForgetsAPause else r"ctx.wait_for_signal\('paid'\)"
    with pytest.raises(ActionFailedError, match=f"MissingAwaitError: .* without awaiting {called}"):
        harness.push("tea")
        harness.advance_time(timedelta(minutes=1))
    assert harness.outputs == []


def test_a_forgotten_await_is_tried_again_by_no_policy(agent_harness: Make) -> None:
    harness = agent_harness(ForgetsAPause, config={"actions.on-error": "dead-letter"})
    harness.push("tea")
    [letter] = harness.dead_letters
    assert (letter.error_type, letter.attempts) == ("MissingAwaitError", ())


def test_a_wait_may_be_awaited_behind_others(agent_harness: Make) -> None:
    harness = agent_harness(AwaitsLater)
    harness.push("tea")
    harness.signal(0, "first", 1)
    assert harness.signal(0, "second", 2) == [("booked tea", 1, 2)]


def test_a_wait_of_a_task_that_is_cancelled_before_it_begins_is_not_forgotten(agent_harness: Make) -> None:
    assert agent_harness(CancelsAtOnce).push_all(["left", "cancelled"]) == ["left", "cancelled"]


def test_an_action_that_ends_as_its_run_is_suspended_has_forgotten_nothing(agent_harness: Make) -> None:
    harness = agent_harness(SwallowsTheSuspension)
    harness.push("tea")
    harness.signal(0, "first", 1)
    assert harness.signal(0, "second", 2) == [(1, 2)]


def test_a_wait_that_is_cancelled_or_told_of_is_not_forgotten(agent_harness: Make) -> None:
    harness = agent_harness(GivesUp)
    assert harness.push("tea") == [("booked tea", "i0|0|race||1")]
