"""Descriptions of embedding models, vector stores and long-term memories, without their libraries."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flink_agents.api.common.policies import RetryTimes
from flink_agents.api.models.chat import RESPONSE_LIMIT, Endpoint
from flink_agents.api.settings import Limits


class EmbeddingModelSpec(Endpoint, Limits):
    """The description of an embedding model. ``docs/retrieval.md`` explains each field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(pattern=r"^[^:]+:.+", description="The model, 'provider:model'.")
    dimensions: int | None = Field(
        default=None, ge=1, description="Length of vectors, if the model has a choice."
    )
    batch_size: int = Field(default=64, ge=1, description="Maximum number of texts in a request.")
    timeout: float = Field(default=60.0, gt=0, description="Timeout of a request, in seconds.")
    truncate: bool = Field(default=False, description="Cut texts that are too long, instead of an error.")
    retry: RetryTimes = Field(default=RetryTimes(), description="Policy for failed requests.")
    retry_after_limit: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        description="Longest wait that the service may ask for, in seconds.",
    )
    response_limit: int = Field(default=4 * RESPONSE_LIMIT, ge=1, description="Limit of an answer, in bytes.")
    connection: str | None = Field(default=None, description="A chat_model_connection with the endpoint.")


class VectorStoreSpec(BaseModel):
    """The description of a vector store of any kind; all other fields are options of the store."""

    model_config = ConfigDict(extra="allow", frozen=True)

    store: str = Field(default="sqlite", description="Name of the store.")
    embedding_model: str | None = Field(default=None, description="The model for texts and queries.")
    collection: str | None = Field(default=None, min_length=1, description="Default: the resource's name.")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the store: all fields that this class does not declare, by name."""
        return dict(self.model_extra or {})


class LongTermMemorySpec(BaseModel):
    """The description of a long-term memory. ``docs/long-term-memory.md`` explains each field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vector_store: str = Field(description="Its vector store, which has an embedding model.")
    namespace: str | None = Field(
        default=None, min_length=1, description="Namespace of the memory. Default: the option job-identifier."
    )
    chat_model: str | None = Field(default=None, description="The chat model for summaries of compact().")
