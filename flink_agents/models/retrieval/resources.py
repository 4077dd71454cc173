"""Vector stores and long-term memories as resources of an agent: their descriptions and providers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import BaseModel
from typing_extensions import override

from flink_agents.api.common.providers import Providers
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ResourceUnavailableError, UnknownStoreError
from flink_agents.api.models.retrieval_specs import LongTermMemorySpec, VectorStoreSpec
from flink_agents.api.resources import ResourceType
from flink_agents.api.resources.providers import DeclaredResource, ResourceProvider
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.api.vector_store import Document, DocumentUpdate, VectorSpace, VectorStore
from flink_agents.models.retrieval.collection import StoreCollection
from flink_agents.models.retrieval.embedding import EmbeddingModelResource
from flink_agents.models.retrieval.long_term_memory import StoredMemory
from flink_agents.models.setup.classes import made_by
from flink_agents.models.setup.descriptions import overridden, read_configured, read_description
from flink_agents.models.setup.ready import check_ready

_HOME = "flink_agents.models.retrieval"

VECTOR_STORES = Providers(
    "flink_agents.vector_stores",
    "vector store",
    UnknownStoreError,
    {
        "sqlite": f"{_HOME}.sqlite.store:SQLiteVectorStore",
        "chroma": f"{_HOME}.chroma:ChromaVectorStore",
    },
)
"""Each names a class, or a function, that makes a store of a mapping of options."""


def open_vector_store(name: str, options: Mapping[str, Any]) -> VectorStore:
    """A vector store.

    Args:
        name: Which one: ``sqlite``, ``chroma``, or one that is installed.
        options: Its options.

    Raises:
        UnknownStoreError: There is no such store, or it cannot be imported.
        ValueError: It has no such option, or a value does not fit.
    """
    made = VECTOR_STORES.load(name)(dict(options))
    if not isinstance(made, VectorStore):
        raise UnknownStoreError(
            f"the provider of the vector store {name!r} returns no store",
            expected="an object of a subclass of VectorStore",
            found=type(made).__name__,
            fix=f"correct its entry point in the group {VECTOR_STORES.group}",
        )
    return made


class StoreCalls:
    """The functions of durable calls. They take and return plain values, and run in threads.

    Args:
        name: Name of the store, which is made at the first use.
        options: Its options.
        clazz: What makes the store of them in place of that name, as ``module:qualname``; may be empty.
    """

    def __init__(self, name: str, options: Mapping[str, Any], clazz: str = "") -> None:
        self._name = name
        self._options = options
        self._clazz = clazz

    @cached_property
    def store(self) -> VectorStore:
        """The store."""
        if self._clazz:
            return made_by(self._clazz, VectorStore, "the vector store", dict(self._options))
        return open_vector_store(self._name, self._options)

    def close(self) -> None:
        """Close the store, if it was used."""
        if "store" in self.__dict__:
            self.store.close()

    def add(
        self, collection: str, space: list[Any], rows: list[list[Any]], idempotency_key: str
    ) -> list[str]:
        """Keep documents; those without an id get one that all attempts of the call have."""
        documents = [
            Document(text, id or f"{idempotency_key}-{number}", metadata, _numbers(vector))
            for number, (id, text, metadata, vector) in enumerate(rows)
        ]
        self.store.add(collection, VectorSpace(*space), documents)
        return [one.id for one in documents]

    def update(self, collection: str, space: list[Any] | None, rows: list[list[Any]]) -> list[str]:
        """Change documents."""
        updates = [
            DocumentUpdate(id, text, metadata, None if vector is None else _numbers(vector))
            for id, text, metadata, vector in rows
        ]
        return self.store.update(collection, VectorSpace(*space) if space else None, updates)

    def delete(self, collection: str, ids: list[str] | None, filter: dict[str, Any] | None) -> None:
        """Remove documents."""
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
        """Find documents by id or metadata."""
        found = self.store.get(collection, ids, filter, limit, offset)
        return [[one.id, one.text, dict(one.metadata)] for one in found]

    def query(
        self, collection: str, space: list[Any], vector: bytes, k: int, filter: dict[str, Any] | None
    ) -> list[list[Any]]:
        """Find the documents that are nearest to a vector."""
        found = self.store.query(collection, VectorSpace(*space), _numbers(vector), k, filter)
        return [[one.id, one.text, dict(one.metadata), one.score] for one in found]

    def count(self, collection: str, filter: dict[str, Any] | None) -> int:
        """Count documents."""
        return self.store.count(collection, filter)


class VectorStoreResource:
    """A vector store of an agent, in one subtask.

    Args:
        declared: What its author declared.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._calls: StoreCalls | None = None
        self._described: VectorStoreSpec | None = None

    def begin(self, config: Configuration) -> VectorStoreSpec:
        """What is said of it, by the options of the job as well."""
        if self._described is None:
            clazz = self._declared.clazz
            self._described = configured(self.name, self._declared.arguments, config, bool(clazz))
            self._calls = StoreCalls(self._described.store, self._described.options, clazz)
        return self._described

    @property
    def calls(self) -> StoreCalls:
        """The functions of its durable calls; an action has begun to use it."""
        assert self._calls is not None
        return self._calls

    @cached_property
    def model(self) -> EmbeddingModelResource | None:
        """Its embedding model, if it has one."""
        name = self._described.embedding_model if self._described is not None else None
        return None if name is None else self._declared.get(name, ResourceType.EMBEDDING_MODEL)

    @property
    def embedding_model(self) -> EmbeddingModelResource:
        """Its embedding model.

        Raises:
            ResourceUnavailableError: It has none.
        """
        if self.model is None:
            raise ResourceUnavailableError(
                f"the vector store {self.name!r} has no embedding model",
                expected="embedding_model=... in its description, or embeddings of documents and queries",
                fix="name an embedding model of the agent",
            )
        return self.model

    def of(self, ctx: RunnerContext, collection: str | None = None) -> StoreCollection:
        """A collection for one action."""
        described = self.begin(ctx.config)
        return StoreCollection(self, ctx, collection or described.collection or self.name)

    async def aclose(self) -> None:
        """Close the store."""
        if self._calls is not None:
            await asyncio.to_thread(self._calls.close)


class VectorStoreProvider(ResourceProvider):
    """Provides resources of the kind ``vector_store``."""

    @override
    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        described = read_description(VectorStoreSpec, arguments)
        options = None if clazz else _options_model(described.store)
        if options is not None:
            read_description(options, described.options)

    @override
    def check_cluster(self, name: str, arguments: Mapping[str, Any], config: Configuration) -> None:
        described = configured(name, arguments, config)
        check = getattr(VECTOR_STORES.load(described.store), "check_cluster", None)
        if check is not None:
            check(name, described.options)

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        name, clazz = declared.name, declared.clazz
        spec = configured(name, declared.arguments, config, bool(clazz))
        check_ready(f"the vector store {name!r}", clazz, spec.model_dump(mode="json", exclude_unset=True))

    @override
    def provide(self, declared: DeclaredResource) -> VectorStoreResource:
        return VectorStoreResource(declared)


def configured(
    name: str, arguments: Mapping[str, Any], config: Configuration, has_class: bool = False
) -> VectorStoreSpec:
    """What is said of a vector store by its description, and by the options of the job.

    Args:
        name: Name of the vector store.
        arguments: What its description says.
        config: The options of the job.
        has_class: Whether a class makes it, which alone knows its options.

    Raises:
        OptionError: An option does not fit.
    """
    store = config.below(AgentOptions.VECTOR_STORES.key).get(
        f"{name}.store", arguments.get("store", "sqlite")
    )
    options = None if has_class else _options_model(store)
    own = set(VectorStoreSpec.model_fields)
    said = overridden(
        AgentOptions.VECTOR_STORES,
        name,
        arguments,
        own.union(options.model_fields if options is not None else arguments),
        config,
    )
    described = read_configured(VectorStoreSpec, said, name)
    if options is not None:
        read_configured(options, described.options, name)
    return described


def _options_model(store: str) -> type[BaseModel] | None:
    """The options of a store, if it tells them."""
    return getattr(VECTOR_STORES.load(store), "options_model", None)


class LongTermMemoryResource:
    """A long-term memory of an agent, in one subtask.

    Args:
        name: Its name in the agent.
        description: What its author said.
        store: Its vector store.
    """

    def __init__(self, name: str, description: LongTermMemorySpec, store: VectorStoreResource) -> None:
        self.name = name
        self._description = description
        self._store = store
        self._written: WeakKeyDictionary[RunnerContext, Iterator[int]] = WeakKeyDictionary()

    def of(self, ctx: RunnerContext, scope: str, subject: Any) -> StoredMemory:
        """The memory of one scope and subject, for one action."""
        said = self._description
        written = self._written.setdefault(ctx, itertools.count())
        return StoredMemory(ctx, self._store, said.namespace, scope, subject, said.chat_model, written)


class LongTermMemoryProvider(ResourceProvider):
    """Provides resources of the kind ``long_term_memory``."""

    @override
    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        read_description(LongTermMemorySpec, arguments)

    @override
    def provide(self, declared: DeclaredResource) -> LongTermMemoryResource:
        described = read_description(LongTermMemorySpec, declared.arguments)
        store = declared.get(described.vector_store, ResourceType.VECTOR_STORE)
        return LongTermMemoryResource(declared.name, described, store)


def _numbers(vector: bytes) -> Any:
    return np.frombuffer(vector, "<f4")
