"""A collection for actions: embeds texts, and makes each access to the store a durable step.

Records hold plain values. A write is repeated if the process crashed between the write and its record. The
repeated write uses the same ids, so that it writes the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    is_vector,
)
from flink_agents.models.retrieval.embedding import EmbeddingModelResource
from flink_agents.models.retrieval.store_calls import StoreCalls

T = TypeVar("T")


class StoreCollection(Collection):
    """A collection of a vector store, as one action uses it.

    Args:
        store: Name of the vector store.
        calls: The functions of its durable calls.
        model: Returns its embedding model, if it has one.
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
        model = self._model()
        if model is None:
            raise ResourceUnavailableError(
                f"the vector store {self._store!r} has no embedding model",
                expected="embedding_model=... in its description, or embeddings of documents and queries",
                fix="name an embedding model of the agent",
            )
        return model

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        what = DurableCallable(method, name=f"vector_store:{self._store}.{method.__name__}")
        return await self._ctx.durable_execute_async(what, self._name, *arguments)

    @override
    async def add(self, documents: Sequence[Document]) -> list[str]:
        documents = _all_of(Document, documents)
        for one in documents:
            check_document(one if one.id else replace(one, id="(derived)"))
        if not documents:
            return []
        space, vectors = await self._embedded(
            [(one.text, one.embedding) for one in documents], [one.id for one in documents]
        )
        rows = [
            [one.id, one.text, dict(one.metadata), vector]
            for one, vector in zip(documents, vectors, strict=True)
        ]
        return await self._call(self._calls.add, [space.dimension, space.model], rows)

    @override
    async def update(self, updates: Sequence[DocumentUpdate]) -> list[str]:
        updates = _all_of(DocumentUpdate, updates)
        for one in updates:
            check_document(one)
        changed = [one for one in updates if one.text is not None or one.embedding is not None]
        space, vectors = None, dict[str, bytes]()
        if changed:
            found, blobs = await self._embedded(
                [(one.text or "", one.embedding) for one in changed], [one.id for one in changed]
            )
            space = [found.dimension, found.model]
            vectors = dict(zip((one.id for one in changed), blobs, strict=True))
        rows = [
            [one.id, one.text, None if one.metadata is None else dict(one.metadata), vectors.get(one.id)]
            for one in updates
        ]
        return await self._call(self._calls.update, space, rows) if rows else []

    async def _embedded(
        self, given: Sequence[tuple[str, Sequence[float] | None]], ids: Sequence[str]
    ) -> tuple[VectorSpace, list[bytes]]:
        """Return the vectors of texts; vectors that the author passed are kept."""
        own = [np.asarray(vector, "<f4").tobytes() for _, vector in given if vector is not None]
        texts = [text for text, vector in given if vector is None]
        spaces: list[VectorSpace] = []
        if own:
            model = self._model()
            name = model.begin(self._ctx).model if model is not None else ""
            spaces = [VectorSpace(len(blob) // 4, name) for blob in own]
        made: Sequence[bytes] = ()
        if texts:
            embeddings = await self._embedding_model.embed(self._ctx, texts)
            spaces.append(embeddings.space)
            made = embeddings.blobs
        if len(set(spaces)) != 1:
            raise EmbeddingMismatchError(
                f"documents for {self._name!r} have embeddings that cannot be compared",
                expected="embeddings of one length",
                found=", ".join(sorted({f"{one.dimension} dimensions" for one in spaces})),
                fix="omit embeddings, so that the store's model computes them, or pass them for all "
                "documents",
            )
        givens, makes = iter(own), iter(made)
        return spaces[0], [next(makes) if vector is None else next(givens) for _, vector in given]

    @override
    async def delete(self, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        if ids is None and not filter:
            raise VectorFilterError(
                "delete needs ids or a filter",
                expected="ids, or a filter that is not empty",
                fix="call drop() to remove the collection",
            )
        await self._call(self._calls.delete, _ids(ids), _checked(filter))

    @override
    async def drop(self) -> None:
        await self._call(self._calls.drop)

    @override
    async def get(
        self,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Document]:
        found = await self._call(self._calls.get, _ids(ids), _checked(filter), limit, offset)
        return [Document(text, id, metadata) for id, text, metadata in found]

    @override
    async def query(
        self, query: str | Sequence[float], k: int = DEFAULT_K, filter: Filter | None = None
    ) -> list[ScoredDocument]:
        filter = _checked(filter)
        if k < 1:
            raise VectorFilterError(
                "a query asks for fewer than one document", expected="k of at least 1", found=str(k)
            )
        if isinstance(query, str):
            embeddings = await self._embedding_model.embed(self._ctx, [query], "query")
            space, (vector,) = embeddings.space, embeddings.blobs
        else:
            if not is_vector(query):
                raise VectorFilterError(
                    "a query vector has invalid numbers",
                    expected="numbers that are finite as float32, below 3.4e38",
                    found=str(list(query))[:200],
                    fix="check the model that created it, or query with a text",
                )
            vector = np.asarray(query, "<f4").tobytes()
            space = VectorSpace(len(query))
        found = await self._call(self._calls.query, [space.dimension, space.model], vector, k, filter)
        return [ScoredDocument(text, id, metadata, None, score) for id, text, metadata, score in found]

    @override
    async def count(self, filter: Filter | None = None) -> int:
        return await self._call(self._calls.count, _checked(filter))


def _all_of(kind: type[T], given: Any) -> list[T]:
    """Return one value, or several, as a list.

    Raises:
        DocumentError: One of them has another type.
    """
    many = isinstance(given, Iterable) and not isinstance(given, str)
    several: list[Any] = list(given) if many else [given]
    for one in several:
        if not isinstance(one, kind):
            raise DocumentError(
                f"a vector store got a value that is not a {kind.__name__}",
                expected=f"a list of {kind.__name__} objects",
                found=f"{type(one).__name__} {one!r}"[:200],
                fix=f"pass [{kind.__name__}(...)]",
            )
    return several


def _ids(ids: Sequence[str] | None) -> list[str] | None:
    if isinstance(ids, str):
        raise DocumentError(
            "ids are a string", expected="a list of ids", found=repr(ids), fix=f"pass [{ids!r}]"
        )
    return None if ids is None else list(ids)


def _checked(filter: Filter | None) -> dict[str, Any] | None:
    """Validate a filter and return it as a plain value."""
    parse_filter(filter)
    return None if filter is None else _plain(filter)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
