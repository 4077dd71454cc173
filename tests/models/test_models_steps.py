"""Steps of a conversation: what counts once, which names are taken, and what is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, ModelMessage, UserPromptPart
from suite.tables import each_case

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    Tool,
    action,
    chat_model,
    tool,
)
from flink_agents.api.errors import ActionFailedError, ModelOutputError, ToolRetriesExceededError
from flink_agents.plan import compile_agent
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ScriptedModel, ToolCall

Serve = Callable[..., ModelServer]
MODEL: list[ScriptedModel] = []
SAID: dict[str, Any] = {}


def model() -> Any:
    return MODEL[0]


def price_of(item: str) -> float:
    """Say what an item costs."""
    return 2.5 * len(item)


def stock_of(item: str) -> int:
    """Say how many there are."""
    return len(item)


class Clerk(Agent):
    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tool_retries=1, output_retries=1)

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("clerk", event.input, **SAID)
        return OutputEvent(output=result.output)


def talk(*lines: Any, agent: Any = Clerk, **said: Any) -> Any:
    SAID.clear()
    SAID.update(said)
    MODEL[:] = [ScriptedModel(list(lines))]
    with OperatorHarness(agent(), crash=None) as harness:
        [output] = harness.push("hello")
    return output


WRONG = ToolCall("price_of", {"thing": "tea"})
RIGHT = ToolCall("price_of", {"item": "tea"})
OTHER = ToolCall("stock_of", {"thing": "tea"})


@each_case(
    "steps, ends",
    [
        ([[WRONG, WRONG, WRONG]], False),
        ([[WRONG] * 20], False),
        ([[WRONG, WRONG], [WRONG]], True),
        ([[WRONG], [WRONG]], True),
        ([[WRONG], [RIGHT], [WRONG]], False),
        ([[WRONG, WRONG], [RIGHT, WRONG], [WRONG, WRONG]], False),
        ([[WRONG, OTHER], [RIGHT, OTHER]], True),
        ([[ToolCall("unknown"), ToolCall("other"), ToolCall("unknown")]], False),
        ([[ToolCall("price_of", "{no")] * 3], False),
    ],
)
def test_a_step_counts_once(steps: list[list[ToolCall]], ends: bool) -> None:
    lines = [Reply(tool_calls=calls) for calls in steps]
    if not ends:
        assert talk(*lines, "done", tools=[price_of, stock_of]) == "done"
        return
    with pytest.raises(ActionFailedError) as caught:
        talk(*lines, "done", tools=[price_of, stock_of])
    assert isinstance(caught.value.__cause__, ToolRetriesExceededError)


def test_wrong_outputs_of_one_response_count_once() -> None:
    wrong = Reply(tool_calls=[ToolCall("final_result", {"response": "many"})] * 3)
    right = ToolCall("final_result", {"response": 3})
    assert talk(wrong, right, output_type=int) == 3
    with pytest.raises(ActionFailedError) as caught:
        talk(wrong, wrong, right, output_type=int)
    assert isinstance(caught.value.__cause__, ModelOutputError)


def final_result(item: str) -> str:
    """Report the final result of a match."""
    return f"{item} won"


def final_result_2(item: str) -> str:
    """Report another one."""
    return f"{item} lost"


@each_case(
    "tools, name",
    [
        ([price_of], "final_result"),
        ([final_result], "final_result_2"),
        ([final_result, final_result_2], "final_result_3"),
    ],
)
def test_a_tool_of_the_author_keeps_its_name(tools: list[Any], name: str) -> None:
    called = ToolCall(tools[0].__name__, {"item": "tea"})
    assert talk(called, ToolCall(name, {"response": 7}), output_type=int, tools=tools) == 7
    assert len(MODEL[0].asked) == 2


class Declared(Clerk):
    price = Tool(price_of, description="Say a price.")
    stock = Tool(stock_of)

    @tool
    def count_of(self, item: str) -> int:
        """Count."""
        return 1

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["price", "stock", "count_of"])


class Derived(Declared):
    stock = None
    count_of = Tool(stock_of)  # type: ignore[assignment]

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, tools=["price", "count_of"])


@each_case("agent, names", [(Declared, {"price", "stock", "count_of"}), (Derived, {"price", "count_of"})])
def test_tools_in_the_body_of_a_class_are_found(agent: type[Agent], names: set[str]) -> None:
    plan = compile_agent(agent())
    assert {resource.name for resource in plan.resources if resource.type == "tool"} == names
    assert (
        talk(ToolCall("price", {"item": "tea"}), ToolCall("count_of", {"item": "tea"}), "done", agent=agent)
        == "done"
    )
    contents = [getattr(part, "content", None) for part in MODEL[0].asked[-1][-1].parts]
    assert contents == [3 if agent is Derived else 1]


@pytest.mark.parametrize("kind", ["openai-chat", "openai-responses"])
def test_cached_tokens_and_contents_over_http(
    model_server: Serve, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A list of strings and contents is one message; the usage says what came from the cache."""
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-at-all")
    server = model_server([Reply("a cat", input_tokens=100, cached_tokens=80)] * 2)
    url = server.base_url
    pictures = ["What is this?", BinaryContent(b"picture", media_type="image/png"), "Be short."]

    class Looker(Agent):
        @chat_model
        def eyes(self) -> ResourceDescriptor:
            return ChatModel(f"{kind}:gpt-5-mini", base_url=url)

        @action(InputEvent)
        async def look(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            first = await ctx.chat("eyes", pictures)
            second = await ctx.chat("eyes", pictures[1])
            used = first.usage + second.usage
            return OutputEvent(output=(first.output, used.cache_read_tokens, used.input_tokens))

    with OperatorHarness(Looker(), crash=None) as harness:
        assert harness.push("go") == [("a cat", 160, 200)]
    field = "messages" if kind == "openai-chat" else "input"
    [message] = server.requests[0].body[field]
    kinds = [part["type"].removeprefix("input_") for part in message["content"]]
    assert (message["role"], kinds) in [
        ("user", ["text", "image_url", "text"]),
        ("user", ["text", "image", "text"]),
    ]
    assert "data:image/png;base64,cGljdHVyZQ==" in str(server.requests[0].body)


def contents_of(messages: list[ModelMessage]) -> list[Any]:
    return [
        part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)
    ]


@each_case(
    "given, told",
    [
        (["one", "two"], ["one", "two"]),
        (
            ["look", BinaryContent(b"x", media_type="image/png")],
            [["look", BinaryContent(b"x", media_type="image/png")]],
        ),
        (
            BinaryContent(b"x", media_type="application/pdf"),
            [[BinaryContent(b"x", media_type="application/pdf")]],
        ),
    ],
)
def test_lists_of_strings_and_contents(given: Any, told: list[Any]) -> None:
    SAID.clear()

    class Looker(Clerk):
        @action(InputEvent)
        async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=(await ctx.chat("clerk", given)).output)

    assert talk("good", agent=Looker) == "good"
    assert contents_of(MODEL[0].asked[0]) == told
