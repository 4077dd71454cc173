"""Tools with approval that an action makes as it runs: they wait, or are refused before a model is asked."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    Prompt,
    ReActAgent,
    ResourceDescriptor,
    RunnerContext,
    Tool,
    action,
    chat_model,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

DONE: list[str] = []
MODELS: list[Any] = []
OPTIONS = {"needs_approval": True}
Approved = partial(Tool, needs_approval=True)
HIDDEN = '{"needs_' + 'approval": true}'
PLAIN: Any = {"crash": None, "forced_replay": False, "forced_restart": False}


def look(item: str) -> str:
    """Look at an item."""
    DONE.append("look")
    return "seen"


def pay(amount: int) -> str:
    """Pay an amount."""
    DONE.append("pay")
    return "paid"


def is_large(arguments: dict[str, Any]) -> bool:
    return arguments["amount"] > 10


def make_tool() -> Tool:
    return Tool(pay, needs_approval=True)


class Maker:
    def __init__(self, needs_approval: Any) -> None:
        self.options = dict(needs_approval=needs_approval)

    def make(self) -> Tool:
        return Tool(pay, **self.options)


MAKER = Maker(True)


def script() -> ScriptedModel:
    calls = [ToolCall("look", {"item": "tea"}), ToolCall("pay", {"amount": 40})]
    model = ScriptedModel([Reply(tool_calls=calls), "done"])
    MODELS.append(model)
    return model


class Asks(Agent):
    @chat_model
    def main(self) -> ResourceDescriptor:
        return ChatModel(clazz=script)


class InCall(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("main", "pay", tools=[look, Tool(pay, needs_approval=True)])
        return OutputEvent(output=result.output)


class WithCondition(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        tools = [look, Tool(pay, needs_approval=is_large, approval_timeout=60)]
        return OutputEvent(output=(await ctx.chat("main", "pay", tools=tools)).output)


class WithOptions(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        options: Any = {}
        options["needs_approval"] = True
        result = await ctx.chat("main", "pay", tools=[look, Tool(pay, **options)])
        return OutputEvent(output=result.output)


class WithGlobalOptions(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("main", "pay", tools=[look, Tool(pay, **OPTIONS)])  # type: ignore[arg-type]
        return OutputEvent(output=result.output)


class WithPartial(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("main", "pay", tools=[look, Approved(pay)])).output)


class WithFunction(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("main", "pay", tools=[look, make_tool()])).output)


class WithMethod(Asks):
    def tools(self) -> list[Any]:
        return [tool if tool is look else Tool(tool, needs_approval=True) for tool in (look, pay)]

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("main", "pay", tools=self.tools())).output)


class WithMaker(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("main", "pay", tools=[look, MAKER.make()])).output)


class Calls(Agent):
    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(InCall, event.input))


class Hidden(Asks):
    """Nothing in its code shows that the tool needs an approval."""

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        tool = Tool(pay, **json.loads(HIDDEN))
        return OutputEvent(output=(await ctx.chat("main", "pay", tools=[look, tool])).output)


def react() -> Agent:
    tools = [look, Tool(pay, needs_approval=True)]
    return ReActAgent(model=ChatModel(clazz=script), prompt=Prompt.from_text("Pay."), tools=tools)


AGENTS = {
    "in the call": InCall,
    "hidden": Hidden,
    "with a condition": WithCondition,
    "with options": WithOptions,
    "with options of the module": WithGlobalOptions,
    "with a partial": WithPartial,
    "of a function": WithFunction,
    "of a method": WithMethod,
    "of an object": WithMaker,
    "of a sub-agent": Calls,
    "of a ReActAgent": react,
}


@each_case("agent", AGENTS)
def test_a_tool_that_an_action_makes_waits_for_its_approval(agent: str) -> None:
    DONE.clear()
    with OperatorHarness(AGENTS[agent](), **PLAIN) as harness:
        assert harness.push("go") == []
        [request] = harness.approvals
        assert (request.what, request.arguments, DONE) == ("tool pay", {"amount": 40}, ["look"])
        assert harness.approve(request) == ["done"]
        assert DONE == ["look", "pay"]
