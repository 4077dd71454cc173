"""Agents for the tests of retrieval."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from flink_agents import (
    Agent,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    embedding_model,
    long_term_memory,
    vector_store,
)
from flink_agents.api.vector_store import Document, DocumentUpdate

WORDS = "wordllama:l2_supercat_256"


class Rag(Agent):
    """Adds what it is told, and finds what it is asked for.

    Args:
        path: File of the store.
        dimensions: Length of vectors.
    """

    def __init__(self, path: str, dimensions: int = 256) -> None:
        self.path = path
        self.dimensions = dimensions

    @embedding_model
    def words(self) -> ResourceDescriptor:
        return ResourceDescriptor(model=WORDS, dimensions=self.dimensions, batch_size=2)

    @vector_store
    def docs(self) -> ResourceDescriptor:
        return ResourceDescriptor(path=self.path, embedding_model="words")

    @long_term_memory(name="long_term_memory")
    def memory(self) -> ResourceDescriptor:
        return ResourceDescriptor(vector_store="docs")

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> AsyncIterator[OutputEvent]:
        for name, *arguments in event.input:
            do = with_store if name in STORE else with_memory
            yield OutputEvent(output=await do(ctx, name, arguments))


async def with_store(ctx: RunnerContext, name: str, arguments: list[Any]) -> Any:
    """What has to do with documents: its durable calls are named here, where the analysis of code looks."""
    docs = ctx.vector_store("docs")
    match name, arguments:
        case "add", texts:
            return await docs.add(
                [Document(new_text, metadata={"size": len(new_text)}) for new_text in texts]
            )
        case "add_as", [id, text]:
            return await docs.add([Document(text, id)])
        case "update", [id, text]:
            return await docs.update([DocumentUpdate(id, text)])
        case "delete", [filter]:
            return await docs.delete(filter=filter)
        case "find", [query, *options]:
            return [document.text for document in await ctx.retrieve("docs", query, *(options or [1]))]
        case "all", []:
            return [document.text for document in await docs.get()]
    raise AssertionError(name)


async def with_memory(ctx: RunnerContext, name: str, arguments: list[Any]) -> Any:
    """What has to do with memory."""
    match name, arguments:
        case "remember", texts:
            return await ctx.long_term_memory().add(texts)
        case "remember of", [subject, scope, *texts]:
            return await ctx.long_term_memory(scope, subject).add(texts)
        case "recall", [query, *options]:
            return [
                memory_item.text
                for memory_item in await ctx.long_term_memory().search(query, *(options or [1]))
            ]
        case "recall all", [*of]:
            return [memory_item.text for memory_item in await ctx.long_term_memory(*of).get()]
        case "compact", [above, keep]:
            return await ctx.long_term_memory().compact(join, above=above, keep=keep)
    raise AssertionError(name)


def join(texts: list[str]) -> str:
    return " + ".join(texts)


STORE = ("add", "add_as", "update", "delete", "find", "all")
