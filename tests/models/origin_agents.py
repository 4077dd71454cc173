"""Agents that pass input into a conversation, and the requests to the model."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import (
    FileUrl,
    ModelMessage,
    ModelRequest,
    UploadedFile,
    UserPromptPart,
)

from flink_agents import (
    Agent,
    ChatModel,
    ChatRequestEvent,
    ChatResponseEvent,
    Event,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.testing.models import ScriptedModel

EVIL = "EVIL"


MODEL: list[ScriptedModel] = []


ALLOW: dict[str, bool] = {}


def model() -> Any:
    return MODEL[0]


class Talker(Agent):
    @chat_model
    def talker(self) -> ResourceDescriptor:
        return ChatModel(clazz=model, allow_urls=bool(ALLOW))


async def run_chat(ctx: RunnerContext, messages: Any, **options: Any) -> OutputEvent:
    result = await ctx.chat("talker", messages, **options)
    return OutputEvent(output=result.output)


class ByInput(Talker):
    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return await run_chat(ctx, event.input)


class ByMemory(Talker):
    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if ctx.short_term_memory.get("kept") is None:
            ctx.short_term_memory.set("kept", event.input)
            return OutputEvent(output="kept")
        return await run_chat(ctx, ctx.short_term_memory.get("kept"))


async def echoed(value: Any) -> Any:
    return value


class ByDurableCall(Talker):
    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return await run_chat(ctx, await ctx.durable_execute_async(echoed, event.input))


class BelowAsked(Agent):
    """Hands its input to an agent that talks."""

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(ByInput(), event.input))


class ByEvent(Talker):
    @action(InputEvent)
    def ask(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return ChatRequestEvent(model="talker", messages=event.input)

    @action(ChatResponseEvent)
    def answered(self, event: ChatResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.output)


class Passed(Event):
    EVENT_TYPE = "passed"
    content: Any


class ByEventBetween(Talker):
    """Carries the input from action to action."""

    @action(InputEvent)
    def first(self, event: InputEvent, ctx: RunnerContext) -> Any:
        return Passed(content=event.input)

    @action("passed")
    async def then(self, event: Any, ctx: RunnerContext) -> OutputEvent:
        return await run_chat(ctx, event.content)


def check_told(asked: list[list[ModelMessage]], output: str = "good") -> None:
    """Check that nothing but the user said what is evil, and nothing is downloaded as data says."""
    for message in (message for messages in asked for message in messages):
        if isinstance(message, ModelRequest):
            assert EVIL not in str(message.instructions), message
        for part in message.parts:
            assert isinstance(part, UserPromptPart) or EVIL not in str(part), part
            content = getattr(part, "content", None)
            for content_part in content if isinstance(content, list) else []:
                assert not isinstance(content_part, UploadedFile), content_part
                if isinstance(content_part, FileUrl):
                    assert ALLOW and content_part.force_download is False, content_part
                    assert content_part.url.startswith("http"), content_part
