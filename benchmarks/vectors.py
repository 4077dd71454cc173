"""Compares the vector store ``sqlite`` with bare numpy; prints one JSON object.

``python -m benchmarks.vectors [--documents 5000] [--dimension 256]``. All times are medians in milliseconds
of 200 queries for the nearest five documents, by a store whose vectors were read before; ``first_query`` is
the one that reads them, and ``add`` all writes, in portions of 500 documents.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flink_agents.api.vector_store import Document, VectorSpace
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore

ROUNDS = 200
PORTION = 500
K = 5


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--dimension", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(Path(directory), options.documents, options.dimension)))


def measure(directory: Path, documents: int, dimension: int) -> dict[str, Any]:
    """The figures of one store."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(documents, dimension)).astype(np.float32)
    query: Any = random.normal(size=dimension).astype(np.float32)
    space = VectorSpace(dimension)
    store = SQLiteVectorStore({"path": str(directory / "vectors.sqlite")})
    stored_documents = [
        Document(f"text {n}", f"d{n}", {"n": n, "tenth": n % 10}, vectors[n]) for n in range(documents)
    ]

    def add() -> None:
        for start in range(0, documents, PORTION):
            store.add("c", space, stored_documents[start : start + PORTION])

    def ask(**filter: Any) -> list[str]:
        return [match.id for match in store.query("c", space, query, K, filter or None)]

    def bare() -> list[str]:
        scores = units @ (query / np.linalg.norm(query))
        best = np.argpartition(scores, -K)[-K:]
        return [f"d{n}" for n in best[np.argsort(-scores[best])]]

    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    report = {"documents": documents, "dimension": dimension, "add": took(add), "first_query": took(ask)}
    assert ask() == bare()
    report["numpy"] = median(bare)
    report["query"] = median(ask)
    report["query_of_a_tenth"] = median(lambda: ask(tenth=3))
    report["query_of_half"] = median(lambda: ask(n={"$lt": documents // 2}))
    store.close()
    return report


def took(what: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    start_seconds = time.perf_counter()
    what()
    return round((time.perf_counter() - start_seconds) * 1000, 3)


def median(what: Callable[[], Any]) -> float:
    """Milliseconds of a call, the median of many."""
    return round(statistics.median(took(what) for _ in range(ROUNDS)), 3)


if __name__ == "__main__":
    main()
