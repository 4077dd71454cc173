"""Vector stores and long-term memories as resources of an agent: their descriptions and providers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from typing_extensions import override

from flink_agents.api.context import RunnerContext
from flink_agents.api.models.retrieval_specs import LongTermMemorySpec, VectorStoreSpec
from flink_agents.api.resources import ResourceType
from flink_agents.api.resources.providers import CheckedOptions, DeclaredResource, ResourceProvider
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.models.retrieval.collection import StoreCollection
from flink_agents.models.retrieval.embedding import EmbeddingModelResource
from flink_agents.models.retrieval.long_term_memory import StoredMemory
from flink_agents.models.retrieval.store_calls import VECTOR_STORES, StoreCalls
from flink_agents.models.setup.classes import check_ready
from flink_agents.models.setup.descriptions import (
    checked_options,
    override_arguments,
    read_configured,
    read_description,
)


class VectorStoreResource:
    """A vector store of an agent, in one subtask.

    Args:
        declared: Its declaration.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._calls: StoreCalls | None = None
        self._described: VectorStoreSpec | None = None

    def configure(self, config: Configuration) -> VectorStoreSpec:
        """Return its description, overridden by the options of the job."""
        if self._described is None:
            clazz = self._declared.clazz
            self._described = configure_store(self.name, self._declared.arguments, config, bool(clazz))
            self._calls = StoreCalls(self._described.store, self._described.options, clazz)
        return self._described

    @cached_property
    def _model(self) -> EmbeddingModelResource | None:
        """Return its embedding model, or None."""
        name = self._described.embedding_model if self._described is not None else None
        return None if name is None else self._declared.get(name, ResourceType.EMBEDDING_MODEL)

    def open_collection(self, ctx: RunnerContext, collection: str | None = None) -> StoreCollection:
        """Return a collection for one action."""
        described = self.configure(ctx.config)
        assert self._calls is not None
        named = collection or described.collection or self.name
        return StoreCollection(self.name, self._calls, lambda: self._model, ctx, named)

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
        described = configure_store(name, arguments, config)
        check = getattr(VECTOR_STORES.load(described.store), "check_cluster", None)
        if check is not None:
            check(name, described.options)

    @override
    def check_options(self, declared: DeclaredResource, config: Configuration) -> CheckedOptions:
        name = declared.name
        arguments = declared.arguments
        has_class = bool(declared.clazz)
        configure_store(name, arguments, config, has_class)
        fields = _fields_of(name, arguments, config, has_class)[1]
        return checked_options(AgentOptions.VECTOR_STORES, name, fields, config)

    @override
    def check_worker(self, declared: DeclaredResource, config: Configuration) -> None:
        name = declared.name
        clazz = declared.clazz
        spec = configure_store(name, declared.arguments, config, bool(clazz))
        check_ready(f"the vector store {name!r}", clazz, spec.model_dump(mode="json", exclude_unset=True))

    @override
    def provide(self, declared: DeclaredResource) -> VectorStoreResource:
        return VectorStoreResource(declared)


def configure_store(
    name: str, arguments: Mapping[str, Any], config: Configuration, has_class: bool = False
) -> VectorStoreSpec:
    """Return the description of a vector store, overridden by the options of the job.

    Args:
        name: Name of the vector store.
        arguments: Its description.
        config: The options of the job.
        has_class: True if a class creates it; then only the class knows its options.

    Raises:
        OptionError: An option is invalid.
    """
    options, fields = _fields_of(name, arguments, config, has_class)
    values = override_arguments(AgentOptions.VECTOR_STORES, name, arguments, fields, config)
    described = read_configured(VectorStoreSpec, values, name)
    if options is not None:
        read_configured(options, described.options, name)
    return described


def _fields_of(
    name: str, arguments: Mapping[str, Any], config: Configuration, has_class: bool
) -> tuple[type[BaseModel] | None, set[str]]:
    """Return the model of the store's own options, if it has one, and all fields that options can set."""
    entries = config.below(AgentOptions.VECTOR_STORES.key)
    store = entries.get(f"{name}.store", arguments.get("store", "sqlite"))
    options = None if has_class else _options_model(store)
    spec_fields = set(VectorStoreSpec.model_fields)
    return options, spec_fields.union(options.model_fields if options is not None else arguments)


def _options_model(store: str) -> type[BaseModel] | None:
    """Return the model of a store's options, if the store declares one."""
    return getattr(VECTOR_STORES.load(store), "options_model", None)


class LongTermMemoryResource:
    """A long-term memory of an agent, in one subtask.

    Args:
        name: Its name in the agent.
        description: Its declaration.
        store: Its vector store.
    """

    def __init__(self, name: str, description: LongTermMemorySpec, store: VectorStoreResource) -> None:
        self.name = name
        self._description = description
        self._store = store
        self._written: WeakKeyDictionary[RunnerContext, Iterator[int]] = WeakKeyDictionary()

    def open_memory(self, ctx: RunnerContext, scope: str, subject: Any) -> StoredMemory:
        """Return the memory of one scope and subject, for one action."""
        spec = self._description
        written = self._written.setdefault(ctx, itertools.count())
        return StoredMemory(
            ctx, self._store.open_collection, spec.namespace, scope, subject, spec.chat_model, written
        )


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
