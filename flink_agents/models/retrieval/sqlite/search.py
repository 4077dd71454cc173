"""Finds the nearest vectors of a collection: vectors stay in memory once they are read, as one matrix."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

FEW = 1000
"""If a filter leaves at most this number of vectors, they are read from the file and not kept in memory."""

PORTION = 4096
"""Number of vectors that are read at once if a collection is too large for memory."""


class Found(NamedTuple):
    """A document of the result.

    Attributes:
        score: Its cosine similarity.
        row: Its row.
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
        """Read the latest changes. Called in the transaction in which ``changes`` was read."""
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
        """Return vectors of a file, each scaled to length 1; a zero vector stays as it is.

        Raises:
            ValueError: A vector has another dimension.
        """
        dimension = self._vectors.shape[1]
        if any(len(blob) != 4 * dimension for blob in blobs):
            raise ValueError("a vector has another dimension than its collection")
        return scale_to_unit(np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dimension))

    def _put_rows(self, rows: NDArray[np.int64], vectors: Vectors) -> None:
        places = np.array([self._places.get(row, -1) for row in rows.tolist()])
        there = places >= 0
        self._vectors[places[there]] = vectors[there]
        begin = len(self._rows)
        self._rows = np.concatenate([self._rows, rows[~there]])
        self._vectors = np.concatenate([self._vectors, vectors[~there]])
        self._places.update((row, begin + place) for place, row in enumerate(rows[~there].tolist()))

    def nearest(self, query: Vectors, k: int, among: list[int] | None) -> list[Found]:
        """Return the nearest vectors of all, or of ``among``; more than ``k`` if scores are equal."""
        if among is None:
            return nearest_rows(self._rows, self._vectors, query, k)
        places = np.array([self._places[row] for row in among], np.int64)
        return nearest_rows(self._rows[places], self._vectors[places], query, k)


def scale_to_unit(vectors: Vectors) -> Vectors:
    """Return vectors scaled to length 1."""
    # As float64: the squares of large float32 numbers are infinite.
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0, casting="same_kind")


def nearest_rows(rows: NDArray[np.int64], vectors: Vectors, query: Vectors, k: int) -> list[Found]:
    """Return the ``k`` rows with the highest scores, and all rows with the same score as the last one."""
    scores = vectors @ query
    if len(scores) > k:
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        best = np.flatnonzero(scores >= least)
        rows = rows[best]
        scores = scores[best]
    return [Found(score, row) for score, row in zip(scores.tolist(), rows.tolist(), strict=True)]
