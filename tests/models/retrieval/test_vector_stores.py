"""The vector stores of this package pass the suite that those of third parties can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chroma_server import ChromaServer

from flink_agents.api.vector_store import VectorStore
from flink_agents.models.retrieval.chroma import ChromaVectorStore
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore
from flink_agents.testing.vector_stores import VectorStoreSuite


class TestSQLite(VectorStoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], VectorStore]:
        return lambda: SQLiteVectorStore({"path": str(tmp_path / "vectors" / "store.sqlite")})


class TestSQLiteWithoutMemory(VectorStoreSuite):
    """Each query reads the vectors from the file."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], VectorStore]:
        return lambda: SQLiteVectorStore({"path": str(tmp_path / "store.sqlite"), "cache_mb": 0})


class TestChroma(VectorStoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Callable[[], VectorStore]:
        return lambda: ChromaVectorStore({"path": str(tmp_path / "chroma")})


class TestChromaServed(VectorStoreSuite):
    @pytest.fixture
    def make_store(self, chroma_server: ChromaServer, tmp_path: Path) -> Callable[[], VectorStore]:
        options: dict[str, Any] = {"host": "localhost", "port": chroma_server.port}
        options["database"] = chroma_server.new_database()
        return lambda: ChromaVectorStore(options)
