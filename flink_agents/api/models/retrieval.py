"""What an action does with vector stores and long-term memory, and the events that ask for documents.

``ctx.vector_store(name)`` and ``ctx.long_term_memory(...)`` give these objects. Each method is a durable
call: a replay gets what was found then, and a write that is repeated after a crash changes nothing more.
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
"""How many documents are found by default."""


class ContextRetrievalRequestEvent(Event):
    """Asks for documents; a built-in action answers with a :class:`ContextRetrievalResponseEvent`.

    Attributes:
        query: What the documents should be about.
        vector_store: Name of the vector store.
        k: How many documents are found, at most.
        filter: Which documents come into question.
        collection: The collection. Default: that of the store's description.
        tag: Whatever the author wants to find in the response.
    """

    EVENT_TYPE = "_context_retrieval_request_event"

    query: str
    vector_store: str
    k: int = DEFAULT_K
    filter: dict[str, Any] | None = None
    collection: str | None = None
    tag: Any = None


class ContextRetrievalResponseEvent(Event):
    """The documents that were asked for.

    Attributes:
        request_id: ``id`` of the event that asked.
        tag: The tag of that event.
        query: What it asked.
        documents: The documents, the nearest first.
    """

    EVENT_TYPE = "_context_retrieval_response_event"

    request_id: str
    tag: Any = None
    query: str
    documents: tuple[ScoredDocument, ...]


class Collection(AwaitedMethods, ABC):
    """A collection of a vector store, as an ``async def`` action uses it; from ``ctx.vector_store(name)``."""

    called_as = "ctx.vector_store(...)"

    @abstractmethod
    async def add(self, documents: Sequence[Document]) -> list[str]:
        """Keep documents; one that has the id of another takes its place.

        A document without an id gets one that follows from the run: it is the same when the run is repeated.
        One without an embedding gets that of the store's embedding model.

        Returns:
            The ids, in the order of the documents.

        Raises:
            DocumentError: A document is none that can be kept.
            EmbeddingMismatchError: The collection has embeddings of another model.
        """

    @abstractmethod
    async def update(self, updates: Sequence[DocumentUpdate]) -> list[str]:
        """Change documents; a new text gets a new embedding. Returns the ids of those that are there."""

    @abstractmethod
    async def delete(self, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        """Remove the documents of ``ids``, or those that ``filter`` means; with both, those of both.

        Raises:
            VectorFilterError: Neither is given. :meth:`drop` removes all.
        """

    @abstractmethod
    async def drop(self) -> None:
        """Remove the collection; another embedding model may fill it again."""

    @abstractmethod
    async def get(
        self,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Document]:
        """Documents in the order of their ids, without embeddings."""

    @abstractmethod
    async def query(
        self, query: str | Sequence[float], k: int = DEFAULT_K, filter: Filter | None = None
    ) -> list[ScoredDocument]:
        """The ``k`` documents that are nearest to a text, or to a vector; the nearest first.

        Raises:
            EmbeddingMismatchError: The collection has embeddings of another model.
        """

    @abstractmethod
    async def count(self, filter: Filter | None = None) -> int:
        """How many documents there are."""


@dataclass(frozen=True)
class MemoryItem:
    """What a long-term memory keeps.

    Attributes:
        id: Its name within scope and subject.
        text: What is remembered.
        metadata: Texts, numbers and truth values by name.
        created: When it was added, or last changed: the time at which that run began.
        score: Cosine similarity to what was searched for; None where nothing was.
    """

    id: str
    text: str
    metadata: Metadata = field(default_factory=dict[str, Scalar])
    created: datetime | None = None
    score: float | None = None


Summarise = Callable[[list[str]], str | Awaitable[str]]
"""Makes one text of several, the oldest first."""


class LongTermMemory(AwaitedMethods, ABC):
    """What is known of one subject in one scope, across runs, restarts and submissions of a job."""

    called_as = "ctx.long_term_memory(...)"

    @abstractmethod
    async def add(
        self,
        text: str | Sequence[str],
        metadata: Mapping[str, Scalar] | None = None,
        ids: str | Sequence[str] | None = None,
    ) -> list[str]:
        """Remember texts. What has the id of another item takes its place.

        Args:
            text: One text, or several.
            metadata: What all of them are marked with.
            ids: As many ids as texts. Default: ids that follow from the run.

        Returns:
            The ids.
        """

    @abstractmethod
    async def search(self, query: str, k: int = DEFAULT_K, filter: Filter | None = None) -> list[MemoryItem]:
        """The ``k`` items that are nearest to ``query``, the nearest first."""

    @abstractmethod
    async def get(
        self, ids: str | Sequence[str] | None = None, filter: Filter | None = None
    ) -> list[MemoryItem]:
        """Items, the oldest first: those of ``ids``, or all."""

    @abstractmethod
    async def update(
        self, id: str, text: str | None = None, metadata: Mapping[str, Scalar] | None = None
    ) -> bool:
        """Change an item; what is None stays. Returns whether it is there."""

    @abstractmethod
    async def delete(self, ids: str | Sequence[str] | None = None, filter: Filter | None = None) -> None:
        """Forget items: those of ``ids``, those that ``filter`` means, or all of the subject."""

    @abstractmethod
    async def compact(
        self, summarise: Summarise | str | None = None, *, above: int = 20, keep: int = 10
    ) -> bool:
        """Where there are more than ``above`` items, put one summary in place of all but the newest ``keep``.

        Args:
            summarise: A function that makes one text of several, or the name of a chat model. It is called
                once, durably. Default: the chat model of the description.
            above: With so many items nothing happens.
            keep: How many of the newest ones stay as they are.

        Returns:
            Whether there were more.
        """
