"""Exceptions of embedding models, vector stores and long-term memory. The tree is in ``errors``."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class RetrievalError(AgentsError):
    """An embedding model, a vector store or a long-term memory cannot execute a request."""

    code = "FA9300"


class EmbeddingMismatchError(RetrievalError):
    """Vectors do not fit: of another dimension, or made by another model than those of the collection."""

    code = "FA9301"


class DocumentError(RetrievalError):
    """A document has an id, a text, metadata or an embedding that a vector store cannot keep."""

    code = "FA9302"


class VectorFilterError(RetrievalError):
    """A filter of documents is no filter."""

    code = "FA9303"


class VectorStoreUnavailableError(RetrievalError):
    """A vector store cannot be reached or written at present."""

    code = "FA9304"


class VectorStoreFormatError(RetrievalError):
    """The content of a vector store is corrupt, of something else, or of a newer version of this package."""

    code = "FA9305"


class VectorStoreInUseError(RetrievalError):
    """A vector store is used from more hosts, or processes, than it serves."""

    code = "FA9306"
