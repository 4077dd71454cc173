"""Embeddings, documents and memories in actions: what is recorded, repeated, and found again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from retrieval_agents import Rag

from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import ActionFailedError, AppendOutcomeUnknownError
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

DOCUMENTS = (
    "The parcel arrived broken and I want my money back",
    "How do I reset my password?",
    "Shipping to Norway takes five days",
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "vectors.sqlite")


@pytest.fixture
def drive(agent_harness: Callable[..., OperatorHarness], path: str) -> Callable[..., OperatorHarness]:
    """Makes a harness of ``Rag`` whose records are those of one job."""

    def make(dimensions: int = 256, **options: Any) -> OperatorHarness:
        options.setdefault("config", {"job-identifier": "support"})
        return agent_harness(Rag(path, dimensions), lambda record: record[0][1], **options)

    return make


def do(*steps: list[Any] | tuple[Any, ...]) -> list[Any]:
    return [list(step) for step in steps]


def keyed(key: Any, *steps: tuple[Any, ...]) -> list[Any]:
    """An input of a key: its first step looks for a document of that text."""
    return do(("find", key), *steps)


def test_documents_are_found_by_meaning(drive: Callable[..., OperatorHarness]) -> None:
    harness = drive()
    results = harness.push(keyed("", ("add", *DOCUMENTS), ("find", "forgot login credentials")))
    assert results[2] == [DOCUMENTS[1]]
    assert harness.push(keyed("delivery abroad")) == [[DOCUMENTS[2]]]
    assert harness.push(keyed("", ("find", "anything", 9, {"size": {"$lt": 30}})))[1] == [DOCUMENTS[1]]


def test_derived_ids_follow_from_the_run(drive: Callable[..., OperatorHarness]) -> None:
    harness = drive()
    first = harness.push(keyed("a", ("add", "x", "y"), ("add", "x")))
    ids = [*first[1], *first[2], *harness.push(keyed("a", ("add", "x")))[1]]
    ids += harness.push(keyed("b", ("add", "x")))[1]
    assert len(set(ids)) == len(ids) == 5


def test_an_update_embeds_the_new_text(drive: Callable[..., OperatorHarness]) -> None:
    harness = drive()
    harness.push(keyed("", ("add_as", "a", DOCUMENTS[0]), ("add_as", "b", DOCUMENTS[1])))
    steps = (("update", "a", DOCUMENTS[2]), ("find", "delivery abroad"), ("find", "broken parcel"))
    assert harness.push(keyed("", *steps))[1:] == [["a"], [DOCUMENTS[2]], [DOCUMENTS[2]]]
    assert harness.push(keyed("", ("update", "nobody", "x")))[1] == []


@pytest.mark.executes_once
@pytest.mark.parametrize(
    ("step", "method"),
    [
        (("add", "x", "y"), "add"),
        (("add_as", "a", "x"), "add"),
        (("update", "old", "x"), "update"),
        (("delete", {"size": 1}), "delete"),
        (("remember", "x"), "add"),
    ],
)
def test_a_write_whose_record_is_lost_is_repeated_without_effect(
    drive: Callable[..., OperatorHarness], path: str, step: tuple[Any, ...], method: str
) -> None:
    """The process dies between the write and its record, so that the write happens twice."""
    faults = Faults()
    harness = drive(store=faults.store, crash=None)
    harness.push(keyed("k", ("add_as", "old", "o"), ("add", "p")))
    snapshot = harness.snapshot()
    name = f"vector_store:docs.{method}".encode()
    lost: list[int] = []

    def lose(asked: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        if lost or not any(record.kind is RecordKind.CALL and name in record.data for record in records):
            return None
        lost.append(asked)
        return Fault.LOST

    faults.choose = lose
    with pytest.raises(AppendOutcomeUnknownError):
        harness.push(keyed("k", step))
    once = contents(path)
    changes = counted(path)
    harness.restore(snapshot)
    harness.push(keyed("k", step))
    assert len(lost) == 1
    assert contents(path) == once
    # A second deletion finds nothing; a second write was made.
    assert counted(path) == changes + (method != "delete")


@pytest.mark.executes_once
def test_a_replay_takes_what_was_found_then(drive: Callable[..., OperatorHarness], path: str) -> None:
    """The process dies before the end of the action is recorded, so that its code is executed again."""
    faults = Faults()
    harness = drive(store=faults.store, crash=None)
    harness.push(keyed("x", ("add_as", "a", "x")))
    snapshot = harness.snapshot()
    faults.choose = at_record(RecordKind.ACTION, Fault.LOST)
    steps = keyed("x", ("find", "x", 5), ("all",), ("recall all",))
    with pytest.raises(AppendOutcomeUnknownError):
        harness.push(steps)
    store = SQLiteVectorStore({"path": path})
    store.delete("docs")
    harness.restore(snapshot)
    assert harness.push(steps) == [["x"], ["x"], ["x"], []]
    assert store.count("docs") == 0


@pytest.mark.executes_once
def test_a_replay_needs_no_store(drive: Callable[..., OperatorHarness], path: str) -> None:
    faults = Faults(at_record(RecordKind.ACTION, Fault.LOST))
    harness = drive(store=faults.store, crash=None)
    snapshot = harness.snapshot()
    steps = keyed("x", ("add_as", "a", "x"), ("find", "x", 5))
    with pytest.raises(AppendOutcomeUnknownError):
        harness.push(steps)
    harness.close()
    for name in (path, f"{path}-wal", f"{path}-shm"):
        Path(name).unlink(missing_ok=True)
    Path(path).mkdir()
    harness.restore(snapshot, parallelism=1)
    assert harness.push(steps) == [[], ["a"], ["x"]]


@pytest.mark.own_conditions
@pytest.mark.parametrize(
    "steps",
    [
        (("add", "x", "y", "z"), ("find", "x", 2)),
        (("remember", "likes tea", "has a dog"), ("compact", 1, 0), ("recall", "drinks")),
    ],
)
def test_a_crash_anywhere_makes_no_difference(
    drive: Callable[..., OperatorHarness], steps: tuple[Any, ...]
) -> None:
    drive(crash="everywhere").push(keyed("k", *steps))


def test_another_model_is_refused_by_name(drive: Callable[..., OperatorHarness]) -> None:
    drive().push(keyed("", ("add", "x")))
    harness = drive(dimensions=64)
    with pytest.raises(ActionFailedError, match="EmbeddingMismatchError") as caught:
        harness.push(keyed("x"))
    text = str(caught.value)
    assert "expected: 256 dimensions of wordllama:l2_supercat_256" in text
    assert "found: 64 dimensions of wordllama:l2_supercat_256" in text


def test_memories_are_of_their_key_and_scope(drive: Callable[..., OperatorHarness]) -> None:
    harness = drive()
    harness.push(keyed("ada", ("remember", "likes tea", "lives in Oslo")))
    harness.push(keyed("bo", ("remember", "likes coffee"), ("remember of", "ada", "orders", "order 7")))
    assert harness.push(keyed("ada", ("recall", "favourite drink"), ("recall all",)))[1:] == [
        ["likes tea"],
        ["likes tea", "lives in Oslo"],
    ]
    assert harness.push(keyed("bo", ("recall all",), ("recall all", "orders", "ada")))[1:] == [
        ["likes coffee"],
        ["order 7"],
    ]


def test_memories_belong_to_the_job_identifier(drive: Callable[..., OperatorHarness]) -> None:
    drive().push(keyed("ada", ("remember", "likes tea")))
    assert drive(job_id="another submission").push(keyed("ada", ("recall all",)))[1] == ["likes tea"]
    assert drive(config={"job-identifier": "sales"}).push(keyed("ada", ("recall all",)))[1] == []
    with pytest.raises(ActionFailedError, match="job-identifier"):
        drive(config={}).push(keyed("ada", ("recall all",)))


def test_compaction_puts_one_summary_in_place_of_the_oldest(drive: Callable[..., OperatorHarness]) -> None:
    harness = drive()
    harness.push(keyed("k", ("remember", "1", "2"), ("remember", "3"), ("remember", "4", "5")))
    harness.push(keyed("other", ("remember", "6")))
    assert harness.push(keyed("k", ("compact", 5, 2), ("compact", 4, 2), ("recall all",)))[1:] == [
        False,
        True,
        ["1 + 2 + 3", "4", "5"],
    ]
    assert harness.push(keyed("other", ("recall all",)))[1] == ["6"]


def contents(path: str) -> list[Any]:
    """All rows of documents and fields, without the counts of changes."""
    with sqlite3.connect(path) as connection:
        documents = connection.execute(
            "SELECT collections.name, documents.id, text, metadata, vector FROM documents "
            "JOIN collections ON collections.id = collection ORDER BY 1, 2"
        ).fetchall()
        fields = connection.execute("SELECT name, kind, value FROM fields ORDER BY 1, 2, 3").fetchall()
    connection.close()
    return [*documents, *fields]


def counted(path: str) -> int:
    """How many changes all collections have seen."""
    with sqlite3.connect(path) as connection:
        changes = connection.execute("SELECT sum(changes) FROM collections").fetchone()[0]
    connection.close()
    return changes
