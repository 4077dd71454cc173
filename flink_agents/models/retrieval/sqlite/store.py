"""The vector store ``sqlite``: documents in one file, to which several processes of one host may write."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from flink_agents.api.models.vector_filters import Parsed, parse_filter
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
from flink_agents.models.retrieval.sqlite import search
from flink_agents.models.retrieval.sqlite.conditions import field_of, rows_of
from flink_agents.models.retrieval.sqlite.hosts import (
    Host,
    check_host,
    check_name,
    claim_file,
    kind_of,
    renew_host,
    this_host,
    unnamed_host,
)
from flink_agents.sqlite_files import begin_transaction

MANY = 500
"""Maximum number of ids or rows in a statement."""


class SQLiteOptions(BaseModel):
    """Options of the store ``sqlite``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1, description="The file, on a local disk; its directory is created.")
    host: str | None = Field(
        default=None,
        min_length=1,
        description="The host of all TaskManagers, as its command hostname prints it.",
    )
    cache_mb: int = Field(default=256, ge=0, description="Memory of a subtask for vectors that were read.")
    busy_timeout: float = Field(default=30.0, gt=0, description="Seconds to wait for other writers.")
    lease: float = Field(default=10.0, gt=0, description="Seconds to wait for a host that is gone.")


class _Collection(NamedTuple):
    """A row of the table of collections: ``changes`` is its latest change, ``removed`` its latest removal."""

    id: int
    dimension: int
    model: str
    changes: int
    removed: int

    @property
    def space(self) -> VectorSpace:
        return VectorSpace(self.dimension, self.model)


class SQLiteVectorStore(VectorStore):
    """Stores documents in an SQLite file that several processes of one host may write.

    Args:
        options: Options by name, as :class:`SQLiteOptions` describes them.
        host: The host of this process. Default: the real one.
    """

    options_model = SQLiteOptions

    def __init__(self, options: Mapping[str, Any], host: Host | None = None) -> None:
        self._options = SQLiteOptions.model_validate(dict(options))
        self.path = Path(self._options.path).absolute()
        self._kind = kind_of(self._options.busy_timeout)
        self._host = host or this_host()
        self._cache_bytes = self._options.cache_mb * 2**20
        self._lock = threading.Lock()
        self._free: list[sqlite3.Connection] = []
        self._claimed = False
        self._matrices: OrderedDict[int, search.Matrix] = OrderedDict()
        self._matrices_lock = threading.Lock()

    @staticmethod
    def check_cluster(name: str, options: Mapping[str, Any]) -> None:
        """Reject a job for a cluster if its options do not name the host of the file.

        Raises:
            VectorStoreInUseError: The options name no host.
        """
        if SQLiteOptions.model_validate(dict(options)).host is None:
            raise unnamed_host(name)

    # -- connections and transactions -------------------------------------------------

    def _take_connection(self) -> sqlite3.Connection:
        """Return a connection that no other thread uses; the first one claims the file for this host."""
        with self._lock:
            check_name(self._host, self._options.host, self.path)
            if self._free:
                return self._free.pop()
            connection = self._kind.connect_file(self.path, self._options.busy_timeout)
            try:
                if not self._claimed:
                    claim_file(connection, self._host, self.path, self._options.lease)
                    self._claimed = True
            except BaseException:
                connection.close()
                raise
            return connection

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction, after a check that this host has the file; an error undoes it."""
        try:
            connection = self._take_connection()
            try:
                self._begin_transaction(connection, write)
                until = check_host(connection, self._host, self.path)
                if write:
                    renew_host(connection, self._host, self._options.lease)
                yield connection
                connection.execute("COMMIT")
                if not write and until - time.time() < self._options.lease / 2:
                    self._renew_host(connection)
            except BaseException:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                connection.close()
                raise
            with self._lock:
                self._free.append(connection)
        except (sqlite3.Error, OSError) as error:
            raise self._kind.translate_error(error, self.path) from error

    def _begin_transaction(self, connection: sqlite3.Connection, write: bool) -> None:
        if write:
            begin_transaction(connection, self._options.busy_timeout, self._options.busy_timeout)
        else:
            connection.execute("BEGIN")

    def _renew_host(self, connection: sqlite3.Connection) -> None:
        self._begin_transaction(connection, write=True)
        check_host(connection, self._host, self.path)
        renew_host(connection, self._host, self._options.lease)
        connection.execute("COMMIT")

    @override
    def close(self) -> None:
        with self._lock:
            free = self._free
            self._free = []
            self._claimed = False
        for connection in free:
            connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self.close()

    # -- writing ----------------------------------------------------------------------

    @override
    def add(self, collection: str, space: VectorSpace, documents: Sequence[Document]) -> None:
        check_embeddings(space, documents)
        with self._transaction(write=True) as connection:
            stored_collection = self._find_collection(
                connection, collection, space
            ) or self._create_collection(connection, collection, space)
            change = self._count_change(connection, stored_collection)
            for document in documents:
                assert document.embedding is not None
                row = connection.execute(
                    "INSERT INTO documents VALUES (NULL, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, id) "
                    "DO UPDATE SET text = excluded.text, vector = excluded.vector, change = excluded.change "
                    "RETURNING row",
                    (
                        stored_collection.id,
                        document.id,
                        document.text,
                        "{}",
                        _pack_embedding(document.embedding),
                        change,
                    ),
                ).fetchone()[0]
                self._set_metadata(connection, stored_collection, row, document.metadata)

    @override
    def update(
        self, collection: str, space: VectorSpace | None, updates: Sequence[DocumentUpdate]
    ) -> list[str]:
        if space is not None:
            check_embeddings(space, updates)
        with self._transaction(write=True) as connection:
            stored_collection = self._find_collection(connection, collection, space)
            if stored_collection is None:
                return []
            change = self._count_change(connection, stored_collection)
            return [
                update.id
                for update in updates
                if self._update_document(connection, stored_collection, update, change)
            ]

    def _update_document(
        self,
        connection: sqlite3.Connection,
        stored_collection: _Collection,
        update: DocumentUpdate,
        change: int,
    ) -> bool:
        """Change a document; return False if it does not exist."""
        row = connection.execute(
            "SELECT row FROM documents WHERE collection = ? AND id = ?", (stored_collection.id, update.id)
        ).fetchone()
        if row is None:
            return False
        vector = None if update.embedding is None else _pack_embedding(update.embedding)
        connection.execute(
            "UPDATE documents SET text = coalesce(?, text), vector = coalesce(?, vector), change = ? "
            "WHERE row = ?",
            (update.text, vector, change, row[0]),
        )
        if update.metadata is not None:
            self._set_metadata(connection, stored_collection, row[0], update.metadata)
        return True

    def _set_metadata(
        self,
        connection: sqlite3.Connection,
        stored_collection: _Collection,
        row: int,
        metadata: Mapping[str, Any],
    ) -> None:
        """Replace the metadata of a document."""
        self._remove_fields(connection, stored_collection, [row])
        text = json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True)
        connection.execute("UPDATE documents SET metadata = ? WHERE row = ?", (text, row))
        connection.executemany(
            "INSERT INTO fields VALUES (?, ?, ?, ?, ?)",
            [(stored_collection.id, name, *field_of(value), row) for name, value in metadata.items()],
        )

    def _remove_fields(
        self, connection: sqlite3.Connection, stored_collection: _Collection, rows: list[int]
    ) -> None:
        """Remove the metadata of documents from the table that filters search."""
        for portion in _portions(rows):
            metadata_rows = connection.execute(
                f"SELECT row, metadata FROM documents WHERE row IN ({_placeholders(portion)})", portion
            ).fetchall()
            connection.executemany(
                "DELETE FROM fields WHERE collection = ? AND name = ? AND kind = ? AND value = ? AND row = ?",
                [
                    (stored_collection.id, name, *field_of(value), row)
                    for row, text in metadata_rows
                    for name, value in json.loads(text).items()
                ],
            )

    @override
    def delete(self, collection: str, ids: Sequence[str] | None = None, filter: Filter | None = None) -> None:
        parsed = parse_filter(filter)
        with self._transaction(write=True) as connection:
            stored_collection = self._find_collection(connection, collection)
            if stored_collection is None:
                return
            if ids is None and filter is None:
                self._drop_collection(connection, stored_collection)
                return
            rows = self._rows(connection, stored_collection, ids, parsed if filter is not None else None)
            self._remove_fields(connection, stored_collection, rows)
            for portion in _portions(rows):
                connection.execute(f"DELETE FROM documents WHERE row IN ({_placeholders(portion)})", portion)
            if rows:
                change = self._count_change(connection, stored_collection)
                connection.execute(
                    "UPDATE collections SET removed = ? WHERE id = ?", (change, stored_collection.id)
                )

    def _drop_collection(self, connection: sqlite3.Connection, stored_collection: _Collection) -> None:
        """Delete a whole collection."""
        connection.execute("DELETE FROM fields WHERE collection = ?", (stored_collection.id,))
        connection.execute("DELETE FROM documents WHERE collection = ?", (stored_collection.id,))
        connection.execute("DELETE FROM collections WHERE id = ?", (stored_collection.id,))
        self._forget_matrix(stored_collection)

    # -- reading ----------------------------------------------------------------------

    @override
    def space(self, collection: str) -> VectorSpace | None:
        with self._transaction(write=False) as connection:
            stored_collection = self._find_collection(connection, collection)
            return stored_collection.space if stored_collection is not None else None

    @override
    def collections(self) -> list[str]:
        with self._transaction(write=False) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM collections ORDER BY name")]

    @override
    def count(self, collection: str, filter: Filter | None = None) -> int:
        parsed = parse_filter(filter)
        with self._transaction(write=False) as connection:
            stored_collection = self._find_collection(connection, collection)
            if stored_collection is None:
                return 0
            statement, values = rows_of(parsed, stored_collection.id)
            return connection.execute(f"SELECT count(*) FROM ({statement})", values).fetchone()[0]

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
        with self._transaction(write=False) as connection:
            stored_collection = self._find_collection(connection, collection)
            if stored_collection is None:
                return []
            # In SQLite's order of strings, which is that of code points.
            rows = self._rows(connection, stored_collection, ids, parsed if filter is not None else None)
            documents = self._documents(connection, rows, embeddings, stored_collection.dimension)
        documents.sort(key=lambda document: document.id)
        return documents[offset : None if limit is None else offset + limit]

    def _documents(
        self, connection: sqlite3.Connection, rows: list[int], embeddings: bool, dimension: int
    ) -> list[Document]:
        """Return the documents of rows, in any order, with their vectors if ``embeddings`` is set."""
        documents: list[Document] = []
        vector = "vector" if embeddings else "NULL"
        for portion in _portions(rows):
            for id, text, metadata, blob in connection.execute(
                f"SELECT id, text, metadata, {vector} FROM documents WHERE row IN ({_placeholders(portion)})",
                portion,
            ):
                if blob is not None and len(blob) != 4 * dimension:
                    raise self._kind.corrupt_file_error(
                        self.path, f"a vector of {len(blob)} bytes at document {id!r}"
                    )
                numbers = None if blob is None else tuple(np.frombuffer(blob, "<f4").tolist())
                documents.append(Document(text, id, json.loads(metadata), numbers))
        return documents

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
        parsed = parse_filter(filter) if filter is not None else None
        query = search.scale_to_unit(np.asarray(embedding, np.float32))
        with self._transaction(write=False) as connection:
            stored_collection = self._find_collection(connection, collection, space)
            if stored_collection is None:
                return []
            among = None if parsed is None else self._rows(connection, stored_collection, None, parsed)
            scores = {
                hit.row: hit.score
                for hit in self._find_nearest(connection, stored_collection, query, k, among)
            }
            documents: list[ScoredDocument] = []
            for portion in _portions(list(scores)):
                for row, id, text, metadata in connection.execute(
                    f"SELECT row, id, text, metadata FROM documents WHERE row IN ({_placeholders(portion)})",
                    portion,
                ):
                    documents.append(ScoredDocument(text, id, json.loads(metadata), None, scores[row]))
        documents.sort(key=lambda document: (-document.score, document.id))
        return documents[:k]

    def _find_nearest(
        self,
        connection: sqlite3.Connection,
        stored_collection: _Collection,
        query: search.Vectors,
        k: int,
        among: list[int] | None,
    ) -> list[search.Found]:
        """Return at least the ``k`` nearest documents of all, or of the rows ``among``."""
        try:
            if among is not None and len(among) <= search.FEW:
                return self._read_nearest(connection, stored_collection, query, k, among)
            if self._fits_cache(connection, stored_collection):
                with self._matrices_lock:
                    return self._matrix(connection, stored_collection).nearest(query, k, among)
            return self._read_nearest(connection, stored_collection, query, k, among)
        except ValueError as error:
            raise self._kind.corrupt_file_error(self.path, str(error)) from error

    def _fits_cache(self, connection: sqlite3.Connection, stored_collection: _Collection) -> bool:
        """Return True if all vectors of a collection fit in the memory for them."""
        count = connection.execute(
            "SELECT count(*) FROM documents WHERE collection = ?", (stored_collection.id,)
        ).fetchone()[0]
        # A vector of float32, and its row.
        bytes_per_document = 4 * stored_collection.dimension + 8
        return count * bytes_per_document <= self._cache_bytes

    def _matrix(self, connection: sqlite3.Connection, stored_collection: _Collection) -> search.Matrix:
        """Return the current vectors of a collection; drop those of others if memory is short."""
        # It is put back at the end, so the first one is the least recently used.
        matrix = self._matrices.pop(stored_collection.id, None)
        # ``read_changes`` does not see removals, so everything is read again after one.
        is_current = (
            matrix is not None and stored_collection.removed <= matrix.changes <= stored_collection.changes
        )
        if matrix is None or not is_current:
            matrix = search.Matrix(stored_collection.dimension)
        if matrix.changes < stored_collection.changes:
            matrix.read_changes(connection, stored_collection.id, stored_collection.changes)
        self._matrices[stored_collection.id] = matrix
        while sum(cached_matrix.bytes for cached_matrix in self._matrices.values()) > self._cache_bytes:
            self._matrices.popitem(last=False)
        return matrix

    def _forget_matrix(self, stored_collection: _Collection) -> None:
        with self._matrices_lock:
            self._matrices.pop(stored_collection.id, None)

    def _read_nearest(
        self,
        connection: sqlite3.Connection,
        stored_collection: _Collection,
        query: search.Vectors,
        k: int,
        among: list[int] | None,
    ) -> list[search.Found]:
        """Return at least the ``k`` nearest documents; their vectors are read from the file in portions."""
        matrix = search.Matrix(stored_collection.dimension)
        rows = self._rows(connection, stored_collection, None, None) if among is None else among
        hits: list[search.Found] = []
        for portion in _portions(rows):
            vector_rows = connection.execute(
                f"SELECT row, vector FROM documents WHERE row IN ({_placeholders(portion)})", portion
            ).fetchall()
            row_numbers = np.array([row for row, _ in vector_rows], np.int64)
            vectors = matrix.unit_vectors([blob for _, blob in vector_rows])
            hits += search.nearest_rows(row_numbers, vectors, query, k)
        hits.sort(reverse=True)
        if len(hits) <= k:
            return hits
        lowest_score = hits[k - 1].score
        return [hit for hit in hits if hit.score >= lowest_score]

    # -- rows -------------------------------------------------------------------------

    def _rows(
        self,
        connection: sqlite3.Connection,
        stored_collection: _Collection,
        ids: Sequence[str] | None,
        parsed: Parsed | None,
    ) -> list[int]:
        """Return the rows of documents with one of ``ids`` that match a filter; None matches all."""
        filter_rows, parameters = ("", []) if parsed is None else rows_of(parsed, stored_collection.id)
        condition = f" AND row IN ({filter_rows})" if filter_rows else ""
        statement = "SELECT row FROM documents WHERE collection = ?"
        if ids is None:
            values = [stored_collection.id, *parameters]
            return [row for (row,) in connection.execute(statement + condition, values)]
        rows: list[int] = []
        for portion in _portions(list(dict.fromkeys(ids))):
            values = [stored_collection.id, *portion, *parameters]
            id_condition = f" AND id IN ({_placeholders(portion)})"
            rows += [row for (row,) in connection.execute(statement + id_condition + condition, values)]
        return rows

    def _find_collection(
        self, connection: sqlite3.Connection, collection: str, space: VectorSpace | None = None
    ) -> _Collection | None:
        """Return the collection with a name; None if it does not exist.

        Raises:
            EmbeddingMismatchError: It has another space than ``space``.
        """
        row = connection.execute(
            "SELECT id, dimension, model, changes, removed FROM collections WHERE name = ?", (collection,)
        ).fetchone()
        if row is None:
            return None
        stored_collection = _Collection(*row)
        if space is not None:
            check_space(collection, stored_collection.space, space)
        return stored_collection

    def _create_collection(
        self, connection: sqlite3.Connection, name: str, space: VectorSpace
    ) -> _Collection:
        cursor = connection.execute(
            "INSERT INTO collections VALUES (NULL, ?, ?, ?, 0, 0)", (name, space.dimension, space.model)
        )
        return _Collection(cursor.lastrowid or 0, space.dimension, space.model, 0, 0)

    def _count_change(self, connection: sqlite3.Connection, stored_collection: _Collection) -> int:
        """Count a change of a collection, and return its number."""
        connection.execute(
            "UPDATE collections SET changes = changes + 1 WHERE id = ?", (stored_collection.id,)
        )
        return stored_collection.changes + 1


def _pack_embedding(embedding: Sequence[float]) -> bytes:
    return np.asarray(embedding, "<f4").tobytes()


def _placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _portions(values: list[Any]) -> Iterator[list[Any]]:
    """Yield a list in parts that fit in one statement."""
    for start in range(0, len(values), MANY):
        yield values[start : start + MANY]
