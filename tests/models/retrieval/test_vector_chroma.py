"""The vector store ``chroma``: one process for a directory, a server for many, and their failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chroma_server import ChromaServer
from pydantic import ValidationError

from flink_agents.api.errors import (
    ResourceUnavailableError,
    VectorStoreFormatError,
    VectorStoreInUseError,
    VectorStoreUnavailableError,
)
from flink_agents.api.vector_store import Document, VectorSpace
from flink_agents.models.retrieval.chroma import ChromaVectorStore

SPACE = VectorSpace(2)
DOCUMENT = Document("text", "a", {"n": 1}, (1.0, 0.0))

WRITE = """
import sys
from flink_agents.api.vector_store import Document, VectorSpace
from flink_agents.models.retrieval.chroma import ChromaVectorStore
store = ChromaVectorStore(eval(sys.argv[1]))
try:
    store.add("c", VectorSpace(2), [Document("text", "b", {"n": 2}, (0.0, 1.0))])
    print(store.count("c"))
except Exception as error:
    print(type(error).__name__)
"""


def in_another_process(options: dict[str, Any]) -> str:
    run = subprocess.run(
        [sys.executable, "-c", WRITE, repr(options)], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@pytest.mark.nightly
def test_a_directory_serves_one_process(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "chroma")}
    first = ChromaVectorStore(options)
    second = ChromaVectorStore(options)
    first.add("c", SPACE, [DOCUMENT])
    assert second.count("c") == 1
    assert in_another_process(options) == VectorStoreInUseError.__name__
    first.close()
    assert in_another_process(options) == VectorStoreInUseError.__name__
    second.close()
    assert in_another_process(options) == "2"


def test_a_server_serves_several_processes(chroma_server: ChromaServer) -> None:
    options = {"host": "localhost", "port": chroma_server.port, "database": chroma_server.new_database()}
    store = ChromaVectorStore(options)
    store.add("c", SPACE, [DOCUMENT])
    assert in_another_process(options) == "2"
    assert [match.id for match in store.query("c", SPACE, (0.0, 1.0), 2)] == ["b", "a"]
    store.close()


def test_a_server_that_is_away_is_named(tmp_path: Path) -> None:
    server = ChromaServer(tmp_path)
    store = ChromaVectorStore({"host": "localhost", "port": server.port})
    with pytest.raises(VectorStoreUnavailableError, match=f"localhost:{server.port}"):
        store.count("c")


def test_a_server_that_comes_back_is_used_again(tmp_path: Path) -> None:
    server = ChromaServer(tmp_path)
    server.start()
    store = ChromaVectorStore({"host": "localhost", "port": server.port})
    store.add("c", SPACE, [DOCUMENT])
    server.stop()
    with pytest.raises(VectorStoreUnavailableError):
        store.count("c")
    server.start()
    assert store.count("c") == 1
    store.close()
    server.stop()


def test_a_database_that_is_damaged_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "chroma"
    directory.mkdir()
    (directory / "chroma.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises((VectorStoreFormatError, VectorStoreUnavailableError)) as caught:
        ChromaVectorStore({"path": str(directory)}).count("c")
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"path": "a", "host": "b"}, {"path": "a", "pot": 1}, {"host": ""}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChromaVectorStore(options)


def test_a_secret_that_is_missing_is_named() -> None:
    options = {"host": "localhost", "headers": {"x-chroma-token": {"env": "NOBODY_SETS_THIS"}}}
    with pytest.raises(ResourceUnavailableError, match="header 'x-chroma-token'") as caught:
        ChromaVectorStore(options).count("c")
    assert "NOBODY_SETS_THIS" in (caught.value.expected or "")
