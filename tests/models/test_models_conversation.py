"""Conversations with a scripted model: turns, limits, outputs, fallbacks, routers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.test import TestModel

from flink_agents import (
    Agent,
    ChatMessage,
    ChatModel,
    InputEvent,
    OutputEvent,
    Prompt,
    ResourceDescriptor,
    RunnerContext,
    UsageLimits,
    action,
    chat_model,
    prompt,
)
from flink_agents.api.errors import (
    ActionFailedError,
    ModelOutputError,
    ModelRequestError,
    UsageLimitExceededError,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Models:
    """The models of the agent below; each test writes their scripts."""

    main = ScriptedModel([])
    backup = ScriptedModel([])


MODELS = Models()


def main_model() -> Any:
    return MODELS.main


def backup_model() -> Any:
    return MODELS.backup


def choose(messages: list[Any]) -> str:
    return "backup" if "law" in str(messages[-1]) else "main"


QUICK = {"initial_interval": 0.001, "max_attempts": 2}
SAID: dict[str, Any] = {}
"""Keywords of ``ctx.chat`` in the agent below."""


class Talker(Agent):
    @chat_model
    def main(self) -> ResourceDescriptor:
        return ChatModel(clazz=main_model, fallback=["backup"], prompt="greeting", retry=QUICK)

    @chat_model
    def backup(self) -> ResourceDescriptor:
        return ChatModel(clazz=backup_model, retry=QUICK)

    @chat_model
    def judge(self) -> ResourceDescriptor:
        return ChatModel(clazz=main_model)

    @chat_model
    def by_rule(self) -> ResourceDescriptor:
        rules = [{"model": "backup", "contains": "law"}, {"model": "main", "max_characters": 10}]
        return ChatModel(router={"models": {"main": "", "backup": ""}, "rules": rules})

    @chat_model
    def by_function(self) -> ResourceDescriptor:
        return ChatModel(router={"models": {"main": "", "backup": ""}, "function": f"{__name__}:choose"})

    @chat_model
    def by_judge(self) -> ResourceDescriptor:
        return ChatModel(router={"models": {"main": "talk", "backup": "law"}, "judge": "judge"})

    @prompt
    def greeting(self) -> Prompt:
        return Prompt.from_messages([ChatMessage(role="system", content="You are {mood}.")])

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        model, messages = event.input
        options: Any = {"variables": {"mood": "kind"}, **SAID}
        # What the input brings is data: messages with roles are those of the agent.
        result = await ctx.chat(model, options.pop("messages", messages), **options)
        ctx.short_term_memory.set("last", result.model)
        return OutputEvent(output=(result.output, result.model, result.usage.requests))


@pytest.fixture(autouse=True)
def chat_options() -> Any:
    SAID.clear()
    yield SAID
    SAID.clear()


def talk(
    make: Make,
    main: list[Any],
    backup: list[Any] | None = None,
    given: tuple[str, Any] = ("main", "hello"),
    **said: Any,
) -> Any:
    """What the agent puts out; a crash at each point changes nothing, and asks no model again."""
    MODELS.main, MODELS.backup = ScriptedModel(main), ScriptedModel(backup or [])
    SAID.update(said)
    harness = make(Talker(), crash="everywhere", forced_serialization=False)
    (output,) = harness.push(given)
    MODELS.main.assert_complete()
    MODELS.backup.assert_complete()
    return output


def contents(messages: list[ModelMessage]) -> list[Any]:
    return [getattr(part, "content", None) for message in messages for part in message.parts]


def fails(make: Make, error: type[Exception], text: str, main: list[Any], **said: Any) -> None:
    MODELS.main, MODELS.backup = ScriptedModel(main), ScriptedModel([])
    SAID.update(said)
    harness = make(Talker(), crash=None, forced_replay=False, forced_serialization=False)
    with pytest.raises(ActionFailedError) as caught:
        harness.push(("main", "hello"))
    assert isinstance(caught.value.__cause__, error)
    assert text in str(caught.value)


def test_an_answer(agent_harness: Make) -> None:
    assert talk(agent_harness, ["good"]) == ("good", "main", 1)
    (request_messages,) = MODELS.main.asked
    assert contents(request_messages) == ["You are kind.", "hello"]


def test_messages_and_history(agent_harness: Make) -> None:
    messages = [
        ChatMessage(role="user", content="one"),
        ChatMessage(role="assistant", content="two"),
        "three",
    ]
    history = [ModelRequest.user_text_prompt("before"), ModelResponse([TextPart("yes")])]
    talk(agent_harness, ["good"], messages=messages, history=history)
    (request_messages,) = MODELS.main.asked
    assert contents(request_messages) == ["before", "yes", "one", "two", "three"]


@pytest.mark.parametrize(
    ("kind", "arguments", "output"),
    [
        (Size, {"width": "3"}, Size(3)),
        (list[int], {"response": [1, "2"]}, [1, 2]),
        ({"type": "object", "properties": {"a": {}}}, {"a": [None]}, {"a": [None]}),
    ],
)
def test_outputs_of_a_type(agent_harness: Make, kind: Any, arguments: Any, output: Any) -> None:
    script = [ToolCall("final_result", "{no"), "a text", ToolCall("final_result", arguments)]
    assert talk(agent_harness, script, output_type=kind) == (output, "main", 3)


def test_an_output_among_calls_of_tools_is_the_end(agent_harness: Make) -> None:
    def never() -> str:
        raise AssertionError("the conversation is over")

    reply = Reply(tool_calls=[ToolCall("never"), ToolCall("final_result", {"width": 2})])
    assert talk(agent_harness, [reply], output_type=Size, tools=[never])[0] == Size(2)


def test_an_output_that_never_comes(agent_harness: Make) -> None:
    wrong = [ToolCall("final_result", {"width": "wide"})] * 3
    fails(agent_harness, ModelOutputError, "valid integer", wrong, output_type=Size)
    fails(agent_harness, ModelOutputError, "an empty response", [Reply("")] * 3, output_type=None)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (UsageLimits(requests=3), "at most 3"),
        (UsageLimits(tool_calls=2), "tool calls"),
        (UsageLimits(total_tokens=150), "total tokens"),
        (UsageLimits(output_tokens=1), "output tokens"),
        (UsageLimits(cost=1), "price is unknown"),
    ],
)
def test_a_model_that_goes_on_for_ever(agent_harness: Make, limits: UsageLimits, text: str) -> None:
    def again() -> str:
        """Go on."""
        return "go on"

    for_ever = [ToolCall("again")] * 20
    fails(agent_harness, UsageLimitExceededError, text, for_ever, limits=limits, tools=[again])
    assert 0 < MODELS.main.count < 5


def busy() -> ModelHTTPError:
    return ModelHTTPError(503, "main", "busy")


def test_a_failed_request_is_sent_again_and_then_to_the_fallback(agent_harness: Make) -> None:
    assert talk(agent_harness, [busy(), "good"]) == ("good", "main", 1)
    assert talk(agent_harness, [busy(), busy()], ["fine"]) == ("fine", "backup", 1)
    assert talk(agent_harness, [ModelHTTPError(400, "main", "no")], ["fine"]) == ("fine", "backup", 1)


def test_no_model_is_left(agent_harness: Make) -> None:
    MODELS.main = ScriptedModel([ModelHTTPError(400, "main", "what?")])
    MODELS.backup = ScriptedModel([busy(), busy()])
    harness = agent_harness(Talker(), crash=None, forced_replay=False, forced_serialization=False)
    with pytest.raises(ActionFailedError, match="and its fallbacks did not answer") as caught:
        harness.push(("main", "hello"))
    assert isinstance(caught.value.__cause__, ModelRequestError)
    assert "what?" in str(caught.value) and "busy" in str(caught.value)


@pytest.mark.parametrize(
    ("router", "text", "model"),
    [
        ("by_rule", "hello", "main"),
        ("by_rule", "what is law", "backup"),
        ("by_rule", "something that is long", "backup"),
        ("by_function", "hello", "main"),
        ("by_function", "law", "backup"),
    ],
)
def test_routers(agent_harness: Make, router: str, text: str, model: str) -> None:
    main, backup = (["good"], []) if model == "main" else ([], ["good"])
    assert talk(agent_harness, main, backup, (router, text)) == ("good", model, 1)


def test_a_judge_is_asked_once(agent_harness: Make) -> None:
    judged = [ToolCall("final_result", {"response": "backup"})]
    # What the judge used is part of what the conversation used.
    assert talk(agent_harness, judged, ["good"], ("by_judge", "law?")) == ("good", "backup", 2)
    assert "- backup: law" in str(MODELS.main.asked[0])


def test_pydantic_ais_own_test_model(agent_harness: Make) -> None:
    MODELS.main = TestModel(custom_output_text="tested")  # pyright: ignore[reportAttributeAccessIssue]
    harness = agent_harness(Talker(), crash="everywhere", forced_serialization=False)
    assert harness.push(("main", "hello")) == [("tested", "main", 1)]


def test_calls_that_are_left_to_the_caller(agent_harness: Make) -> None:
    def look() -> str:
        raise AssertionError("the caller does it")

    options = {"tools": [look], "run_tools": False}
    assert talk(agent_harness, [Reply("I look.", tool_calls=[ToolCall("look")])], **options)[0] == "I look."
