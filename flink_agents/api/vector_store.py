"""``VectorStore``: stores documents with their embeddings, and finds those that are near to a vector.

Built-in stores and those of third parties implement this class; the suite of
``flink_agents.testing.vector_stores`` specifies its behaviour. A distribution registers a store as an entry
point of the group ``flink_agents.vector_stores``: a class or a function that gets the options of the
description and returns a store. If a class has ``options_model``, a pydantic model of its options, they are
checked when the agent is compiled.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, SupportsIndex

from flink_agents.api.errors import DocumentError, EmbeddingMismatchError, VectorFilterError

Scalar = str | int | float | bool
"""Types of metadata values."""

Metadata = Mapping[str, Scalar]

Filter = Mapping[str, Any]
"""A selection of documents: ``{"year": 2024}``, ``{"year": {"$gte": 2020}}``, ``{"$or": [..., ...]}``."""

_LARGEST = 2**63
"""The integers from here on do not fit in the 64 bits of stores."""


@dataclass(frozen=True)
class Document:
    """A text in a vector store.

    Attributes:
        text: The text whose embedding is compared with queries.
        id: Its id within the collection. If empty, it derives from the run that adds the document.
        metadata: Strings, numbers and bools by name, for filters.
        embedding: Its vector. None if an embedding model computes it, or if it was not requested.
    """

    text: str
    id: str = ""
    metadata: Metadata = field(default_factory=dict[str, Scalar])
    embedding: Sequence[float] | None = None


@dataclass(frozen=True)
class ScoredDocument(Document):
    """A document that a query found.

    Attributes:
        score: Cosine similarity to the query, from -1 to 1.
    """

    score: float = 0.0


@dataclass(frozen=True)
class DocumentUpdate:
    """A change of an existing document; fields that are None change nothing.

    Attributes:
        id: Id of the document.
        text: The new text.
        metadata: The new metadata, which replaces all of the previous one.
        embedding: The new vector.
    """

    id: str
    text: str | None = None
    metadata: Metadata | None = None
    embedding: Sequence[float] | None = None


@dataclass(frozen=True)
class VectorSpace:
    """The properties that two vectors share if they can be compared.

    Attributes:
        dimension: Length of a vector.
        model: The model that computed them, ``provider:model``; empty if unknown.
    """

    dimension: int
    model: str = ""


class VectorStore(ABC):
    """Collections of documents. All methods block, and several threads may call them at once.

    Adding the first document creates a collection. A collection that does not exist behaves like an empty
    one. Filters, ids, texts and metadata are validated before these methods are called. A store checks
    embeddings with :func:`check_embeddings` or :func:`check_query`, and numbers with :func:`check_page`.
    """

    @abstractmethod
    def space(self, collection: str) -> VectorSpace | None:
        """Return the space of a collection; None if it does not exist."""

    @abstractmethod
    def add(self, collection: str, space: VectorSpace, documents: Sequence[Document]) -> None:
        """Add documents with ids and embeddings; a document replaces one with the same id.

        A repeated call has no further effect.

        Raises:
            DocumentError: An embedding is empty or has invalid numbers. Nothing was written.
            EmbeddingMismatchError: The collection has another space, or an embedding another length.
        """

    @abstractmethod
    def update(
        self, collection: str, space: VectorSpace | None, updates: Sequence[DocumentUpdate]
    ) -> list[str]:
        """Change existing documents, and return their ids.

        Args:
            collection: Name of the collection.
            space: The space of the embeddings; None if no update has one.
            updates: The changes; unknown ids are ignored.

        Raises:
            DocumentError: An embedding is empty or has invalid numbers. Nothing was written.
            EmbeddingMismatchError: The collection has another space, or an embedding another length.
        """

    @abstractmethod
    def delete(self, collection: str, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        """Remove the documents that have one of ``ids`` and match ``filter``; None matches all.

        Without both, remove the collection and its space.
        """

    @abstractmethod
    def get(
        self,
        collection: str,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
        embeddings: bool = False,
    ) -> list[Document]:
        """Return documents in the order of their ids, by code points.

        Args:
            collection: Name of the collection.
            ids: Ids of the documents; None for all.
            filter: Return only documents that match.
            limit: Maximum number of documents, at least 1; None for no limit.
            offset: Number of matching documents to skip at the start.
            embeddings: True to include embeddings.

        Raises:
            VectorFilterError: ``limit`` or ``offset`` is invalid.
        """

    @abstractmethod
    def query(
        self,
        collection: str,
        space: VectorSpace,
        embedding: Sequence[float],
        k: int,
        filter: Filter | None = None,
    ) -> list[ScoredDocument]:
        """Return the ``k`` documents that are nearest to a vector, the nearest first, without embeddings.

        Documents with equal scores are ordered by id.

        Args:
            collection: Name of the collection.
            space: The space of the vector.
            embedding: The vector to compare with.
            k: Maximum number of documents, at least 1.
            filter: Search only among documents that match.

        Raises:
            EmbeddingMismatchError: The collection has another space, or the vector another length.
            VectorFilterError: ``k`` is below 1, or the vector is empty or has invalid numbers.
        """

    @abstractmethod
    def count(self, collection: str, filter: Filter | None = None) -> int:
        """Return the number of documents in a collection that match ``filter``; None matches all."""

    @abstractmethod
    def collections(self) -> list[str]:
        """Return the names of all collections, sorted."""

    # Not abstract: a store may have nothing to close.
    def close(self) -> None:  # noqa: B027
        """Release the store's resources; it may be used again later."""


def check_space(collection: str, stored_space: VectorSpace, requested: VectorSpace) -> None:
    """Check that vectors of a space can be compared with those of a collection. An unknown model fits all.

    Args:
        collection: Name of the collection, for the error.
        stored_space: The space of the collection.
        requested: The space of the other vectors.

    Raises:
        EmbeddingMismatchError: They have another dimension or model.
    """
    models = {stored_space.model, requested.model} - {""}
    if stored_space.dimension == requested.dimension and len(models) < 2:
        return
    raise EmbeddingMismatchError(
        f"the collection {collection!r} has embeddings of another model",
        expected=_describe_space(stored_space),
        found=_describe_space(requested),
        fix="configure the model that made the collection, or add its documents to a new collection: "
        "vectors of different models cannot be compared",
    )


def _describe_space(space: VectorSpace) -> str:
    return f"{space.dimension} dimensions" + (f" of {space.model}" if space.model else "")


def check_document(document: Document | DocumentUpdate) -> None:
    """Check that any store can hold a document or a change of one.

    Raises:
        DocumentError: Its id, text, metadata or embedding is invalid.
    """
    if not document.id:
        raise DocumentError("a document has no id", fix="set its id")
    _check_text("the id", document.id, document.id)
    if document.text is not None:
        _check_text("the text", document.text, document.id)
    for name, value in (document.metadata or {}).items():
        check_field(name, value, document.id)
    if document.embedding is not None:
        _check_vector(document.embedding, document.id)


def _check_vector(embedding: object, document: str) -> None:
    if not is_vector(embedding):
        raise DocumentError(
            f"the embedding of document {document!r} is not a vector",
            expected="a list of numbers that are finite as float32, below 3.4e38; at least one",
            found=repr(embedding)[:200],
            fix="check the model that computed it",
        )


def check_embeddings(space: VectorSpace, documents: Sequence[Document | DocumentUpdate]) -> None:
    """Check that the embeddings of documents are vectors of a space.

    Raises:
        DocumentError: One is empty, or has invalid numbers.
        EmbeddingMismatchError: One has another length than the space says.
    """
    for document in documents:
        if document.embedding is not None:
            _check_vector(document.embedding, document.id)
            _check_length(space, document.embedding, f"the embedding of document {document.id!r}")


def check_query(space: VectorSpace, embedding: object, k: int) -> None:
    """Check the vector of a query, and the number of documents that it requests.

    Raises:
        VectorFilterError: The vector is empty or has invalid numbers, or ``k`` is invalid.
        EmbeddingMismatchError: The vector has another length than the space says.
    """
    if not is_vector(embedding):
        raise VectorFilterError(
            "a query vector is not a vector",
            expected="a list of numbers that are finite as float32, below 3.4e38; at least one",
            found=repr(embedding)[:200],
            fix="check the model that created it, or query with a text",
        )
    _check_length(space, embedding, "a query vector")
    check_number("k", k, 1)


def check_page(limit: int | None, offset: int) -> None:
    """Check the part of the matching documents that a caller requests.

    Args:
        limit: Maximum number of documents, at least 1; None for no limit.
        offset: Number of documents to skip, at least 0.

    Raises:
        VectorFilterError: A number is out of its range, or no int.
    """
    if limit is not None:
        check_number("limit", limit, 1)
    check_number("offset", offset, 0)


def _check_length(space: VectorSpace, embedding: Any, what: str) -> None:
    if len(embedding) != space.dimension:
        raise EmbeddingMismatchError(
            f"{what} has another length than its space",
            expected=f"{space.dimension} numbers",
            found=f"{len(embedding)} numbers",
            fix="use the model that made the other embeddings",
        )


def check_number(name: str, value: object, least: int) -> None:
    """Check an argument that is a number of documents.

    Args:
        name: Name of the argument, for the error.
        value: Its value.
        least: The lowest valid number.

    Raises:
        VectorFilterError: It is no int, below ``least``, or does not fit in 64 bits.
    """
    number = index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    if number is None or not least <= number < _LARGEST:
        raise VectorFilterError(
            f"{name} is no number of documents",
            expected=f"an int from {least} to 2**63 - 1" + (", or None for all" if name == "limit" else ""),
            found=f"{type(value).__name__} {value!r}"[:200],
            fix=f"correct {name}",
        )


def is_vector(numbers: object) -> bool:
    """Return True if ``numbers`` is a sequence of at least one number, all finite as float32.

    Stores keep vectors in this format.
    """
    if not hasattr(numbers, "__getitem__") or isinstance(numbers, str | bytes | bytearray | Mapping):
        return False
    sequence: Any = numbers
    try:
        packed = struct.pack(f"<{len(sequence)}f", *sequence)
    except (OverflowError, TypeError, ValueError, struct.error):
        return False
    return len(packed) > 0 and all(map(math.isfinite, struct.unpack(f"<{len(sequence)}f", packed)))


def _check_text(what: str, text: object, name: str) -> None:
    """Check that a part of a document is a string that UTF-8 can encode.

    Args:
        what: The part in words, such as ``the id``, for the error.
        text: Its value.
        name: Id of the document, for the error.

    Raises:
        DocumentError: It is not.
    """
    if not isinstance(text, str):
        raise DocumentError(
            f"{what} of document {name!r} is not a string",
            expected="a str",
            found=type(text).__name__,
            fix="convert it to a string",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"{what} of document {name!r} cannot be encoded as UTF-8",
            found=str(error),
            fix="decode the text with errors='replace'",
        ) from None


def check_field(name: object, value: object, document: str) -> None:
    """Check an entry in the metadata of a document.

    Args:
        name: Name of the entry.
        value: Value of the entry.
        document: Id of the document, for errors.

    Raises:
        DocumentError: Its name is empty or starts with a dollar sign; its value is not a scalar; or UTF-8
            cannot encode one of them.
    """
    if not isinstance(name, str) or not name or name.startswith("$"):
        raise DocumentError(
            f"metadata of document {document!r} has an invalid name",
            expected="a non-empty string that does not start with $",
            found=repr(name),
            fix="rename it",
        )
    _check_text(f"the name {name!r} in metadata", name, document)
    if isinstance(value, str):
        _check_text(f"the value of {name!r} in metadata", value, document)
    elif not is_scalar(value):
        raise DocumentError(
            f"metadata of document {document!r} has a value at {name!r} that filters do not support",
            expected="a string, a finite number below 2**63, or a bool",
            found=repr(value)[:200],
            fix="remove it, or convert it to a string",
        )


def is_scalar(value: object) -> bool:
    """Return True if ``value`` can be metadata: a string, a bool, or a finite number below 2**63."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_LARGEST <= value < _LARGEST
    return isinstance(value, str)
