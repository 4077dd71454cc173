"""What the author of an action may say of one conversation, and what becomes of what makes no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    UsageLimits,
    action,
    chat_model,
)
from flink_agents.api.errors import (
    ActionFailedError,
    AgentConfigurationError,
    AgentDefinitionError,
    UsageLimitExceededError,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]
MODEL: list[ScriptedModel] = []
SAID: dict[str, Any] = {}


def model() -> Any:
    return MODEL[0]


class Talker(Agent):
    @chat_model
    def talker(self) -> ResourceDescriptor:
        return ChatModel(clazz=model)

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("talker", SAID["messages"], **SAID["options"])
        return OutputEvent(output=result.output)


def push(make: Make, messages: Any = "hello", script: Any = ("good",), **options: Any) -> list[Any]:
    MODEL[:] = [ScriptedModel(list(script))]
    SAID.update(messages=messages, options=options)
    return make(Talker(), crash=None, forced_replay=False, forced_serialization=False).push("go")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0.5}, "option 'temperature'"),
        ({"temperature": 0.5}, "settings={'temperature': ...}"),
        ({"output": dict}, "one of output_type, tools"),
        ({"limits": 3}, "UsageLimits"),
        ({"limits": {"request": 3}}, "request: Extra inputs"),
        ({"max_requests": 0}, "an integer of 1 or more"),
        ({"max_requests": "3"}, "an integer of 1 or more"),
        ({"settings": "hot"}, "a dict of settings"),
        ({"tools": "price_of"}, "a list of names"),
        ({"history": "before"}, "a list of messages"),
        ({"history": [3]}, "a value that is not a message"),
        ({"output_type": int, "output_mode": "magic"}, "tool, native, prompted"),
        ({"variables": "mood"}, "a dict of values"),
        ({"instructions": 3}, "a string"),
        ({"run_tools": "no"}, "True or False"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_sent(
    agent_harness: Make, options: Any, text: str
) -> None:
    with pytest.raises(ActionFailedError) as caught:
        push(agent_harness, **options)
    assert isinstance(caught.value.__cause__, AgentConfigurationError)
    assert text in str(caught.value)
    assert "test_models_options.py" in str(caught.value)
    assert MODEL[0].count == 0


def test_an_option_that_a_chat_model_does_not_have_comes_with_a_fix() -> None:
    with pytest.raises(AgentDefinitionError, match=r"settings=\{\.\.\.\}"):
        ChatModel("openai:x", temperature=0.5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(AgentDefinitionError, match="did you mean 'instructions'"):
        ChatModel("openai:x", instruction="Be brief.")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("messages", [5, None, b"abc", {"content": "x"}, {"kind": "request"}, [1]])
def test_messages_that_are_none(agent_harness: Make, messages: Any) -> None:
    with pytest.raises(ActionFailedError) as caught:
        push(agent_harness, messages)
    assert isinstance(caught.value.__cause__, AgentConfigurationError)
    assert "a value that is not a message" in str(caught.value)
    assert MODEL[0].count == 0


def test_one_message_of_pydantic_ai(agent_harness: Make) -> None:
    assert push(agent_harness, ModelRequest.user_text_prompt("hello")) == ["good"]


@pytest.mark.parametrize("option", ["limits", "max_requests", "history", "output_mode", "instructions"])
def test_none_leaves_an_option_to_the_model(agent_harness: Make, option: str) -> None:
    assert push(agent_harness, **{option: None}) == ["good"]


@pytest.mark.parametrize("limits", [{"requests": 1}, UsageLimits(requests=1)])
def test_limits_may_be_written_as_a_dict(agent_harness: Make, limits: Any) -> None:
    with pytest.raises(ActionFailedError) as caught:
        push(agent_harness, script=[ToolCall("nothing")] * 2, limits=limits)
    assert isinstance(caught.value.__cause__, UsageLimitExceededError)
    assert MODEL[0].count == 1
