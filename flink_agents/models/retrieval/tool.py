"""A vector store as a tool: the model says what it wants to know, and reads what was found."""

from __future__ import annotations

from typing import Any

from flink_agents.api.context import RunnerContext
from flink_agents.api.models.retrieval import DEFAULT_K
from flink_agents.api.resources import Tool
from flink_agents.api.vector_store import Filter


def retrieval_tool(
    store: str,
    name: str = "",
    description: str = "",
    *,
    k: int = DEFAULT_K,
    filter: Filter | None = None,
    collection: str | None = None,
) -> Tool:
    """A tool that finds documents of a vector store.

    The model gives the query alone. Filter and number are the author's: a model cannot reach documents that a
    filter leaves out.

    Args:
        store: Name of the vector store in the agent.
        name: Name of the tool. Default: ``search_`` and the name of the store.
        description: What the model is told of it.
        k: How many documents are found, at most.
        filter: Which documents come into question.
        collection: Which collection of the store. Default: that of its description.
    """

    async def search(query: str, ctx: RunnerContext) -> list[dict[str, Any]]:
        found = await ctx.retrieve(store, query, k, filter, collection)
        return [{"id": one.id, "text": one.text, "metadata": dict(one.metadata)} for one in found]

    told = description or f"Find texts in {store} that are near in meaning to a query, the nearest first."
    return Tool(search, name or f"search_{store}", told)
