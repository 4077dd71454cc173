"""People who approve tools of an agent of pydantic-ai, in the middle of its run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engine_tools import EFFECTS
from pydantic_ai import Agent as ModelAgent, DeferredToolRequests, DeferredToolResults, Tool, ToolDenied
from pydantic_ai.capabilities import HandleDeferredToolCalls, RequestInput

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.models.engine import FlinkDurability, action_of
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall


def refund(order: str) -> str:
    """Refund an order."""
    EFFECTS.append(order)
    return f"refunded {order}"


def look(order: str) -> str:
    """Look at an order."""
    EFFECTS.append(f"looked at {order}")
    return f"{order} is sent"


def last_contents(messages: list[Any]) -> str:
    return "; ".join(str(part.content) for part in messages[-1].parts)


def agent(*capabilities: Any, **options: Any) -> ModelAgent[Any, Any]:
    calls = [
        ToolCall("refund", {"order": "7"}),
        ToolCall("look", {"order": "8"}),
        ToolCall("refund", {"order": "9"}),
    ]
    return ModelAgent(
        ScriptedModel([Reply(tool_calls=calls), last_contents]),
        name="refunds",
        tools=[Tool(refund, requires_approval=True), look],
        capabilities=[*capabilities, FlinkDurability(approvals=True, **options)],
    )


def harness_of(made: ModelAgent[Any, Any]) -> OperatorHarness:
    class Refunds(Agent):
        decide = action_of(made, InputEvent)

    harness = OperatorHarness(Refunds(), crash="everywhere", forced_serialization=False)
    harness.push("go")
    return harness


@pytest.mark.own_conditions
def test_people_are_asked_once_and_each_call_is_made_once() -> None:
    harness = harness_of(agent())
    first, second = harness.approvals
    assert (first.what, first.arguments) == ("tool refund of refunds", {"order": "7"})
    assert EFFECTS == ["looked at 8"]
    assert harness.approve(second) == []
    assert harness.approve(first) == ["refunded 7; 8 is sent; refunded 9"]
    assert sorted(EFFECTS) == ["7", "9", "looked at 8"]


@pytest.mark.own_conditions
def test_people_change_arguments_and_deny() -> None:
    harness = harness_of(agent())
    first, second = harness.approvals
    harness.approve(first, {"order": "70"})
    [answer] = harness.deny(second, "it is in use")
    reason = "tool refund of refunds was not approved, but denied: it is in use"
    assert answer == f"refunded 70; 8 is sent; {reason}"
    assert sorted(EFFECTS) == ["70", "looked at 8"]


@pytest.mark.own_conditions
def test_nobody_answers_in_time() -> None:
    harness = harness_of(agent(approval_timeout=timedelta(minutes=1)))
    [answer] = harness.advance_time(60_000)
    assert answer.count("expired: no answer came within 60 s") == 2
    assert EFFECTS == ["looked at 8"]


@pytest.mark.own_conditions
def test_a_policy_that_stands_before_answers_first() -> None:
    def deny_9(ctx: Any, requests: DeferredToolRequests) -> DeferredToolResults:
        nine = [approval.tool_call_id for approval in requests.approvals if "9" in str(approval.args)]
        return DeferredToolResults(approvals={call_id: ToolDenied("never 9") for call_id in nine})

    harness = harness_of(agent(HandleDeferredToolCalls(deny_9)))
    [request] = harness.approvals
    assert harness.approve(request) == ["refunded 7; 8 is sent; never 9"]


ASKED: list[str] = []


def hand_on(ctx: Any, requests: DeferredToolRequests, token: str) -> None:
    ASKED.append(token)


@pytest.mark.own_conditions
@pytest.mark.parametrize("approved", [True, False])
def test_people_answer_what_is_handed_on(approved: bool) -> None:
    ASKED.clear()
    harness = harness_of(agent(RequestInput(hand_on)))
    [request] = harness.approvals
    assert request.what == "deferred_tool_calls of refunds"
    assert [request.arguments["token"]] == ASKED
    assert [call["arguments"] for call in request.arguments["calls"].values()] == [
        {"order": "7"},
        {"order": "9"},
    ]
    [answer] = harness.approve(request) if approved else harness.deny(request, "no")
    reason = "deferred_tool_calls of refunds was not approved, but denied: no"
    assert answer == ("refunded 7; 8 is sent; refunded 9" if approved else f"{reason}; 8 is sent; {reason}")
    assert len(ASKED) == 1


@pytest.mark.own_conditions
def test_people_answer_each_of_the_calls_that_are_handed_on() -> None:
    harness = harness_of(agent(RequestInput(hand_on)))
    [request] = harness.approvals
    seven, nine = request.arguments["calls"]
    assert harness.approve(request, {"results": {"approvals": 3}}) == []
    assert [str(signal.reason) for signal in harness.unmatched_signals] == ["invalid"]
    results = {"approvals": {seven: True, nine: False}}
    [answer] = harness.approve(request, {"results": results})
    assert answer.startswith("refunded 7; 8 is sent; ")
    assert "9" not in EFFECTS


@pytest.mark.own_conditions
def test_nobody_answers_what_is_handed_on() -> None:
    harness = harness_of(agent(RequestInput(hand_on, timeout=timedelta(seconds=30))))
    [answer] = harness.advance_time(30_000)
    assert answer.count("No decision on this tool call arrived") == 2
    assert EFFECTS == ["looked at 8"]


asking = agent()


class Asks(Agent):
    """Names the agent in its code."""

    @action(InputEvent)
    async def decide(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await asking.run("go")).output)


def test_an_action_that_names_the_agent_waits() -> None:
    harness = OperatorHarness(Asks)
    harness.push("go")
    assert len(harness.approvals) == 2
