"""A chat without anything to answer is an error before any request. Pydantic AI sends an empty message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from flink_agents import (
    Agent,
    ChatMessage,
    ChatModel,
    ChatRequestEvent,
    ChatResponseEvent,
    ConversationHistory,
    InputEvent,
    OnError,
    OutputEvent,
    Prompt,
    ReActAgent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    prompt,
)
from flink_agents.api.errors import ModelRequestError
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

MODEL: list[ScriptedModel] = []
PICTURE = BinaryContent(b"\x89PNG", media_type="image/png")
ANSWERED = ModelResponse([TextPart("hello Ada")])


def model() -> Any:
    return MODEL[0]


class Talker(Agent):
    """Holds chats as a function of the test says."""

    @chat_model
    def plain(self) -> ResourceDescriptor:
        return ChatModel(clazz=model)

    @chat_model
    def polite(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, prompt="greeting")

    @chat_model
    def writer(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, prompt="order")

    @chat_model
    def taught(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, prompt="examples")

    @prompt
    def greeting(self) -> Prompt:
        return Prompt.from_messages([ChatMessage(role="system", content="You are kind.")])

    @prompt
    def order(self) -> Prompt:
        return Prompt.from_text("{what}")

    @prompt
    def examples(self) -> Prompt:
        examples = [ChatMessage(role="user", content="2+2"), ChatMessage(role="assistant", content="4")]
        return Prompt.from_messages([*examples, ChatMessage(role="user", content="{what}")])

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> Any:
        try:
            return OutputEvent(output=await TALK[0](ctx))
        except ModelRequestError as error:
            return OutputEvent(output=f"{error.code}: {error.message}")


TALK: list[Callable[[RunnerContext], Any]] = []


def talked(talk: Callable[[RunnerContext], Any], answers: int) -> Any:
    """The output of an agent that talks like this, after as many requests as there are answers."""
    MODEL[:] = [ScriptedModel(["fine"] * answers)]
    TALK[:] = [talk]
    with OperatorHarness(Talker(), **UNFORCED) as harness:
        [output] = harness.push("go")
        MODEL[0].assert_complete()
        return output


def user(content: Any) -> ModelRequest:
    return ModelRequest([UserPromptPart(content)])


EMPTY: dict[str, Any] = {
    "nothing": "",
    "blank": " \n\t ",
    "no messages": [],
    "an empty text": [""],
    "several empty texts": ["", " "],
    "an empty message": ChatMessage(role="user", content=""),
    "a blank message": [ChatMessage(role="user", content=" ")],
    "a system message": [ChatMessage(role="system", content="You are kind.")],
    "a system message, an empty one": [
        ChatMessage(role="system", content="You are kind."),
        ChatMessage(role="user", content=""),
    ],
    "an empty one after an answer": [
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="assistant", content="hello"),
        ChatMessage(role="user", content=""),
    ],
    "a request without parts": ModelRequest([]),
    "a request with an empty text": user(""),
    "a request without contents": user([]),
    "a request with empty contents": user(["", " "]),
    "an answer without a text": ModelResponse([]),
}


@each_case("history", ["none", "kept", "messages"])
@each_case("name", ["plain", "polite"])
@each_case("what", [*EMPTY])
def test_an_empty_prompt_is_not_sent(what: str, name: str, history: str) -> None:
    async def talk(ctx: RunnerContext) -> Any:
        options: Any = {}
        if history == "kept":
            options = {"history": ConversationHistory()}
            await ctx.chat(name, "I am Ada", **options)
        if history == "messages":
            options = {"history": [user("I am Ada"), ANSWERED]}
        return (await ctx.chat(name, EMPTY[what], **options)).output

    output = talked(talk, 1 if history == "kept" else 0)
    assert output == f"FA9001: the chat model {name!r} was not asked, since its messages are empty"


@each_case(("name", "text"), [("writer", ""), ("writer", " "), ("taught", "")])
def test_a_prompt_that_is_rendered_to_nothing_is_not_sent(name: str, text: str) -> None:
    async def of_model(ctx: RunnerContext) -> Any:
        return (await ctx.chat(name, variables={"what": text})).output

    async def filled(ctx: RunnerContext) -> Any:
        return (await ctx.chat("polite", ctx.prompt("order", what=text))).output

    assert talked(of_model, 0).startswith("FA9001: ")
    assert talked(filled, 0).startswith("FA9001: ")


CALLED = [user("buy"), ModelResponse([ToolCallPart("buy", {}, "1")])]
ASKED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "a text": ("polite", "hi", {}),
    "a picture": ("plain", PICTURE, {}),
    "a picture and an empty text": ("plain", ["", PICTURE], {}),
    "an empty text last": ("plain", ["Summarise this.", ""], {}),
    "the prompt of the model": ("writer", "", {"variables": {"what": "Write."}}),
    "the prompt of the model and its examples": ("taught", "", {"variables": {"what": "3+3"}}),
    "a result of a tool": (
        "plain",
        "",
        {"history": [*CALLED, ModelRequest([ToolReturnPart("buy", "", "1")])]},
    ),
    "a question without an answer": ("plain", [], {"history": [user("hi")]}),
    "the begin of the answer": (
        "plain",
        [ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="{")],
        {},
    ),
}


@each_case("what", [*ASKED])
def test_what_has_any_content_is_sent(what: str) -> None:
    async def talk(ctx: RunnerContext) -> Any:
        name, messages, options = ASKED[what]
        return (await ctx.chat(name, messages, **options)).output

    assert talked(talk, 1) == "fine"


class ByEvent(Talker):
    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return ChatRequestEvent(model="plain", messages=event.input)

    @action(ChatResponseEvent)
    async def answered(self, event: ChatResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.output)


def test_agents_whose_input_is_empty() -> None:
    MODEL[:] = [ScriptedModel([])]
    agent = ReActAgent(model=ChatModel(clazz=model), on_error=OnError.DEAD_LETTER)
    with OperatorHarness(agent, **UNFORCED) as harness:
        harness.push("")
        assert [letter.error_type for letter in harness.dead_letters] == ["ModelRequestError"]
    agent = ReActAgent(model=ChatModel(clazz=model), fallback="nothing to say")
    with OperatorHarness(agent, **UNFORCED) as harness:
        assert harness.push(" ") == ["nothing to say"]
    with OperatorHarness(ByEvent(), config={"actions.on-error": "dead-letter"}, **UNFORCED) as harness:
        harness.push("")
        assert [letter.error_type for letter in harness.dead_letters] == ["ModelRequestError"]
    assert MODEL[0].count == 0


class ByPydanticAI(Agent):
    def __init__(self) -> None:
        self.agent = ModelAgent(MODEL[0], name="clerk", capabilities=[FlinkDurability()])

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await self.agent.run(event.input, message_history=[user("I am Ada"), ANSWERED])
        return OutputEvent(output=result.output)


@each_case("text", ["", " "])
def test_a_pydantic_ai_agent_sends_the_empty_message(text: str) -> None:
    MODEL[:] = [ScriptedModel(["what?"])]
    with OperatorHarness(ByPydanticAI(), **UNFORCED) as harness:
        assert harness.push(text) == ["what?"]
    parts = [part for message in MODEL[0].asked[0] for part in message.parts]
    assert isinstance(parts[-1], UserPromptPart)
    assert parts[-1].content == text
