"""A vector store as a tool: the model sends a query, and reads the documents that were found."""

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
    """Return a tool that finds documents of a vector store.

    The model chooses only the query. You set filter and number, so a model cannot read documents that the
    filter excludes.

    Args:
        store: Name of the vector store in the agent.
        name: Name of the tool. Default: ``search_`` and the name of the store.
        description: Description of the tool for the model. Default: a sentence with the store's name.
        k: Maximum number of documents in the result.
        filter: Search only among documents whose metadata match. Default: among all.
        collection: Name of the collection. Default: the collection in the store's description.
    """

    async def search(query: str, ctx: RunnerContext) -> list[dict[str, Any]]:
        documents = await ctx.retrieve(store, query, k, filter, collection)
        return [
            {"id": document.id, "text": document.text, "metadata": dict(document.metadata)}
            for document in documents
        ]

    tool_description = (
        description or f"Find texts in {store} that are near in meaning to a query, the nearest first."
    )
    return Tool(search, name or f"search_{store}", tool_description)
