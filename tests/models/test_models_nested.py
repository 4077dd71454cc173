"""Conversations inside conversations: a tool that leads back to the model that called it comes to an end."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ReActAgent,
    RunnerContext,
    Tool,
    action,
    tool,
)
from flink_agents.api.errors import ActionFailedError, NestedChatsError
from flink_agents.models.engine import FlinkDurability
from flink_agents.models.setup.limiter import MOST_NESTED
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once

SENT: list[str] = []
"""The requests, by the user's text."""


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


def handing_on(levels: int = 1000, calls: int = 1) -> Model:
    """Hands each request on by its tool, so many levels deep, ``calls`` times side by side."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        request_text = str(messages[0].parts[-1].content)  # type: ignore[union-attr]
        SENT.append(request_text)
        tool_returns = [
            part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
        ]
        level = int(request_text)
        if tool_returns or level >= levels:
            return ModelResponse(
                [TextPart(str(tool_returns[-1].content) if tool_returns else f"level {level}")]
            )
        return ModelResponse(
            [ToolCallPart("ask_again", {"level": level + 1}, f"c{index}") for index in range(calls)]
        )

    return FunctionModel(answer)


ENDLESS = handing_on()
DEEP = handing_on(MOST_NESTED)
BROAD = handing_on(3, 3)


class Circling(Agent):
    """Its tool talks to the model that calls it."""

    def __init__(self, model: str) -> None:
        self.add_resource("m", "chat_model", ChatModel(clazz=f"{__name__}:{model}", tools=["ask_again"]))

    @tool
    @staticmethod
    async def ask_again(level: int, ctx: RunnerContext) -> str:
        """Ask once more."""
        return (await ctx.chat("m", str(level))).output

    @action(InputEvent)
    async def go(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await ctx.chat("m", str(event.input))).output)


def test_a_tool_that_leads_back_to_its_model_is_named() -> None:
    with OperatorHarness(Circling("ENDLESS")) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push(1)
    error = caught.value.__cause__
    assert isinstance(error, NestedChatsError)
    assert error.found == " -> ".join(["the chat model 'm'"] * 4)
    assert f"{__file__.rpartition('/')[2]}:" in str(caught.value) and "Circling.ask_again" in str(
        caught.value
    )
    assert len(SENT) == MOST_NESTED


def test_what_is_just_deep_enough_is_no_error() -> None:
    with OperatorHarness(Circling("DEEP"), crash="everywhere") as harness:
        assert harness.push(1) == [f"level {MOST_NESTED}"]
    with OperatorHarness(Circling("DEEP")) as harness:
        assert harness.push_all([1, 1]) == [f"level {MOST_NESTED}"] * 2


def test_conversations_side_by_side_do_not_add_up() -> None:
    with OperatorHarness(Circling("BROAD")) as harness:
        assert harness.push(1) == ["level 3"]
    assert len(SENT) == 2 * (1 + 3) + 9


def test_conversations_one_behind_the_other_do_not_add_up() -> None:
    class Often(Circling):
        @action(InputEvent)
        async def go(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            for _ in range(2 * MOST_NESTED):
                await ctx.chat("m", "3")
            return OutputEvent(output="done")

    with OperatorHarness(Often("BROAD")) as harness:
        assert harness.push(1) == ["done"]


def test_one_that_failed_is_left() -> None:
    class Insisting(Circling):
        @action(InputEvent)
        async def go(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            for _ in range(2):
                with pytest.raises(NestedChatsError):
                    await ctx.chat("m", "1")
            return OutputEvent(output="went on")

    with OperatorHarness(Insisting("ENDLESS")) as harness:
        assert harness.push(1) == ["went on"]
    assert len(SENT) == 2 * MOST_NESTED


async def ask_again(level: int, ctx: RunnerContext) -> str:
    """Ask once more."""
    return (await ctx.chat("model", str(level), tools=[Tool(ask_again)])).output


def test_a_react_agent_answers_with_its_fallback() -> None:
    agent = ReActAgent(model=ChatModel(clazz=f"{__name__}:ENDLESS"), tools=[ask_again], fallback="no answer")
    with OperatorHarness(agent) as harness:
        assert harness.push("1") == ["no answer"]


circle = ModelAgent(ENDLESS, name="circle", capabilities=[FlinkDurability()])


@circle.tool_plain(name="ask_again", metadata={"flink": False})
async def run_again(level: int) -> str:
    """Ask once more, by code of the action."""
    return (await circle.run(str(level))).output


class Whole(Agent):
    @action(InputEvent)
    async def go(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await circle.run(str(event.input))).output)


def test_a_whole_agent_whose_tool_runs_it_again_is_named() -> None:
    with OperatorHarness(Whole()) as harness, pytest.raises(ActionFailedError) as caught:
        harness.push(1)
    assert isinstance(caught.value.__cause__, NestedChatsError)
    assert "the agent 'circle' of pydantic-ai" in str(caught.value)
    assert len(SENT) == MOST_NESTED
