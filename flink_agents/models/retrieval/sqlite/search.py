"""Finds the nearest vectors of a collection: vectors stay in memory once they are read, as one matrix."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""One vector, or several as the rows of a matrix."""

FEW = 1000
"""If a filter leaves at most this number of vectors, they are read from the file and not kept in memory."""

PORTION = 4096
"""Number of vectors that are read at once if a collection is too large for memory."""


class Found(NamedTuple):
    """A document that a search found.

    Attributes:
        score: Cosine similarity of its vector to the query.
        row: Its ``row`` in the table of documents.
    """

    score: float
    row: int


class Matrix:
    """The vectors of one collection that were read, each of length 1.

    Args:
        dimension: Number of dimensions of a vector.

    Attributes:
        changes: Number of the latest change of the collection that was read.
    """

    def __init__(self, dimension: int) -> None:
        self.changes = 0
        self._rows: NDArray[np.int64] = np.empty(0, np.int64)
        self._vectors: Vectors = np.empty((0, dimension), np.float32)
        self._places: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        """Size of the matrix in memory."""
        return self._vectors.nbytes + self._rows.nbytes

    def read_changes(self, connection: sqlite3.Connection, collection: int, changes: int) -> None:
        """Read the vectors that changed since the last read. Called in the transaction that read ``changes``.

        Args:
            connection: A connection with an open transaction.
            collection: Id of the collection in the file.
            changes: Number of the collection's latest change.
        """
        rows = connection.execute(
            "SELECT row, vector FROM documents WHERE collection = ? AND change > ?",
            (collection, self.changes),
        ).fetchall()
        if rows:
            self._put_rows(
                np.array([row for row, _ in rows], np.int64), self.unit_vectors([blob for _, blob in rows])
            )
        self.changes = changes

    def unit_vectors(self, blobs: list[bytes]) -> Vectors:
        """Return vectors in their bytes of the file as a matrix, each scaled to length 1.

        A zero vector stays as it is.

        Raises:
            ValueError: A vector has another dimension.
        """
        dimension = self._vectors.shape[1]
        if any(len(blob) != 4 * dimension for blob in blobs):
            raise ValueError("a vector has another dimension than its collection")
        return scale_to_unit(np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dimension))

    def _put_rows(self, rows: NDArray[np.int64], vectors: Vectors) -> None:
        """Replace the vectors of rows that are in the matrix, and append those of others."""
        places = np.array([self._places.get(row, -1) for row in rows.tolist()])
        is_present = places >= 0
        self._vectors[places[is_present]] = vectors[is_present]
        begin = len(self._rows)
        new_rows = rows[~is_present]
        self._rows = np.concatenate([self._rows, new_rows])
        self._vectors = np.concatenate([self._vectors, vectors[~is_present]])
        self._places.update((row, begin + place) for place, row in enumerate(new_rows.tolist()))

    def nearest(self, query: Vectors, k: int, among: list[int] | None) -> list[Found]:
        """Return the ``k`` nearest documents; more if several have the score of the last one.

        Args:
            query: A vector of length 1.
            k: Number of documents.
            among: Rows of the documents to compare; None for all.
        """
        if among is None:
            return nearest_rows(self._rows, self._vectors, query, k)
        places = np.array([self._places[row] for row in among], np.int64)
        return nearest_rows(self._rows[places], self._vectors[places], query, k)


def scale_to_unit(vectors: Vectors) -> Vectors:
    """Return a vector, or the rows of a matrix, scaled to length 1; zero vectors stay as they are."""
    # As float64: the squares of large float32 numbers are infinite.
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0, casting="same_kind")


def nearest_rows(rows: NDArray[np.int64], vectors: Vectors, query: Vectors, k: int) -> list[Found]:
    """Return the ``k`` documents with the highest scores, and all with the same score as the last one.

    Args:
        rows: Rows of the documents.
        vectors: Their vectors, each of length 1.
        query: A vector of length 1.
        k: Number of documents.
    """
    scores = vectors @ query
    if len(scores) > k:
        lowest_score = np.partition(scores, len(scores) - k)[len(scores) - k]
        best = np.flatnonzero(scores >= lowest_score)
        rows = rows[best]
        scores = scores[best]
    return [Found(score, row) for score, row in zip(scores.tolist(), rows.tolist(), strict=True)]
