"""Tools with approval that an action makes as it runs: they wait, or are refused before a model is asked."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from flink_agents import (
    Agent,
    ChatModel,
    Configuration,
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
from flink_agents.api.errors import ActionFailedError, ContextMisuseError
from flink_agents.plan import AgentCode, bind, compile_agent
from flink_agents.runtime.execution.environment.settings import may_suspend
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


@each_case(("agent", "config"), [(Hidden, {}), (InCall, {"run.may-suspend": False})])
def test_a_tool_that_cannot_wait_is_refused_before_the_model_is_asked(
    agent: type[Agent], config: dict[str, Any]
) -> None:
    DONE.clear()
    MODELS.clear()
    with OperatorHarness(agent(), config=config, **PLAIN) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push("go")
        assert isinstance(caught.value.__cause__, ContextMisuseError)
        assert "gives a model the tool 'pay', which needs an approval" in str(caught.value)
        assert "run.may-suspend" in str(caught.value)
        assert (DONE, [model.count for model in MODELS if model.count]) == ([], [])


def test_a_hidden_tool_waits_if_the_option_says_so() -> None:
    DONE.clear()
    with OperatorHarness(Hidden(), config={"run.may-suspend": True}, **PLAIN) as harness:
        assert harness.push("go") == []
        assert harness.approve(harness.approvals[0]) == ["done"]


class Plain(Asks):
    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("main", "pay")).output)


@each_case(
    ("option", "value", "waits"),
    [
        ("mcp-servers.shop.needs_approval", True, True),
        ("skills.office.needs_approval", ["refund/run.py"], True),
        ("chat-models.main.on_unknown_outcome", "ask", True),
        ("chat-models.main.on_unknown_outcome", "fail", False),
        ("chat-models.main.tool_timeout", 5, False),
    ],
)
def test_options_of_resources_let_runs_wait(option: str, value: Any, waits: bool) -> None:
    agent = Plain()
    bound = bind(compile_agent(agent), AgentCode.of(agent))
    assert may_suspend(bound, Configuration({option: value})) is waits
    assert not may_suspend(bound, Configuration({option: value, "run.may-suspend": False}))
