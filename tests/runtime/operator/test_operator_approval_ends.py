"""Requests for approvals end, whatever becomes of the action that asks; and answers that nobody could use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.events.approvals import Decision
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]


class Fails(Agent):
    """Fails behind its approval."""

    @action(InputEvent, needs_approval=True, on_error="dead-letter")
    async def work(self, event: InputEvent, ctx: Any) -> None:
        raise ValueError("too late")


class GivesUp(Agent):
    """Cancels what asks, and goes on."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        asking = asyncio.ensure_future(ctx.request_approval("wait", {}))
        await ctx.sleep(10)
        asking.cancel()
        await asyncio.wait([asking])
        await ctx.sleep(10)
        return OutputEvent(output="gave up")


class GivesUpWhole(Agent):
    """Fails while another task of it asks."""

    @action(InputEvent, on_error="ignore")
    async def work(self, event: InputEvent, ctx: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.request_approval("wait", {}))
            await ctx.sleep(10)
            raise ValueError("no time")


class Shows(Agent):
    """Puts out its input, once somebody has approved that."""

    @action(InputEvent, needs_approval=True)
    async def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class Asked(Agent):
    """Is asked, and needs an approval."""

    @action(InputEvent, needs_approval=True)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class Asks(Agent):
    """Asks an agent that needs an approval."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Asked, event.input))


class Opaque:
    """What pydantic knows nothing of."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_the_outcome_of_an_approval_leaves_although_the_action_fails_behind_it() -> None:
    harness = OperatorHarness(Fails, crash="everywhere")
    harness.push("a")
    [request] = harness.approvals
    harness.approve(request)
    assert harness.approvals == []
    assert [outcome.decision for outcome in harness.approval_outcomes] == [Decision.APPROVED]
    assert [letter.error_type for letter in harness.dead_letters] == ["ValueError"]


@pytest.mark.parametrize("agent", [GivesUp, GivesUpWhole])
def test_a_request_that_nobody_waits_for_any_more_ends(agent: type[Agent]) -> None:
    harness = OperatorHarness(agent, crash="everywhere")
    harness.push("a")
    [request] = harness.approvals
    harness.advance_time(10_000)
    assert harness.approvals == []
    harness.approve(request)
    harness.advance_time(10_000)
    assert [outcome.decision for outcome in harness.approval_outcomes] == [Decision.ENDED]
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.DUPLICATE]


def test_an_answer_brings_bytes_as_the_request_shows_them(agent_harness: Make) -> None:
    harness = agent_harness(Shows)
    harness.push(b"\xff\x00")
    [request] = harness.approvals
    assert request.arguments == {"input": "_wA="}
    assert harness.approve(request, {"input": "_wE="}) == [b"\xff\x01"]


def test_an_answer_that_changes_what_json_says_nothing_of_is_a_stray(agent_harness: Make) -> None:
    harness = agent_harness(Shows, config={"state.allow-pickle": True})
    harness.push(Opaque(3))
    [request] = harness.approvals
    assert harness.approve(request, {"input": {"value": 4}}) == []
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.INVALID]
    [shown] = harness.approve(request)
    assert shown.value == 3


def test_an_answer_to_what_a_lost_run_asked_approves_nothing_else(agent_harness: Make) -> None:
    harness = agent_harness(Shows)
    snapshot = harness.snapshot()
    harness.push("a small refund")
    [lost] = harness.approvals
    harness.restore(snapshot)
    # Nothing was recorded of it, and another input comes first.
    harness.push("a large refund")
    [request] = harness.approvals
    assert harness.approve(lost) == []
    assert [stray.reason for stray in harness.unmatched_signals] == [UnmatchedReason.INVALID]
    assert harness.approve(request) == ["a large refund"]


def test_an_agent_that_is_asked_may_need_approvals() -> None:
    harness = OperatorHarness(Asks, crash="everywhere")
    assert harness.push("a") == []
    assert harness.approve(harness.approvals[0], {"input": "b"}) == ["b"]


def test_an_added_action_of_an_agent_that_is_asked_may_need_approvals(agent_harness: Make) -> None:
    harness = agent_harness(AsksMade)
    assert harness.push("a") == []
    assert harness.approve(harness.approvals[0]) == ["a"]


async def work(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=event.input)


MADE = Agent(name="made")
MADE.add_action("work", [InputEvent], work, needs_approval=True)


class AsksMade(Agent):
    """Asks an agent that was made without a class of its own."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(MADE, event.input))
