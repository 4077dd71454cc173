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
        declared: The resource as its author declared it.
    """

    def __init__(self, declared: DeclaredResource) -> None:
        self.name = declared.name
        self._declared = declared
        self._calls: StoreCalls | None = None
        self._configured_spec: VectorStoreSpec | None = None

    def configure(self, config: Configuration) -> VectorStoreSpec:
        """Return the description of the store, overridden by the options of the job.

        Raises:
            OptionError: An option is invalid.
        """
        if self._configured_spec is None:
            clazz = self._declared.clazz
            spec = configure_store(self.name, self._declared.arguments, config, bool(clazz))
            self._configured_spec = spec
            self._calls = StoreCalls(spec.store, spec.options, clazz)
        return self._configured_spec

    @cached_property
    def _model(self) -> EmbeddingModelResource | None:
        """The embedding model that its description names; None if it names none."""
        name = self._configured_spec.embedding_model if self._configured_spec is not None else None
        return None if name is None else self._declared.get(name, ResourceType.EMBEDDING_MODEL)

    def open_collection(self, ctx: RunnerContext, collection: str | None = None) -> StoreCollection:
        """Return a collection, whose operations are durable steps of one action.

        Args:
            ctx: The context of the action.
            collection: Name of the collection. Default: that of the description, or the resource's name.
        """
        spec = self.configure(ctx.config)
        assert self._calls is not None
        collection_name = collection or spec.collection or self.name
        return StoreCollection(self.name, self._calls, lambda: self._model, ctx, collection_name)

    async def aclose(self) -> None:
        """Close the store, in a thread, if it was used."""
        if self._calls is not None:
            await asyncio.to_thread(self._calls.close)


class VectorStoreProvider(ResourceProvider):
    """Provides resources of the kind ``vector_store``."""

    @override
    def check_declared(self, name: str, clazz: str, arguments: Mapping[str, Any]) -> None:
        spec = read_description(VectorStoreSpec, arguments)
        options_model = None if clazz else _options_model(spec.store)
        if options_model is not None:
            read_description(options_model, spec.options)

    @override
    def check_cluster(self, name: str, arguments: Mapping[str, Any], config: Configuration) -> None:
        spec = configure_store(name, arguments, config)
        check = getattr(VECTOR_STORES.load(spec.store), "check_cluster", None)
        if check is not None:
            check(name, spec.options)

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
        arguments: The author's description, as JSON values.
        config: The options of the job, among them ``vector-stores.NAME.*``.
        has_class: True if a class creates it; then only the class knows its options.

    Raises:
        OptionError: An option is invalid.
    """
    options_model, fields = _fields_of(name, arguments, config, has_class)
    values = override_arguments(AgentOptions.VECTOR_STORES, name, arguments, fields, config)
    spec = read_configured(VectorStoreSpec, values, name)
    if options_model is not None:
        read_configured(options_model, spec.options, name)
    return spec


def _fields_of(
    name: str, arguments: Mapping[str, Any], config: Configuration, has_class: bool
) -> tuple[type[BaseModel] | None, set[str]]:
    """Return the model of the store's own options, or None, and the names of all fields of a description."""
    entries = config.below(AgentOptions.VECTOR_STORES.key)
    store = entries.get(f"{name}.store", arguments.get("store", "sqlite"))
    options_model = None if has_class else _options_model(store)
    own_fields = arguments if options_model is None else options_model.model_fields
    return options_model, set(VectorStoreSpec.model_fields).union(own_fields)


def _options_model(store: str) -> type[BaseModel] | None:
    """Return the pydantic model of a store's options; None if the store declares none."""
    return getattr(VECTOR_STORES.load(store), "options_model", None)


class LongTermMemoryResource:
    """A long-term memory of an agent, in one subtask.

    Args:
        name: Name of the resource.
        description: Its description.
        store: The vector store that it names.
    """

    def __init__(self, name: str, description: LongTermMemorySpec, store: VectorStoreResource) -> None:
        self.name = name
        self._description = description
        self._store = store
        self._written: WeakKeyDictionary[RunnerContext, Iterator[int]] = WeakKeyDictionary()

    def open_memory(self, ctx: RunnerContext, scope: str, subject: Any) -> StoredMemory:
        """Return the memory of one scope and subject, whose operations are durable steps of one action.

        Args:
            ctx: The context of the action.
            scope: Name of the section of the memory.
            subject: The person or thing that the memory is about; None for the key.
        """
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
        spec = read_description(LongTermMemorySpec, declared.arguments)
        store = declared.get(spec.vector_store, ResourceType.VECTOR_STORE)
        return LongTermMemoryResource(declared.name, spec, store)
