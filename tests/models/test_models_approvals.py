"""Tools of models that somebody has to approve: what the model is told, and that the effect happens once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ReActAgent,
    ResourceDescriptor,
    RunnerContext,
    Tool,
    ToolRequestEvent,
    ToolResponseEvent,
    action,
    chat_model,
    tool,
)
from flink_agents.api.models.chat_events import RequestedCall
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

pytestmark = pytest.mark.own_conditions

PAID: list[tuple[str, float]] = []
TOLD: list[list[tuple[str, Any, str]]] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()
    TOLD.clear()


def last(messages: list[ModelMessage]) -> str:
    """Answers with what the tools of the turn before came to."""
    parts: list[Any] = list(messages[-1].parts)
    results = [(part.tool_name, part.content, part.outcome) for part in parts]
    TOLD.append(results)
    return "; ".join(f"{name}: {content}" for name, content, _ in results)


def script() -> Any:
    calls = [
        ToolCall("pay", {"order": "kettle", "amount": 40}),
        ToolCall("pay", {"order": "tea", "amount": 4}),
    ]
    return ScriptedModel([Reply(tool_calls=calls), last])


def is_large(arguments: dict[str, Any]) -> bool:
    return arguments["amount"] > 10


class Clerk(Agent):
    """A model with a tool that needs an approval for large amounts."""

    @chat_model
    def main(self) -> ResourceDescriptor:
        return ChatModel(clazz=script, tools=["pay"])

    @tool(needs_approval=is_large, approval_timeout=60)
    @staticmethod
    def pay(order: str, amount: float) -> str:
        """Pay an amount back."""
        PAID.append((order, amount))
        return f"paid {amount:g}"

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("main", str(event.input))).output)


def asking_harness(agent: Any = Clerk) -> OperatorHarness:
    harness = OperatorHarness(agent, crash="everywhere")
    harness.push("my kettle broke")
    return harness


def test_an_approved_call_is_made_once() -> None:
    harness = asking_harness()
    assert PAID == [("tea", 4)]
    assert harness.approve(harness.approvals[0]) == ["pay: paid 40; pay: paid 4"]
    assert PAID == [("tea", 4), ("kettle", 40)]


def test_a_call_is_made_with_the_arguments_of_the_answer() -> None:
    harness = asking_harness()
    assert harness.approve(harness.approvals[0], {"amount": 30}) == ["pay: paid 30; pay: paid 4"]
    assert PAID == [("tea", 4), ("kettle", 30)]


def test_a_model_reads_why_a_call_was_denied() -> None:
    harness = asking_harness()
    [answer] = harness.deny(harness.approvals[0], "it was used", by="Ada")
    assert answer == "pay: tool pay was not approved, but denied by Ada: it was used; pay: paid 4"
    assert PAID == [("tea", 4)]
    assert [result[2] for result in TOLD[0]] == ["denied", "success"]


def test_a_model_reads_that_nobody_answered() -> None:
    harness = asking_harness()
    [answer] = harness.advance_time(60_000)
    assert "expired: no answer came within 60 s" in answer
    assert PAID == [("tea", 4)]


def pay(order: str, amount: float) -> str:
    """Pay an amount back."""
    return Clerk.pay(order, amount)


def test_a_react_agent_asks_for_approvals() -> None:
    react = ReActAgent(model=ChatModel(clazz=script), tools=[Tool(pay, needs_approval=is_large)])
    harness = asking_harness(react)
    assert harness.approve(harness.approvals[0]) == ["pay: paid 40; pay: paid 4"]
    assert PAID == [("tea", 4), ("kettle", 40)]


class Requests(Clerk):
    """Lets the built-in action call the tool."""

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return ToolRequestEvent(
            calls=(RequestedCall(name="pay", arguments={"order": "kettle", "amount": 40}, id="1"),)
        )

    @action(ToolResponseEvent)
    def tell(self, event: ToolResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=[(result.kind, result.content) for result in event.results])


def test_the_built_in_action_asks_for_approvals() -> None:
    harness = asking_harness(Requests)
    [answer] = harness.deny(harness.approvals[0], "no")
    assert answer == [("denied", "tool pay was not approved, but denied: no")]
