"""Half of an emoji is sent as U+FFFD, and a request that cannot be written is no request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from model_agents import KEY, KEY_VARIABLE, Analyst, options
from pydantic_ai import Agent as ModelAgent, models
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flink_agents import (
    Agent,
    ChatMessage,
    ConversationHistory,
    InputEvent,
    OnError,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    embedding_model,
    tool,
)
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply, ServedRequest, ToolCall
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

HALF = "half \ud83d"
SENT = "half \ufffd"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)


class Asks(Analyst):
    """Sends what a case says."""

    ask: Callable[[RunnerContext], Any]

    @tool
    def stock_of(self, item: str) -> Any:  # type: ignore[override]
        return {HALF: [HALF], "item": item}

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    async def judge(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=(await type(self).ask(ctx)).output)


class Pair:
    pass


EARLIER = [
    ModelRequest([UserPromptPart(HALF)]),
    ModelResponse([TextPart(HALF)]),
    ModelRequest([ToolReturnPart("stock_of", {"a": HALF}, "c1")]),
]

ASKED: dict[str, Callable[[RunnerContext], Any]] = {
    "prompt": lambda ctx: ctx.chat("analyst", HALF),
    "message": lambda ctx: ctx.chat("analyst", ChatMessage(role="user", content=HALF)),
    "system message": lambda ctx: ctx.chat("analyst", [ChatMessage(role="system", content=HALF), "x"]),
    "parts": lambda ctx: ctx.chat("analyst", ["a", HALF]),
    "metadata": lambda ctx: ctx.chat("analyst", [TextContent(HALF, metadata={HALF: HALF})]),
    "messages": lambda ctx: ctx.chat("analyst", [*EARLIER[:2], "x"]),
    "instructions": lambda ctx: ctx.chat("analyst", "x", instructions=HALF),
    "settings": lambda ctx: ctx.chat("analyst", "x", settings={"stop_sequences": [HALF]}),
    "extra body": lambda ctx: ctx.chat("analyst", "x", settings={"extra_body": {HALF: HALF}}),
}


def harness_of(agent: Agent, server: ModelServer) -> OperatorHarness:
    config = {**options(server), "embedding-models.words.base_url": server.base_url}
    return OperatorHarness(agent, config=config, crash=None, forced_replay=False, forced_serialization=False)


def requests_of(harness: OperatorHarness) -> float:
    return harness.metrics["chat.analyst.requests"]


@each_case("name", ASKED)
def test_half_a_character_is_sent_as_the_replacement_character(name: str) -> None:
    agent = type("Cases", (Asks,), {"ask": staticmethod(ASKED[name])})()
    with ModelServer([Reply("good")]) as server, harness_of(agent, server) as harness:
        assert harness.push(1) == ["good"]
        assert SENT in json.dumps(server.requests[0].body, ensure_ascii=False)


def test_half_a_character_in_the_result_of_a_tool_is_sent() -> None:
    agent = type("Cases", (Asks,), {"ask": staticmethod(lambda ctx: ctx.chat("analyst", "x"))})()
    replies = [Reply(tool_calls=[ToolCall("stock_of", {"item": "tea"})]), Reply("good")]
    with ModelServer(replies) as server, harness_of(agent, server) as harness:
        assert harness.push(1) == ["good"]
        assert json.dumps(server.requests[1].body, ensure_ascii=False).count(SENT) == 2


def test_half_a_character_in_the_history_is_sent() -> None:
    agent = type(
        "Cases",
        (Asks,),
        {"ask": staticmethod(lambda ctx: ctx.chat("analyst", HALF, history=ConversationHistory()))},
    )()
    with ModelServer([Reply("good"), Reply("better")]) as server, harness_of(agent, server) as harness:
        assert harness.push(1) == ["good"] and harness.push(2) == ["better"]
        assert json.dumps(server.requests[1].body, ensure_ascii=False).count(SENT) == 2


UNSENT: dict[str, Callable[[RunnerContext], Any]] = {
    "an object": lambda ctx: ctx.chat("analyst", "x", settings={"extra_body": {"a": Pair()}}),
    "NaN": lambda ctx: ctx.chat("analyst", "x", settings={"extra_body": {"a": float("nan")}}),
    "a header": lambda ctx: ctx.chat("analyst", "x", settings={"extra_headers": {"a": "é\u20ac"}}),
}


@each_case("name", UNSENT)
def test_a_request_that_cannot_be_written_is_neither_repeated_nor_counted(name: str) -> None:
    agent = type("Cases", (Asks,), {"ask": staticmethod(UNSENT[name])})()
    with ModelServer([Reply("good")]) as server, harness_of(agent, server) as harness:
        assert harness.push(1) == []
        (letter,) = harness.dead_letters
        assert letter.error_type == "ModelRequestError" and "could not be written" in letter.error_message
        assert server.count == 0 and requests_of(harness) == 0


class Embeds(Agent):
    @embedding_model
    def words(self) -> ResourceDescriptor:
        return ResourceDescriptor(model="openai:text-embedding-3-small", api_key={"env": KEY_VARIABLE})

    @action(InputEvent)
    async def embed(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=len(await ctx.embed("words", [HALF, "b"])))


def test_half_a_character_is_embedded_as_the_replacement_character() -> None:
    vectors = [{"object": "embedding", "index": n, "embedding": [0.1, 0.2]} for n in range(2)]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    body = json.dumps({"object": "list", "model": "any", "data": vectors, "usage": usage})
    with ModelServer([Reply(body=body)]) as server, harness_of(Embeds(), server) as harness:
        assert harness.push(1) == [2]
        assert server.requests[0].body["input"] == [SENT, "b"]


def test_an_agent_of_pydantic_ai_sends_the_replacement_character() -> None:
    def answer(request: ServedRequest) -> Reply:
        done = any(message["role"] == "tool" for message in request.body["messages"])
        return Reply("good") if done else Reply(tool_calls=[ToolCall("look", {})])

    with ModelServer(answer) as server:
        provider = OpenAIProvider(base_url=server.base_url, api_key=KEY)
        model_agent = ModelAgent(
            OpenAIChatModel("gpt-5-mini", provider=provider),
            name="own", instructions=HALF, capabilities=[FlinkDurability()],
        )  # fmt: skip

        @model_agent.tool_plain
        def look() -> str:
            return HALF

        class Own(Agent):
            @action(InputEvent)
            async def ask(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
                return OutputEvent(output=(await model_agent.run(HALF)).output)

        with harness_of(Own(), server) as harness:
            assert harness.push(1) == ["good"]
        assert json.dumps(server.requests[1].body, ensure_ascii=False).count(SENT) == 3
