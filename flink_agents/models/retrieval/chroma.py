"""The vector store ``chroma``: a Chroma database in a directory of this process, or on a server.

Chroma's own client is used, without an embedding function: vectors come from the embedding model of the
description. Needs the extra ``chroma``.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import override

from flink_agents.api.errors import (
    AgentsError,
    EmbeddingMismatchError,
    RetrievalError,
    VectorStoreFormatError,
    VectorStoreInUseError,
    VectorStoreUnavailableError,
)
from flink_agents.api.models.chat import RESPONSE_LIMIT, Public, Secret
from flink_agents.api.models.vector_filters import AllOf, Condition, Parsed, parse_filter
from flink_agents.api.vector_store import (
    Document,
    DocumentUpdate,
    Filter,
    ScoredDocument,
    VectorSpace,
    VectorStore,
    check_embeddings,
    check_page,
    check_query,
    check_space,
)
from flink_agents.models.retrieval.process_lock import ProcessLock
from flink_agents.models.setup.bodies import bound_bodies
from flink_agents.models.setup.extras import import_extra
from flink_agents.models.setup.secrets import Secrets

# Metadata of Chroma's collection: the collection's name here, and its space.
_NAME = "flink_agents_name"
_MODEL = "flink_agents_model"
_DIMENSION = "flink_agents_dimension"
_PLAIN_NAME = re.compile(r"(?!fa-)[a-zA-Z0-9][a-zA-Z0-9._-]{1,500}[a-zA-Z0-9]")
"""Names of collections that are valid in Chroma, and differ from those of :func:`_own_name`."""

_RESPONSE_LIMIT = 4 * RESPONSE_LIMIT
"""Maximum size of a server's answer in bytes."""

MORE = 16
"""Number of extra documents in a query: among equal scores, ids decide the order."""

_DIGITS = 6
"""Number of digits to compare scores with: Chroma computes equal scores in different ways."""


class ChromaOptions(BaseModel):
    """Options of the store ``chroma``: ``path`` for a directory, or ``host`` for a server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(default=None, min_length=1, description="Directory of an embedded database.")
    host: str | None = Field(default=None, min_length=1, description="Host of a server.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port of the server.")
    ssl: bool = Field(default=False, description="True to use HTTPS.")
    headers: dict[str, str | Secret | Public] = Field(
        default_factory=dict, description="Headers of each request."
    )
    tenant: str = Field(default="default_tenant", description="Tenant of the server.")
    database: str = Field(default="default_database", description="Database of the tenant.")

    @model_validator(mode="after")
    def _check_place(self) -> ChromaOptions:
        if (self.path is None) == (self.host is None):
            raise ValueError("pass the path of an embedded database, or the host of a server")
        return self


class ChromaVectorStore(VectorStore):
    """Stores documents in a Chroma database.

    Args:
        options: Options by name, as :class:`ChromaOptions` describes them.
    """

    options_model = ChromaOptions

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = ChromaOptions.model_validate(dict(options))
        self._secrets = Secrets("the vector store 'chroma'")
        self._opened: Any = None
        self._lock = threading.Lock()
        self._process_lock: ProcessLock | None = None

    @staticmethod
    def check_cluster(name: str, options: Mapping[str, Any]) -> None:
        """Reject a directory if the job runs on a cluster, because several processes would open it.

        Raises:
            VectorStoreInUseError: The options name one.
        """
        if ChromaOptions.model_validate(dict(options)).path is not None:
            raise VectorStoreInUseError(
                f"the vector store {name!r} is a directory of one process, and the job runs on a cluster",
                expected="the host of a server, which you start with 'chroma run'",
                found="a path",
                fix="set host and port instead of the path, or use the store 'sqlite'",
            )

    # -- client and errors ------------------------------------------------------------

    @cached_property
    def _chroma(self) -> Any:
        return import_extra("chromadb", "chroma", "the vector store 'chroma'")

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._opened is None:
                self._opened = self._open_client()
            return self._opened

    def _open_client(self) -> Any:
        """Create Chroma's client: for a server, or for a directory that this process locks."""
        options = self._options
        settings = self._chroma.config.Settings(anonymized_telemetry=False)
        if options.host is not None:
            headers = self._secrets.headers(options.headers)
            client = self._chroma.HttpClient(
                options.host, options.port, options.ssl, headers, settings, options.tenant, options.database
            )
            bound_bodies(client, _RESPONSE_LIMIT)
            return client
        assert options.path is not None
        self._process_lock = ProcessLock.acquire(options.path)
        try:
            return self._chroma.PersistentClient(options.path, settings, options.tenant, options.database)
        except BaseException:
            self._process_lock.release()
            self._process_lock = None
            raise

    @override
    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                opened = self._opened
                self._opened = None
                opened.close()
                # Chroma leaves the connections to its server to garbage collection.
                for client in (opened, getattr(opened, "_admin_client", None)):
                    session = getattr(getattr(client, "_server", None), "_session", None)
                    if session is not None:
                        session.close()
            if self._process_lock is not None:
                self._process_lock.release()
                self._process_lock = None

    def __del__(self) -> None:
        if hasattr(self, "_process_lock"):
            self.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise an error of Chroma in the block as one of this package, without secrets."""
        try:
            yield
        except AgentsError:
            raise
        except Exception as error:  # errors of chromadb, its HTTP client and its database have no common base
            raise self._translate_error(error) from (None if self._secrets.shown_in(error) else error)

    def _translate_error(self, error: Exception) -> RetrievalError:
        """Return the error of this package for one of Chroma, which is known by its name and its words."""
        text = f"{type(error).__name__}: {self._secrets.hide(error)}"[:500]
        kind = type(error).__name__
        if "dimension" in text:
            return EmbeddingMismatchError(
                "a collection has embeddings of another dimension",
                found=text,
                fix="configure the model that made the collection, or use a new collection",
            )
        if any(word in text for word in ("not a database", "malformed", "corrupt")):
            return VectorStoreFormatError(
                f"the database {self._options.path} is corrupt, or not a Chroma database",
                found=text,
                fix="restore the directory from a copy, or configure another path and add documents again",
            )
        if kind in ("InvalidArgumentError", "ValueError", "TypeError") and "connect" not in text:
            return RetrievalError("Chroma rejected a request", found=text, fix="correct the request")
        where = self._options.path or f"{self._options.host}:{self._options.port}"
        return VectorStoreUnavailableError(
            f"the Chroma database {where} is unavailable",
            found=text,
            fix="check its server or directory",
        )

    # -- collections ------------------------------------------------------------------

    def _find_collection(self, collection: str, space: VectorSpace | None = None) -> Any:
        """Return Chroma's collection for a collection; None if it does not exist.

        Args:
            collection: Name of the collection.
            space: The space that it has to have; None for any.

        Raises:
            EmbeddingMismatchError: It has another space.
        """
        try:
            chroma_collection = self._client.get_collection(_own_name(collection), embedding_function=None)
        except self._chroma.errors.NotFoundError:
            return None
        stored_space = self._space(chroma_collection)
        if space is not None and stored_space is not None:
            check_space(collection, stored_space, space)
        return chroma_collection

    def _space(self, chroma_collection: Any) -> VectorSpace | None:
        """Return the space of Chroma's collection; None if it is unknown, since it has no documents."""
        metadata = chroma_collection.metadata or {}
        if _DIMENSION in metadata:
            return VectorSpace(metadata[_DIMENSION], metadata.get(_MODEL, ""))
        # Another program created it.
        vectors = chroma_collection.get(limit=1, include=["embeddings"])["embeddings"]
        return VectorSpace(len(vectors[0])) if vectors is not None and len(vectors) else None

    def _create_collection(self, collection: str, space: VectorSpace) -> Any:
        """Return Chroma's collection with this space, created if it does not exist."""
        chroma_collection = self._find_collection(collection, space)
        if chroma_collection is not None:
            return chroma_collection
        metadata = {_NAME: collection, _MODEL: space.model, _DIMENSION: space.dimension}
        self._client.get_or_create_collection(
            _own_name(collection),
            metadata=metadata,
            embedding_function=None,
            configuration={"hnsw": {"space": "cosine"}},
        )
        # Another process may have been faster.
        return self._find_collection(collection, space)

    @override
    def space(self, collection: str) -> VectorSpace | None:
        with self._translate_errors():
            chroma_collection = self._find_collection(collection)
            return None if chroma_collection is None else self._space(chroma_collection)

    @override
    def collections(self) -> list[str]:
        with self._translate_errors():
            chroma_collections = self._client.list_collections()
            return sorted(
                (collection.metadata or {}).get(_NAME, collection.name) for collection in chroma_collections
            )

    # -- writing ----------------------------------------------------------------------

    @override
    def add(self, collection: str, space: VectorSpace, documents: Sequence[Document]) -> None:
        check_embeddings(space, documents)
        with self._translate_errors():
            chroma_collection = self._create_collection(collection, space)
            # Of several documents with one id, the last one counts.
            documents_by_id = {document.id: document for document in documents}
            for portion in self._portions(list(documents_by_id.values())):
                previous_metadata = self._metadata(chroma_collection, [document.id for document in portion])
                chroma_collection.upsert(
                    ids=[document.id for document in portion],
                    embeddings=[list(map(float, document.embedding or ())) for document in portion],
                    documents=[document.text for document in portion],
                    metadatas=[
                        _replacement_metadata(previous_metadata.get(document.id), document.metadata)
                        for document in portion
                    ],
                )

    @override
    def update(
        self, collection: str, space: VectorSpace | None, updates: Sequence[DocumentUpdate]
    ) -> list[str]:
        if space is not None:
            check_embeddings(space, updates)
        with self._translate_errors():
            chroma_collection = self._find_collection(collection, space)
            if chroma_collection is None:
                return []
            return [update.id for update in updates if self._update_document(chroma_collection, update)]

    def _update_document(self, chroma_collection: Any, update: DocumentUpdate) -> bool:
        """Change a document; return False if it does not exist."""
        previous_metadata = self._metadata(chroma_collection, [update.id])
        if update.id not in previous_metadata:
            return False
        metadata = None
        if update.metadata is not None:
            metadata = _replacement_metadata(previous_metadata[update.id], update.metadata)
        chroma_collection.update(
            ids=[update.id],
            embeddings=self._vector_for(chroma_collection, update),
            documents=None if update.text is None else [update.text],
            metadatas=None if metadata is None else [metadata],
        )
        return True

    def _vector_for(self, chroma_collection: Any, update: DocumentUpdate) -> Any:
        """Return the vector to write with an update, as a list of one; None if the vector stays.

        Chroma requires one with each text, so it is the present one for a new text without a vector.
        """
        if update.embedding is not None:
            return [list(map(float, update.embedding))]
        if update.text is None:
            return None
        return chroma_collection.get(ids=[update.id], include=["embeddings"])["embeddings"]

    def _metadata(self, chroma_collection: Any, ids: list[str]) -> dict[str, Mapping[str, Any]]:
        """Return the metadata of the documents that exist, by id."""
        result = chroma_collection.get(ids=ids, include=["metadatas"])
        return {id: metadata or {} for id, metadata in zip(result["ids"], result["metadatas"], strict=True)}

    @override
    def delete(self, collection: str, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        parsed = parse_filter(filter)
        with self._translate_errors():
            chroma_collection = self._find_collection(collection)
            if chroma_collection is None:
                return
            if ids is None and filter is None:
                self._client.delete_collection(chroma_collection.name)
                return
            for portion in self._portions(self._ids(chroma_collection, ids, parsed)):
                chroma_collection.delete(ids=portion)

    # -- reading ----------------------------------------------------------------------

    @override
    def count(self, collection: str, filter: Filter | None = None) -> int:
        parsed = parse_filter(filter)
        with self._translate_errors():
            chroma_collection = self._find_collection(collection)
            if chroma_collection is None:
                return 0
            if filter is None:
                return chroma_collection.count()
            return len(self._ids(chroma_collection, None, parsed))

    @override
    def get(
        self,
        collection: str,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
        embeddings: bool = False,
    ) -> list[Document]:
        check_page(limit, offset)
        parsed = parse_filter(filter)
        with self._translate_errors():
            chroma_collection = self._find_collection(collection)
            if chroma_collection is None:
                return []
            matching_ids = sorted(self._ids(chroma_collection, ids, parsed))
            page_ids = matching_ids[offset : None if limit is None else offset + limit]
            documents: list[Document] = []
            include = ["documents", "metadatas", *(["embeddings"] if embeddings else [])]
            for portion in self._portions(page_ids):
                result = chroma_collection.get(ids=portion, include=include)
                vectors = result["embeddings"] if embeddings else [None] * len(result["ids"])
                rows = zip(result["documents"], result["ids"], result["metadatas"], vectors, strict=True)
                documents += [_document(*row) for row in rows]
        return sorted(documents, key=lambda document: document.id)

    @override
    def query(
        self,
        collection: str,
        space: VectorSpace,
        embedding: Sequence[float],
        k: int,
        filter: Filter | None = None,
    ) -> list[ScoredDocument]:
        check_query(space, embedding, k)
        parsed = parse_filter(filter)
        with self._translate_errors():
            chroma_collection = self._find_collection(collection, space)
            where = _chroma_filter(parsed)
            if chroma_collection is None or where is _NOTHING:
                return []
            result = chroma_collection.query(
                query_embeddings=[list(map(float, embedding))],
                n_results=k + MORE,
                where=where,
                include=["documents", "metadatas", "distances"],
            )
        rows = zip(*(result[name][0] for name in ("documents", "ids", "metadatas", "distances")), strict=True)
        scored = [
            ScoredDocument(text or "", id, metadata or {}, None, 1.0 - distance)
            for text, id, metadata, distance in rows
        ]
        return sorted(scored, key=lambda document: (-round(document.score, _DIGITS), document.id))[:k]

    def _ids(self, chroma_collection: Any, ids: Sequence[str] | None, parsed: Parsed) -> list[str]:
        """Return the ids of documents that match a filter: among ``ids``, or among all for None."""
        where = _chroma_filter(parsed)
        if where is _NOTHING:
            return []
        if ids is None:
            return chroma_collection.get(where=where, include=[])["ids"]
        results = (
            chroma_collection.get(ids=portion, where=where, include=[])
            for portion in self._portions(list(dict.fromkeys(ids)))
        )
        return [id for result in results for id in result["ids"]]

    def _portions(self, values: list[Any]) -> Iterator[list[Any]]:
        """Yield a list in parts that Chroma accepts in one request."""
        size = self._client.get_max_batch_size()
        for start in range(0, len(values), size):
            yield values[start : start + size]


def _document(text: str | None, id: str, metadata: Mapping[str, Any] | None, vector: Any) -> Document:
    return Document(text or "", id, metadata or {}, None if vector is None else tuple(map(float, vector)))


def _own_name(collection: str) -> str:
    """Return the name of a collection in Chroma: the same if it is valid there, otherwise a digest."""
    if _PLAIN_NAME.fullmatch(collection):
        return collection
    return "fa-" + hashlib.blake2b(collection.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _replacement_metadata(
    previous_metadata: Mapping[str, Any] | None, metadata: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the metadata to write: Chroma keeps previous entries that are not set to None."""
    return {**dict.fromkeys(previous_metadata or {}), **metadata} or None


_NOTHING: dict[str, Any] = {"nothing": True}
"""Represents a filter that matches no document."""


def _chroma_filter(parsed: Parsed) -> dict[str, Any] | None:
    """Return a filter in Chroma's form; None if it matches all documents."""
    if isinstance(parsed, Condition):
        return {parsed.field: {parsed.operator: parsed.value}}
    parts = [_chroma_filter(part) for part in parsed.parts]
    is_all = isinstance(parsed, AllOf)
    neutral, absorbing = (None, _NOTHING) if is_all else (_NOTHING, None)
    if any(part is absorbing for part in parts):
        return absorbing
    parts = [part for part in parts if part is not neutral]
    if len(parts) < 2:
        return parts[0] if parts else neutral
    return {"$and" if is_all else "$or": parts}
