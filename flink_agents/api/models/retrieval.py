"""Vector stores and long-term memory in actions, and events that request documents.

``ctx.vector_store(name)`` and ``ctx.long_term_memory(...)`` return these objects. Each method is a durable
step: a replay returns the recorded result, and a write that is repeated after a crash has no further effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flink_agents.api.common.awaited import AwaitedMethods
from flink_agents.api.events import Event
from flink_agents.api.vector_store import (
    Document,
    DocumentUpdate,
    Filter,
    Metadata,
    Scalar,
    ScoredDocument,
)

DEFAULT_K = 4
"""Default number of documents in a result."""


class ContextRetrievalRequestEvent(Event):
    """A request for documents; a built-in action answers with a :class:`ContextRetrievalResponseEvent`.

    Attributes:
        query: Text whose embedding the documents are compared with.
        vector_store: Name of the vector store.
        k: Maximum number of documents.
        filter: Condition on their metadata, such as ``{"year": {"$gte": 2020}}``. Default: all documents.
        collection: Name of the collection. Default: the collection in the store's description.
        tag: Any value that the response should repeat.
    """

    EVENT_TYPE = "_context_retrieval_request_event"

    query: str
    vector_store: str
    k: int = DEFAULT_K
    filter: dict[str, Any] | None = None
    collection: str | None = None
    tag: Any = None


class ContextRetrievalResponseEvent(Event):
    """The requested documents.

    Attributes:
        request_id: ``id`` of the request event.
        tag: The tag of that event.
        query: The query of the request.
        documents: The documents, the nearest first.
    """

    EVENT_TYPE = "_context_retrieval_response_event"

    request_id: str
    tag: Any = None
    query: str
    documents: tuple[ScoredDocument, ...]


class Collection(AwaitedMethods, ABC):
    """A collection of a vector store in an ``async def`` action; from ``ctx.vector_store(name)``."""

    called_as = "ctx.vector_store(...)"

    @abstractmethod
    async def add(self, documents: Sequence[Document]) -> list[str]:
        """Add documents; a document replaces one with the same id.

        A document without an id gets one that derives from the run, so it is the same when the run is
        repeated. If a document has no embedding, the store's embedding model computes it.

        Returns:
            The ids, in the order of the documents.

        Raises:
            DocumentError: A document cannot be stored.
            EmbeddingMismatchError: The collection has embeddings of another model.
        """

    @abstractmethod
    async def update(self, updates: Sequence[DocumentUpdate]) -> list[str]:
        """Change documents, and return the ids of those that exist; others are skipped.

        A new text gets a new embedding.

        Raises:
            DocumentError: A change cannot be stored.
        """

    @abstractmethod
    async def delete(self, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        """Remove the documents that have one of the ``ids``, match ``filter``, or both if you pass both.

        Raises:
            VectorFilterError: Neither is passed, or the filter is invalid. :meth:`drop` removes all.
        """

    @abstractmethod
    async def drop(self) -> None:
        """Remove the collection; then another embedding model may fill it."""

    @abstractmethod
    async def get(
        self,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Document]:
        """Return documents in the order of their ids, without embeddings.

        Args:
            ids: Return only documents with one of these ids; others are skipped.
            filter: Return only documents that match.
            limit: Maximum number of documents. Default: no limit.
            offset: Number of matching documents to skip at the start.

        Raises:
            VectorFilterError: The filter is invalid.
        """

    @abstractmethod
    async def query(
        self, query: str | Sequence[float], k: int = DEFAULT_K, filter: Filter | None = None
    ) -> list[ScoredDocument]:
        """Return the ``k`` documents that are nearest to a text or a vector, the nearest first.

        Args:
            query: A text, which the store's embedding model turns into a vector; or the vector itself.
            k: Maximum number of documents.
            filter: Search only among documents that match.

        Raises:
            EmbeddingMismatchError: The collection has embeddings of another model or dimension.
            VectorFilterError: The filter is invalid.
        """

    @abstractmethod
    async def count(self, filter: Filter | None = None) -> int:
        """Return the number of documents that match ``filter``. Default: of all documents."""


@dataclass(frozen=True)
class MemoryItem:
    """An item of a long-term memory.

    Attributes:
        id: Its id within scope and subject.
        text: The remembered text.
        metadata: Strings, numbers and bools by name.
        created: Start of the run that changed it last, in UTC; None if unknown.
        score: Cosine similarity to the query; None without a query.
    """

    id: str
    text: str
    metadata: Metadata = field(default_factory=dict[str, Scalar])
    created: datetime | None = None
    score: float | None = None


Summarise = Callable[[list[str]], str | Awaitable[str]]
"""Makes one text of several; the oldest comes first."""


class LongTermMemory(AwaitedMethods, ABC):
    """The memory of one subject in one scope, across runs, restarts and submissions of a job."""

    called_as = "ctx.long_term_memory(...)"

    @abstractmethod
    async def add(
        self,
        text: str | Sequence[str],
        metadata: Mapping[str, Scalar] | None = None,
        ids: str | Sequence[str] | None = None,
    ) -> list[str]:
        """Add texts; a text replaces an item with the same id.

        Args:
            text: One text, or several.
            metadata: Strings, numbers and bools by name, for each of the texts.
            ids: An id for each text. Default: ids that derive from the run.

        Returns:
            The ids, in the order of the texts.

        Raises:
            DocumentError: A text, an id or the metadata cannot be stored.
        """

    @abstractmethod
    async def search(self, query: str, k: int = DEFAULT_K, filter: Filter | None = None) -> list[MemoryItem]:
        """Return the ``k`` items whose texts are nearest to ``query``, the nearest first.

        With a filter, only items whose metadata match.
        """

    @abstractmethod
    async def get(
        self, ids: str | Sequence[str] | None = None, filter: Filter | None = None
    ) -> list[MemoryItem]:
        """Return items, the oldest first: those with ``ids``, or all. A filter selects among them."""

    @abstractmethod
    async def update(
        self, id: str, text: str | None = None, metadata: Mapping[str, Scalar] | None = None
    ) -> bool:
        """Change text or metadata of an item; None changes nothing. Return True if the item exists."""

    @abstractmethod
    async def delete(self, ids: str | Sequence[str] | None = None, filter: Filter | None = None) -> None:
        """Remove items: those with ``ids``, those that match ``filter``, or all of scope and subject."""

    @abstractmethod
    async def compact(
        self, summarise: Summarise | str | None = None, *, above: int = 20, keep: int = 10
    ) -> bool:
        """Replace all items but the newest ``keep`` by one summary, if there are more than ``above``.

        Args:
            summarise: A function that makes one text of several, or the name of a chat model. It runs as one
                durable step. Default: the chat model of the description.
            above: Maximum number of items that stay as they are.
            keep: Number of newest items that are kept.

        Returns:
            True if there were more items, and so the memory was compacted.
        """
