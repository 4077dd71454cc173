"""A collection for actions: embeds texts, and makes each access to the store a durable step.

Records hold plain values. A write is repeated if the process crashed between the write and its record. The
repeated write uses the same ids, so that it writes the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from typing_extensions import override

from flink_agents.api.context import RunnerContext
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import (
    DocumentError,
    EmbeddingMismatchError,
    ResourceUnavailableError,
    VectorFilterError,
)
from flink_agents.api.models.retrieval import DEFAULT_K, Collection
from flink_agents.api.models.vector_filters import parse_filter
from flink_agents.api.vector_store import (
    Document,
    DocumentUpdate,
    Filter,
    ScoredDocument,
    VectorSpace,
    check_document,
    check_number,
    check_page,
    check_query,
)
from flink_agents.models.retrieval.embedding import EmbeddingModelResource
from flink_agents.models.retrieval.store_calls import StoreCalls

T = TypeVar("T")


class StoreCollection(Collection):
    """A collection of a vector store, as one action uses it.

    Args:
        store: Name of the vector store.
        calls: The functions of its durable steps.
        model: Returns the embedding model of the store; None if it has none.
        ctx: The context of the action.
        name: Name of the collection.
    """

    def __init__(
        self,
        store: str,
        calls: StoreCalls,
        model: Callable[[], EmbeddingModelResource | None],
        ctx: RunnerContext,
        name: str,
    ) -> None:
        self._store = store
        self._calls = calls
        self._model = model
        self._ctx = ctx
        self._name = name

    @property
    def _embedding_model(self) -> EmbeddingModelResource:
        """The embedding model of the store; ResourceUnavailableError if it has none."""
        model = self._model()
        if model is None:
            raise ResourceUnavailableError(
                f"the vector store {self._store!r} has no embedding model",
                expected="embedding_model=... in its description, or embeddings of documents and queries",
                fix="name an embedding model of the agent",
            )
        return model

    async def _call_store(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of :class:`StoreCalls` with this collection, as a durable step."""
        step = DurableCallable(method, name=f"vector_store:{self._store}.{method.__name__}")
        return await self._ctx.durable_execute_async(step, self._name, *arguments)

    @override
    async def add(self, documents: Sequence[Document]) -> list[str]:
        documents = _check_objects(Document, documents)
        for document in documents:
            check_document(document if document.id else replace(document, id="(derived)"))
        if not documents:
            return []
        space, vectors = await self._embed_texts(
            [(document.text, document.embedding) for document in documents],
            [document.id for document in documents],
        )
        rows = [
            [document.id, document.text, dict(document.metadata), vector]
            for document, vector in zip(documents, vectors, strict=True)
        ]
        return await self._call_store(self._calls.add, [space.dimension, space.model], rows)

    @override
    async def update(self, updates: Sequence[DocumentUpdate]) -> list[str]:
        updates = _check_objects(DocumentUpdate, updates)
        for update in updates:
            check_document(update)
        vector_updates = [
            update for update in updates if update.text is not None or update.embedding is not None
        ]
        space = None
        vectors = dict[str, bytes]()
        if vector_updates:
            vector_space, blobs = await self._embed_texts(
                [(update.text or "", update.embedding) for update in vector_updates],
                [update.id for update in vector_updates],
            )
            space = [vector_space.dimension, vector_space.model]
            vectors = dict(zip((update.id for update in vector_updates), blobs, strict=True))
        rows = [
            [
                update.id,
                update.text,
                None if update.metadata is None else dict(update.metadata),
                vectors.get(update.id),
            ]
            for update in updates
        ]
        return await self._call_store(self._calls.update, space, rows) if rows else []

    async def _embed_texts(
        self, text_vector_pairs: Sequence[tuple[str, Sequence[float] | None]], ids: Sequence[str]
    ) -> tuple[VectorSpace, list[bytes]]:
        """Return a vector for each text as float32 bytes, and their space; waits for the embedding model.

        Args:
            text_vector_pairs: Each text with the vector that the author passed; None to compute it.
            ids: Ids of the documents.

        Raises:
            EmbeddingMismatchError: The vectors have different lengths or models.
            ResourceUnavailableError: A vector has to be computed, and the store has no embedding model.
        """
        passed_blobs = [
            np.asarray(vector, "<f4").tobytes() for _, vector in text_vector_pairs if vector is not None
        ]
        texts = [text for text, vector in text_vector_pairs if vector is None]
        spaces: list[VectorSpace] = []
        if passed_blobs:
            model = self._model()
            name = model.configure(self._ctx).model if model is not None else ""
            spaces = [VectorSpace(len(blob) // 4, name) for blob in passed_blobs]
        computed_blobs: Sequence[bytes] = ()
        if texts:
            embeddings = await self._embedding_model.embed(self._ctx, texts)
            spaces.append(embeddings.space)
            computed_blobs = embeddings.blobs
        if len(set(spaces)) != 1:
            raise EmbeddingMismatchError(
                f"documents for {self._name!r} have embeddings that cannot be compared",
                expected="embeddings of one length",
                found=", ".join(sorted({f"{space.dimension} dimensions" for space in spaces})),
                fix="omit embeddings, so that the store's model computes them, or pass them for all "
                "documents",
            )
        passed = iter(passed_blobs)
        computed = iter(computed_blobs)
        blobs = [next(computed) if vector is None else next(passed) for _, vector in text_vector_pairs]
        return spaces[0], blobs

    @override
    async def delete(self, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        if ids is None and not filter:
            raise VectorFilterError(
                "delete needs ids or a filter",
                expected="ids, or a filter that is not empty",
                fix="call drop() to remove the collection",
            )
        await self._call_store(self._calls.delete, _list_ids(ids), _check_filter(filter))

    @override
    async def drop(self) -> None:
        await self._call_store(self._calls.drop)

    @override
    async def get(
        self,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Document]:
        check_page(limit, offset)
        rows = await self._call_store(
            self._calls.get,
            _list_ids(ids),
            _check_filter(filter),
            None if limit is None else int(limit),
            int(offset),
        )
        return [Document(text, id, metadata) for id, text, metadata in rows]

    @override
    async def query(
        self, query: str | Sequence[float], k: int = DEFAULT_K, filter: Filter | None = None
    ) -> list[ScoredDocument]:
        filter = _check_filter(filter)
        if isinstance(query, str):
            check_number("k", k, 1)
            embeddings = await self._embedding_model.embed(self._ctx, [query], "query")
            space = embeddings.space
            (vector,) = embeddings.blobs
        else:
            space = VectorSpace(len(query) if isinstance(query, Sized) else 0)
            check_query(space, query, k)
            vector = np.asarray(query, "<f4").tobytes()
        rows = await self._call_store(self._calls.query, [space.dimension, space.model], vector, k, filter)
        return [ScoredDocument(text, id, metadata, None, score) for id, text, metadata, score in rows]

    @override
    async def count(self, filter: Filter | None = None) -> int:
        return await self._call_store(self._calls.count, _check_filter(filter))


def _check_objects(kind: type[T], values: Any) -> list[T]:
    """Return an author's objects as a list, if all are of class ``kind``; a single one is a list of one.

    Raises:
        DocumentError: An object has another type.
    """
    is_iterable = isinstance(values, Iterable) and not isinstance(values, str)
    objects: list[Any] = list(values) if is_iterable else [values]
    for value in objects:
        if not isinstance(value, kind):
            raise DocumentError(
                f"a vector store got a value that is not a {kind.__name__}",
                expected=f"a list of {kind.__name__} objects",
                found=f"{type(value).__name__} {value!r}"[:200],
                fix=f"pass [{kind.__name__}(...)]",
            )
    return objects


def _list_ids(ids: Sequence[str] | None) -> list[str] | None:
    """Return ids as a list; None if there are none. DocumentError for a single string."""
    if isinstance(ids, str):
        raise DocumentError(
            "ids are a string", expected="a list of ids", found=repr(ids), fix=f"pass [{ids!r}]"
        )
    return None if ids is None else list(ids)


def _check_filter(filter: Filter | None) -> dict[str, Any] | None:
    """Check a filter, and return it as dictionaries, lists and scalars; None if there is none.

    Raises:
        VectorFilterError: The filter is invalid.
    """
    parse_filter(filter)
    return None if filter is None else _copy_plain(filter)


def _copy_plain(value: Any) -> Any:
    """Return a value with dictionaries and lists in place of other mappings and tuples."""
    if isinstance(value, Mapping):
        return {name: _copy_plain(member) for name, member in value.items()}
    return [_copy_plain(member) for member in value] if isinstance(value, list | tuple) else value
