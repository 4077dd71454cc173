"""What can be said about embedding models, vector stores and long-term memories: free of their libraries."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flink_agents.api.common.policies import RetryTimes
from flink_agents.api.models.chat import RESPONSE_LIMIT, Endpoint
from flink_agents.api.settings import Limits


class EmbeddingModelSpec(Endpoint, Limits):
    """All that can be said about an embedding model. ``docs/retrieval.md`` explains each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(pattern=r"^[^:]+:.+", description="The model, 'provider:model'.")
    dimensions: int | None = Field(default=None, ge=1, description="Length of vectors, where one may choose.")
    batch_size: int = Field(default=64, ge=1, description="How many texts a request has, at most.")
    timeout: float = Field(default=60.0, gt=0, description="Seconds that a request may take.")
    truncate: bool = Field(default=False, description="Cut texts that are too long; else they are refused.")
    retry: RetryTimes = Field(default=RetryTimes(), description="When a failed request is sent again.")
    retry_after_limit: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds to wait at most, if the service asks.",
    )
    response_limit: int = Field(
        default=4 * RESPONSE_LIMIT, ge=1, description="Bytes that an answer may have."
    )
    connection: str | None = Field(default=None, description="A chat_model_connection with the endpoint.")


class VectorStoreSpec(BaseModel):
    """What can be said about a vector store of any kind; all else are options of the store."""

    model_config = ConfigDict(extra="allow", frozen=True)

    store: str = Field(default="sqlite", description="Name of the store.")
    embedding_model: str | None = Field(default=None, description="The model for texts and queries.")
    collection: str | None = Field(default=None, min_length=1, description="Default: the resource's name.")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the store."""
        return dict(self.model_extra or {})


class LongTermMemorySpec(BaseModel):
    """All that can be said about a long-term memory. ``docs/long-term-memory.md`` explains each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vector_store: str = Field(description="The vector store that keeps it; it has an embedding model.")
    namespace: str | None = Field(
        default=None, min_length=1, description="Whose memory it is. Default: the option job-identifier."
    )
    chat_model: str | None = Field(default=None, description="The model that compact() asks for summaries.")
