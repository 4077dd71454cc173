"""``VectorStore``: keeps documents with their embeddings, and finds those that are near to a vector.

What is built in, and what a third party brings, implements this class; the suite of
``flink_agents.testing.vector_stores`` says what it must do. A distribution announces a store by an entry
point of the group ``flink_agents.vector_stores``, which names a class, or a function, that takes the options
of the description and returns a store. A class may have ``options_model``, a pydantic model of its options:
they are checked then when the agent is compiled.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.errors import DocumentError, EmbeddingMismatchError

Scalar = str | int | float | bool
"""What metadata may hold."""

Metadata = Mapping[str, Scalar]

Filter = Mapping[str, Any]
"""Which documents are meant: ``{"year": 2024}``, ``{"year": {"$gte": 2020}}``, ``{"$or": [..., ...]}``."""

_LARGEST = 2**63


@dataclass(frozen=True)
class Document:
    """A text that a vector store keeps.

    Attributes:
        text: The text.
        id: Its name within the collection. Empty: one is derived from the run that adds the document.
        metadata: Texts, numbers and truth values by name; filters ask for them.
        embedding: Its vector. None: an embedding model makes it, or it was not asked for.
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
    """What becomes of a document that is there; what is None stays as it is.

    Attributes:
        id: Its id.
        text: Its new text.
        metadata: Its new metadata, in place of all that it had.
        embedding: Its new vector.
    """

    id: str
    text: str | None = None
    metadata: Metadata | None = None
    embedding: Sequence[float] | None = None


@dataclass(frozen=True)
class VectorSpace:
    """What vectors have in common that can be compared.

    Attributes:
        dimension: How many numbers a vector has.
        model: The model that made them, ``provider:model``; empty if unknown.
    """

    dimension: int
    model: str = ""


class VectorStore(ABC):
    """Collections of documents. All methods block, and may be called from several threads at once.

    A collection comes into being with the first document that is added to it. A collection that does not
    exist is as one without documents. Filters and documents are checked before they come here.
    """

    @abstractmethod
    def space(self, collection: str) -> VectorSpace | None:
        """The space of a collection; None where it does not exist."""

    @abstractmethod
    def add(self, collection: str, space: VectorSpace, documents: Sequence[Document]) -> None:
        """Keep documents with ids and embeddings; one that has the id of another takes its place.

        The same call once more changes nothing.

        Raises:
            EmbeddingMismatchError: The collection has another space.
        """

    @abstractmethod
    def update(
        self, collection: str, space: VectorSpace | None, updates: Sequence[DocumentUpdate]
    ) -> list[str]:
        """Change documents that are there; returns their ids.

        Args:
            collection: Name of the collection.
            space: The space of the embeddings; None where no update has one.
            updates: What changes; ids that are not there are passed over.

        Raises:
            EmbeddingMismatchError: The collection has another space.
        """

    @abstractmethod
    def delete(self, collection: str, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        """Remove documents: those of ``ids``, and of these those that ``filter`` means.

        Without both, the collection is removed, and with it its space.
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
        """Documents in the order of their ids, by code points.

        Args:
            collection: Name of the collection.
            ids: Which ones; None for all.
            filter: Which of these.
            limit: How many, at most.
            offset: How many of the first ones are left out.
            embeddings: Whether the documents come with their embeddings.
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
        """The ``k`` documents that are nearest to a vector, the nearest first; without their embeddings.

        Documents of equal score are in the order of their ids.

        Raises:
            EmbeddingMismatchError: The collection has another space.
        """

    @abstractmethod
    def count(self, collection: str, filter: Filter | None = None) -> int:
        """How many documents there are."""

    @abstractmethod
    def collections(self) -> list[str]:
        """The names of all collections, sorted."""

    # Not abstract: a store may have nothing to close.
    def close(self) -> None:  # noqa: B027
        """Give back what the store holds; it may be used again behind that."""


def check_space(collection: str, known: VectorSpace, asked: VectorSpace) -> None:
    """Refuse vectors that cannot be compared with those of a collection.

    Raises:
        EmbeddingMismatchError: They have another dimension, or are of another model.
    """
    models = {known.model, asked.model} - {""}
    if known.dimension == asked.dimension and len(models) < 2:
        return
    raise EmbeddingMismatchError(
        f"the collection {collection!r} has embeddings of another model",
        expected=_described(known),
        found=_described(asked),
        fix="configure the model that made the collection, or add its documents to a new collection: "
        "vectors of different models cannot be compared",
    )


def _described(space: VectorSpace) -> str:
    return f"{space.dimension} dimensions" + (f" of {space.model}" if space.model else "")


def check_document(document: Document | DocumentUpdate) -> None:
    """Refuse a document that not every store could keep.

    Raises:
        DocumentError: Its id, text or metadata are none.
    """
    if not document.id:
        raise DocumentError("a document has no id", fix="give it one")
    _check_text("the id", document.id, document.id)
    if document.text is not None:
        _check_text("the text", document.text, document.id)
    for name, value in (document.metadata or {}).items():
        check_field(name, value, document.id)
    if document.embedding is not None and not is_vector(document.embedding):
        raise DocumentError(
            f"the embedding of document {document.id!r} has numbers that are none",
            expected="numbers that are finite as float32, below 3.4e38",
            fix="look at the model that made it",
        )


def is_vector(numbers: Sequence[float]) -> bool:
    """True if all numbers are finite as float32, which is what stores keep."""
    try:
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
    except (OverflowError, struct.error):
        return False
    return all(map(math.isfinite, struct.unpack(f"<{len(numbers)}f", packed)))


def _check_text(what: str, text: object, name: str) -> None:
    if not isinstance(text, str):
        raise DocumentError(
            f"{what} of document {name!r} is no text",
            expected="a str",
            found=type(text).__name__,
            fix="make a text of it",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(
            f"{what} of document {name!r} cannot be written as UTF-8",
            found=str(error),
            fix="decode the text with errors='replace'",
        ) from None


def check_field(name: object, value: object, document: str) -> None:
    """Reject an invalid entry of metadata.

    Raises:
        DocumentError: Its name is empty or begins with a dollar sign, or its value is no scalar.
    """
    if not isinstance(name, str) or not name or name.startswith("$"):
        raise DocumentError(
            f"metadata of document {document!r} has a name that is none",
            expected="a text that does not begin with $",
            found=repr(name),
            fix="rename it",
        )
    _check_text(f"the name {name!r} in metadata", name, document)
    if isinstance(value, str):
        _check_text(f"the value of {name!r} in metadata", value, document)
    elif not is_scalar(value):
        raise DocumentError(
            f"metadata of document {document!r} has a value at {name!r} that filters could not ask for",
            expected="a text, a finite number below 2**63, or a truth value",
            found=repr(value)[:200],
            fix="leave it out, or write it as a text",
        )


def is_scalar(value: object) -> bool:
    """Whether metadata may hold ``value``."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_LARGEST <= value < _LARGEST
    return isinstance(value, str)
