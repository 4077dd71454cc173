"""Vector stores by name, and the functions of the durable calls to one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from flink_agents.api.common.providers import Providers
from flink_agents.api.errors import UnknownStoreError
from flink_agents.api.vector_store import Document, DocumentUpdate, VectorSpace, VectorStore
from flink_agents.models.setup.classes import create_instance

VECTOR_STORES = Providers(
    "flink_agents.vector_stores",
    "vector store",
    UnknownStoreError,
    {
        "sqlite": "flink_agents.models.retrieval.sqlite.store:SQLiteVectorStore",
        "chroma": "flink_agents.models.retrieval.chroma:ChromaVectorStore",
    },
)
"""Each provider is a class or a function that creates a store from a mapping of options."""


def open_vector_store(name: str, options: Mapping[str, Any]) -> VectorStore:
    """Open a vector store.

    Args:
        name: Name of the store: ``sqlite``, ``chroma``, or an installed one.
        options: Its options.

    Raises:
        UnknownStoreError: The store does not exist, or cannot be imported.
        ValueError: An option is unknown, or its value is invalid.
    """
    return VECTOR_STORES.create_object(name, VectorStore, dict(options))


class StoreCalls:
    """The functions of a vector store's durable steps. They take and return plain values, and run in threads.

    A space is a list of dimension and model, and a vector is bytes of float32. A row is a list of id, text,
    metadata, and, where it is passed or requested, vector or score.

    Args:
        name: Name of the store, which the first use opens.
        options: Its options.
        clazz: Class or function that creates the store instead, as ``module:qualname``; may be empty.
    """

    def __init__(self, name: str, options: Mapping[str, Any], clazz: str = "") -> None:
        self._name = name
        self._options = options
        self._clazz = clazz

    @cached_property
    def store(self) -> VectorStore:
        """The store; the first use opens it."""
        if self._clazz:
            return create_instance(self._clazz, VectorStore, "the vector store", dict(self._options))
        return open_vector_store(self._name, self._options)

    def close(self) -> None:
        """Close the store, if it was used."""
        if "store" in self.__dict__:
            self.store.close()

    def add(
        self, collection: str, space: list[Any], rows: list[list[Any]], idempotency_key: str
    ) -> list[str]:
        """Add documents, and return their ids; one without an id gets one that all attempts share."""
        documents = [
            Document(text, id or f"{idempotency_key}-{index}", metadata, _numbers(vector))
            for index, (id, text, metadata, vector) in enumerate(rows)
        ]
        self.store.add(collection, VectorSpace(*space), documents)
        return [document.id for document in documents]

    def update(self, collection: str, space: list[Any] | None, rows: list[list[Any]]) -> list[str]:
        """Change documents, and return the ids of those that exist; None in a row changes nothing."""
        updates = [
            DocumentUpdate(id, text, metadata, None if vector is None else _numbers(vector))
            for id, text, metadata, vector in rows
        ]
        return self.store.update(collection, VectorSpace(*space) if space else None, updates)

    def delete(self, collection: str, ids: list[str] | None, filter: dict[str, Any] | None) -> None:
        """Remove the documents that have one of ``ids`` and match ``filter``; None matches all."""
        self.store.delete(collection, ids, filter)

    def drop(self, collection: str) -> None:
        """Remove a collection."""
        self.store.delete(collection)

    def get(
        self,
        collection: str,
        ids: list[str] | None,
        filter: dict[str, Any] | None,
        limit: int | None,
        offset: int,
    ) -> list[list[Any]]:
        """Return rows of documents by id and metadata, as ``VectorStore.get`` does."""
        documents = self.store.get(collection, ids, filter, limit, offset)
        return [[document.id, document.text, dict(document.metadata)] for document in documents]

    def query(
        self, collection: str, space: list[Any], vector: bytes, k: int, filter: dict[str, Any] | None
    ) -> list[list[Any]]:
        """Return rows, with scores, of the ``k`` documents that are nearest to a vector."""
        documents = self.store.query(collection, VectorSpace(*space), _numbers(vector), k, filter)
        return [
            [document.id, document.text, dict(document.metadata), document.score] for document in documents
        ]

    def count(self, collection: str, filter: dict[str, Any] | None) -> int:
        """Return the number of documents that match ``filter``; None matches all."""
        return self.store.count(collection, filter)


def _numbers(vector: bytes) -> Any:
    """Return the numbers of a vector in bytes of float32."""
    return np.frombuffer(vector, "<f4")
