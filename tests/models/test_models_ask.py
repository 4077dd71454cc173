"""An agent as a tool of a chat model: what the model is told, and what a crash repeats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

CALLED: list[str] = []
SCRIPT: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> Iterator[None]:
    """Begin with nothing called."""
    CALLED.clear()
    yield
    CALLED.clear()


class Order(BaseModel):
    item: str
    amount: int


async def stock_of(item: str) -> int:
    CALLED.append(item)
    return len(item)


class Checker(Agent):
    """Says whether an order can be served.

    It looks into the stock.
    """

    @action(InputEvent)
    async def check(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order: Order = event.input
        checked = ctx.short_term_memory.get("checked", 0) + 1
        ctx.short_term_memory.set("checked", checked)
        stock = await ctx.durable_execute_async(stock_of, order.item)
        return OutputEvent(output={"served": order.amount <= stock, "checked": checked})


def model() -> Any:
    return SCRIPT[0]


class Clerk(Agent):
    check = Checker().as_tool(input_type=Order)
    check_again = Checker().as_tool("Checks once more.", input_type=Order)

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["check", "check_again"])

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input)).output)


def scripted() -> ScriptedModel:
    order = {"request": {"item": "kettle", "amount": 4}}
    wrong = {"request": {"item": "kettle"}}
    return ScriptedModel(
        [
            Reply(tool_calls=[ToolCall("check", wrong)]),
            Reply(tool_calls=[ToolCall("check", order), ToolCall("check_again", order)]),
            Reply("served"),
        ]
    )


@pytest.mark.executes_once
def test_a_model_asks_an_agent() -> None:
    SCRIPT[:] = [scripted()]
    harness = OperatorHarness(Clerk())
    assert harness.push("a kettle?") == ["served"]
    # What the model got wrong reached no agent.
    assert CALLED == ["kettle", "kettle"]
    assert harness.memory()["_asked.Checker.checked"] == 1


def test_the_tools_are_described_to_the_model() -> None:
    from flink_agents.plan import LoadedAgent, compile_agent, compile_with_code
    from flink_agents.plan.model import AgentPlan

    for code in (compile_with_code(Clerk())[1], None):
        # By the names in the plan as well, as on a worker that has nothing else.
        bound = LoadedAgent(AgentPlan.from_json(compile_agent(Clerk()).to_json()), code)
        tools = [bound.resource(name, "tool") for name in ("check", "check_again")]
        assert [tool.description for tool in tools] == [
            "Says whether an order can be served.",
            "Checks once more.",
        ]
        assert list(tools[0].parameters["properties"]) == ["request"]
        assert tools[0].given == {"ctx": RunnerContext}


def test_an_agent_is_a_tool_of_a_builder() -> None:
    SCRIPT[:] = [ScriptedModel([Reply(tool_calls=[ToolCall("upper", {"request": "tea"})]), Reply("done")])]

    def upper(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        CALLED.append(event.input)
        return OutputEvent(output=event.input.upper())

    async def chat(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("clerk", event.input)).output)

    inner = Agent(name="upper").add_action("upper", [InputEvent], upper)
    agent = Agent(name="asks").add_action("chat", [InputEvent], chat)
    agent.add_resource("upper", "tool", inner.as_tool())
    agent.add_resource("clerk", "chat_model", ChatModel(clazz=model, tools=["upper"]))
    with OperatorHarness(agent, forced_replay=False, crash=None) as harness:
        assert harness.push("tea?") == ["done"]
