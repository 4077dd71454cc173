"""The built-in action that answers requests for documents."""

from __future__ import annotations

from flink_agents.api.context import RunnerContext
from flink_agents.api.models.retrieval import ContextRetrievalRequestEvent, ContextRetrievalResponseEvent


async def answer_context_retrieval_request(
    event: ContextRetrievalRequestEvent, ctx: RunnerContext
) -> ContextRetrievalResponseEvent:
    """Search for the documents that an event requests, and return the response event."""
    documents = await ctx.retrieve(event.vector_store, event.query, event.k, event.filter, event.collection)
    return ContextRetrievalResponseEvent(
        request_id=event.id or "", tag=event.tag, query=event.query, documents=tuple(documents)
    )
