"""Code that catches the cancellation of a run that is suspended: nothing that it does then counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]


class Catches(Agent):
    """Returns something else where it is cancelled."""

    side_outputs = {"asides": str}

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.emit_to("asides", "asked")
        try:
            return OutputEvent(output=await ctx.wait_for_signal("said"))
        except BaseException as error:
            return OutputEvent(output=repr(error))


class Suppresses(Agent):
    side_outputs = {"asides": str}

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> list[OutputEvent]:
        ctx.emit_to("asides", "asked")
        answer: Any = "nothing"
        with contextlib.suppress(asyncio.CancelledError):
            answer = await ctx.wait_for_signal("said")
        return [OutputEvent(output=answer)]


class Yields(Agent):
    side_outputs = {"asides": str}

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> AsyncIterator[OutputEvent]:
        ctx.emit_to("asides", "asked")
        try:
            answer = await ctx.wait_for_signal("said")
        except asyncio.CancelledError:
            answer = "cancelled"
        yield OutputEvent(output=answer)


class AsksOneThatCatches(Agent):
    side_outputs = {"asides": str}

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Catches, event.input))


class AsksForApproval(Agent):
    """Has an approval where others have a signal."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        with contextlib.suppress(asyncio.CancelledError):
            return OutputEvent(output=str((await ctx.request_approval("work")).decision))
        return OutputEvent(output="cancelled")


class AsksOneForApproval(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(AsksForApproval, event.input))


@pytest.mark.parametrize("agent", [Catches, Suppresses, Yields, AsksOneThatCatches])
def test_the_signal_comes_in_the_place_of_what_the_code_returned(
    agent_harness: Make, agent: type[Agent]
) -> None:
    harness = agent_harness(agent)
    assert harness.push("a") == []
    assert [wait.name for wait in harness.waits()] == ["said"]
    assert harness.signal(0, "said", "yes") == ["yes"]
    assert harness.side_output("asides") == ["asked"]


@pytest.mark.parametrize("agent", [AsksForApproval, AsksOneForApproval])
def test_an_approval_comes_in_its_place(agent_harness: Make, agent: type[Agent]) -> None:
    harness = agent_harness(agent)
    assert harness.push("a") == []
    [request] = harness.approvals
    assert harness.approve(request) == ["approved"]
    assert [str(outcome.decision) for outcome in harness.approval_outcomes] == ["approved"]
