"""The vector store ``sqlite``: its file, the processes that write it, and the host that it belongs to."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, Configuration, InputEvent, ResourceDescriptor
from flink_agents.api.errors import (
    RetrievalError,
    VectorStoreFormatError,
    VectorStoreInUseError,
    VectorStoreUnavailableError,
)
from flink_agents.api.vector_store import Document, VectorSpace
from flink_agents.models.retrieval.sqlite.hosts import VERSION, Host
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore
from flink_agents.plan import LoadedAgent, compile_with_code

SPACE = VectorSpace(2)
WRITER = Path(__file__).with_name("vector_writer.py")
JOB = Path(__file__).with_name("vector_job.py")
HERE = Host("boot-1", "worker-1")
THERE = Host("boot-2", "worker-2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.sqlite"


def store_of(path: Path, at: Host | None = None, /, **options: Any) -> SQLiteVectorStore:
    return SQLiteVectorStore({"path": str(path), **options}, at)


def document(id: str, text: str = "text", **metadata: int) -> Document:
    return Document(text, id, metadata, (1.0, 0.0))


# -- processes ------------------------------------------------------------------------


def test_two_processes_write_at_once(path: Path) -> None:
    command = [sys.executable, str(WRITER), str(path)]
    writers = [subprocess.Popen([*command, name, "100"], stdout=subprocess.PIPE) for name in ("a", "b")]
    outputs = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    store = store_of(path)
    assert store.count("c") == 200
    # Both wrote the shared document, and each of its fields is there once.
    assert len(store.get("shared")) == store.count("shared", {"n": {"$gte": 0}}) == 1
    assert len(store.query("c", SPACE, (1.0, 0.0), 300)) == 200
    check(path)


@pytest.mark.nightly
def test_two_jobs_keep_apart_in_one_file(path: Path) -> None:
    """Both write, search and delete at once, and die at each point."""
    command = [sys.executable, str(JOB), str(path)]
    jobs = [
        subprocess.Popen([*command, name, "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in ("anna", "bert")
    ]
    for name, job in zip(("anna", "bert"), jobs, strict=True):
        stdout, wrong = job.communicate()
        assert job.returncode == 0, wrong
        assert json.loads(stdout.splitlines()[-1]) == [[number, number, name] for number in range(1, 4)]
    store = store_of(path)
    assert store.count("docs", {"by": "anna"}) == store.count("docs", {"by": "bert"}) == 3
    assert len(store.get("docs", ["shared"])) == 1 and store.count("docs") == 7
    check(path)


def test_a_process_that_is_killed_leaves_whole_documents(path: Path) -> None:
    command = [sys.executable, str(WRITER), str(path), "a", "1000000"]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    store = store_of(path)
    while store.count("c") < 20:
        time.sleep(0.01)
    writer.kill()
    writer.communicate()
    count = store.count("c")
    assert count == store.count("c", {"n": {"$gte": 0}}) == len(store.query("c", SPACE, (1.0, 0.0), 10**6))
    store.add("c", SPACE, [document("mine")])
    assert store.count("c") == count + 1
    check(path)


def check(path: Path) -> None:
    """The file is sound, and each entry of metadata has its row."""
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (fields,) = connection.execute("SELECT count(*) FROM fields").fetchone()
        (named,) = connection.execute(
            "SELECT count(*) FROM documents, json_each(documents.metadata)"
        ).fetchone()
    connection.close()
    assert fields == named


# -- hosts ----------------------------------------------------------------------------


def test_a_second_host_is_refused_by_name(path: Path) -> None:
    first = store_of(path, HERE, lease=60)
    first.add("c", SPACE, [document("a")])
    second = store_of(path, THERE, lease=60)
    with ThreadPoolExecutor(1) as thread, pytest.raises(VectorStoreInUseError) as caught:
        opening = thread.submit(second.count, "c")
        while not opening.done():
            # It is in use: each write renews its lease.
            first.add("c", SPACE, [document("a")])
        opening.result()
    error = caught.value
    assert (error.expected, error.found) == ("all subtasks on worker-1", "a subtask on worker-2")
    assert first.count("c") == 1


def test_a_host_that_has_gone_is_followed_by_another(path: Path) -> None:
    first = store_of(path, HERE, lease=0.2)
    first.add("c", SPACE, [document("a")])
    second = store_of(path, THERE, lease=0.2)
    assert second.count("c") == 1
    # It was away for longer than its lease: nothing of it is written any more, nor read.
    for use in (lambda: first.add("c", SPACE, [document("b")]), lambda: first.count("c")):
        with pytest.raises(VectorStoreInUseError, match="serves one"):
            use()
    second.add("c", SPACE, [document("c")])
    assert second.count("c") == 2


def test_processes_of_one_host_share_the_file(path: Path) -> None:
    first = store_of(path, HERE)
    second = store_of(path, Host(HERE.boot, "another container"))
    first.add("c", SPACE, [document("a")])
    assert second.count("c") == 1


def test_another_host_than_the_named_one_is_refused(path: Path) -> None:
    store_of(path, HERE, host="worker-1").add("c", SPACE, [document("a")])
    with pytest.raises(VectorStoreInUseError, match="serves one") as caught:
        store_of(path.with_name("own.sqlite"), THERE, host="worker-1").count("c")
    assert caught.value.expected == "all subtasks on worker-1"
    assert not path.with_name("own.sqlite").exists()


def test_a_job_for_a_cluster_names_the_host() -> None:
    def bound(**said: str) -> LoadedAgent:
        agent = Agent(name="a").add_action("act", InputEvent, lambda event, ctx: None)
        agent.add_resource("docs", "vector_store", ResourceDescriptor(**said))
        return LoadedAgent(*compile_with_code(agent))

    with pytest.raises(VectorStoreInUseError, match="'docs' is a file on one host"):
        bound(path="v.sqlite").check_cluster(Configuration())
    bound(path="v.sqlite", host="worker-1").check_cluster(Configuration())
    configured = Configuration({"vector-stores.docs.host": "worker-1"})
    bound(path="v.sqlite").check_cluster(configured)
    bound(store="chroma", host="chroma").check_cluster(Configuration())
    with pytest.raises(VectorStoreInUseError, match="'docs' is a directory of one process"):
        bound(store="chroma", path="chroma").check_cluster(Configuration())


# -- the file -------------------------------------------------------------------------


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "vectors.sqlite"
    store_of(path).add("c", SPACE, [document("a")])
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"no database", b"no database" * 1000, os.urandom(10_000)])
def test_a_file_of_something_else_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(VectorStoreFormatError, match=r"vectors\.sqlite is corrupt"):
        store_of(path).count("c")
    assert path.read_bytes() == content


def test_a_damaged_page_is_named(path: Path) -> None:
    store = store_of(path)
    store.add("c", SPACE, [document(f"{n:04}", "x" * 500) for n in range(200)])
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096 * 4 : 4096 * 20] = os.urandom(4096 * 16)
    path.write_bytes(content)
    with pytest.raises(VectorStoreFormatError, match="is corrupt"):
        store_of(path).get("c")


def test_a_vector_that_was_cut_is_named(path: Path) -> None:
    store = store_of(path)
    store.add("c", SPACE, [document("a")])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE documents SET vector = x'00'")
    connection.close()
    with pytest.raises(VectorStoreFormatError, match="is corrupt"):
        store.query("c", SPACE, (1.0, 0.0), 1)
    with pytest.raises(VectorStoreFormatError, match="is corrupt"):
        store.get("c", embeddings=True)


def test_a_newer_file_is_refused(path: Path) -> None:
    store_of(path).add("c", SPACE, [document("a")])
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={VERSION + 1}")
    connection.close()
    with pytest.raises(VectorStoreFormatError, match="newer version"):
        store_of(path).count("c")


def test_a_database_of_something_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(VectorStoreFormatError, match="another program"):
        store_of(path).count("c")


def test_a_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VectorStoreUnavailableError):
        store_of(tmp_path).count("c")


def test_a_file_that_is_locked_is_waited_for_and_named(path: Path) -> None:
    store = store_of(path, busy_timeout=0.1)
    store.add("c", SPACE, [document("a")])
    other_connection = sqlite3.connect(path, isolation_level=None)
    other_connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(RetrievalError, match="locked"):
        store.add("c", SPACE, [document("b")])
    assert store.count("c") == 1
    other_connection.execute("ROLLBACK")
    other_connection.close()
    store.add("c", SPACE, [document("b")])
    assert store.count("c") == 2


def test_a_failed_write_leaves_nothing(path: Path) -> None:
    store = store_of(path)
    store.add("c", SPACE, [document("a", n=1)])
    with pytest.raises(AssertionError):
        store.add("c", SPACE, [document("a", n=2), Document("without embedding", "b")])
    assert store.get("c") == [Document("text", "a", {"n": 1})]
    check(path)


def test_only_what_changed_is_read_again(path: Path) -> None:
    store = store_of(path)
    second_store = store_of(path)
    store.add("c", SPACE, [document("a"), document("b")])
    assert len(store.query("c", SPACE, (1.0, 0.0), 9)) == 2
    second_store.add("c", SPACE, [Document("text", "b", {}, (0.0, 1.0)), document("c")])
    with sqlite3.connect(path) as connection:
        # A vector that did not change is not looked at.
        connection.execute("UPDATE documents SET vector = x'00' WHERE id = 'a'")
    connection.close()
    assert [match.id for match in store.query("c", SPACE, (0.0, 1.0), 9)] == ["b", "a", "c"]
    second_store.delete("c", ["c"])
    with pytest.raises(VectorStoreFormatError):
        store.query("c", SPACE, (0.0, 1.0), 9)
