"""Retrieval together with chat models: a tool that finds documents, and memories that a model summarises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval_agents import Rag

from flink_agents import (
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.api.vector_store import Document
from flink_agents.models.retrieval.tool import retrieval_tool
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall

SCRIPT: list[ScriptedModel] = []
TEXTS = ("How do I reset my password?", "Shipping to Norway takes five days")


def scripted() -> ScriptedModel:
    return SCRIPT[0]


class Talks(Rag):
    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel(clazz=scripted)

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:  # pyright: ignore[reportIncompatibleMethodOverride]
        if event.input == "compact":
            memory = ctx.long_term_memory()
            await memory.add(["likes tea", "has a dog", "is called Ada"])
            await memory.compact("analyst", above=2, keep=1)
            return OutputEvent(output=[memory_item.text for memory_item in await memory.get()])
        await ctx.vector_store("docs").add([Document(text, str(n)) for n, text in enumerate(TEXTS)])
        answer = await ctx.chat("analyst", event.input, tools=[retrieval_tool("docs", k=1)])
        return OutputEvent(output=(answer.output, str(answer.messages)))


def drive(agent_harness: Callable[..., OperatorHarness], tmp_path: Path) -> OperatorHarness:
    agent = Talks(str(tmp_path / "vectors.sqlite"))
    config = {"job-identifier": "job"}
    return agent_harness(agent, config=config, crash="everywhere", forced_serialization=False)


def test_a_model_reads_what_a_tool_finds(
    agent_harness: Callable[..., OperatorHarness], tmp_path: Path
) -> None:
    SCRIPT[:] = [ScriptedModel([ToolCall("search_docs", {"query": "delivery abroad"}), "five days"])]
    ((answer, messages),) = drive(agent_harness, tmp_path).push("How long does it take?")
    assert answer == "five days"
    assert TEXTS[1] in messages and TEXTS[0] not in messages
    assert SCRIPT[0].count == 2


def test_a_model_summarises_memories(agent_harness: Callable[..., OperatorHarness], tmp_path: Path) -> None:
    SCRIPT[:] = [ScriptedModel(["likes tea and has a dog"])]
    assert drive(agent_harness, tmp_path).push("compact") == [["likes tea and has a dog", "is called Ada"]]
    assert SCRIPT[0].count == 1
