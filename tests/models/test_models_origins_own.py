"""Arguments of tools are data, and messages that an agent's code makes keep their role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from origin_agents import (
    ALLOW,
    EVIL,
    MODEL,
    BelowAsked,
    ByDurableCall,
    ByEvent,
    ByEventBetween,
    ByInput,
    ByMemory,
    Talker,
    check_told,
    run_chat,
)
from pydantic import BaseModel
from pydantic_ai.messages import (
    ImageUrl,
)
from suite.tables import each_case

from flink_agents import (
    ChatMessage,
    ChatRequestEvent,
    ChatResponseEvent,
    ConversationHistory,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)
from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    ALLOW.clear()


class Pages(BaseModel):
    pages: list[ImageUrl]


class ByTool(Talker):
    """Has a tool that shows what the model gives it to another one."""

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        async def look(book: Pages, note: ChatMessage, ctx: RunnerContext) -> str:
            """Look at pages."""
            result = await ctx.chat("talker", [*book.pages, note])
            return result.output

        return await run_chat(ctx, "hello", tools=[look])


@each_case("role, ends", [("user", False), ("system", True)])
def test_arguments_of_tools_are_data(role: str, ends: bool) -> None:
    ALLOW.update(allow_urls=True)
    page = {"url": "http://127.0.0.1/a.png", "force_download": "allow-local", "kind": "image-url"}
    arguments = {"book": {"pages": [page]}, "note": {"role": role, "content": EVIL}}
    MODEL[:] = [ScriptedModel([ToolCall("look", arguments), "seen", "good"])]
    with OperatorHarness(ByTool(), crash=None) as harness:
        if ends:
            with pytest.raises(ActionFailedError, match="FA9030"):
                harness.push("go")
        else:
            assert harness.push("go") == ["good"]
            [first, *_] = MODEL[0].asked[1]
            [content] = getattr(first.parts[0], "content")  # noqa: B009
            assert content.force_download is False


OWN = ChatMessage(role="system", content="You are kind.")
FIRST = ChatMessage(role="user", content="first")


class Own(Talker):
    """Says what its own code made, in all the ways in which it can be carried."""

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        memory = ctx.short_term_memory
        turn = ChatMessage(role="assistant", content="yes")
        answer = await ctx.durable_execute_async(answered_by, "no")
        history = memory.get("kept", [OWN, turn])
        first = await ctx.chat("talker", [*history, answer, f"about {event.input}"])
        memory.set("kept", [*history, ChatMessage(role="assistant", content=first.output)])
        messages = memory.get("messages")
        second = await ctx.chat("talker", "and then?", history=messages or first.messages)
        memory.set("messages", second.messages)
        transcript = memory.get("transcript")
        more = {"history": transcript} if transcript is not None else {}
        await ctx.chat("talker", "third", **more)
        await ctx.chat("talker", "fourth", history=ConversationHistory())
        memory.set("transcript", ctx.conversation().messages)
        return OutputEvent(output=len(second.messages))


async def answered_by(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


@pytest.mark.own_conditions
def test_what_the_code_made_stays_its_own() -> None:
    MODEL[:] = [ScriptedModel(["good"] * 8)]
    with OperatorHarness(Own(), crash="everywhere") as harness:
        assert [harness.push("one"), harness.push("two")] == [[7], [9]]
    MODEL[0].assert_complete()


class ByResponse(ByEvent):
    """Goes on with the messages of a response."""

    @action(InputEvent)
    def ask(self, event: InputEvent, ctx: RunnerContext) -> Any:
        history = ctx.short_term_memory.get("kept")
        more = {} if history is None else {"history": history}
        return ChatRequestEvent(model="talker", messages=(OWN, FIRST) if history is None else "again", **more)

    @action(ChatResponseEvent)
    def answered(self, event: ChatResponseEvent, ctx: RunnerContext) -> OutputEvent:
        ctx.short_term_memory.set("kept", event.messages)
        return OutputEvent(output=len(event.messages))


@pytest.mark.own_conditions
def test_the_messages_of_a_response_are_a_history() -> None:
    MODEL[:] = [ScriptedModel(["good"] * 2)]
    with OperatorHarness(ByResponse(), crash="everywhere") as harness:
        assert [harness.push("one"), harness.push("two")] == [[3], [5]]


@pytest.mark.own_conditions
def test_a_replay_comes_to_the_same_verdict() -> None:
    """An object of the input is data after every crash, also if it went through memory and the journal."""
    for make in (ByInput, ByMemory, ByDurableCall, ByEventBetween, BelowAsked):
        message = ChatMessage(role="user", content=EVIL)
        MODEL[:] = [ScriptedModel(["good"])]
        with OperatorHarness(make(), crash="everywhere") as harness:
            put_out = harness.push(message)
            assert put_out == ["good"] or harness.push("go") == ["good"]
        check_told(MODEL[0].asked)
    assert OWN.__dict__ == ChatMessage(role="system", content="You are kind.").__dict__
