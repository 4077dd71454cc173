"""``flink-agents erase``: what it removes from a journal, of which key, and what the job needs and keeps."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from journal_files import write
from pydantic import TypeAdapter
from typer.testing import CliRunner, Result
from written_journals import header

from flink_agents.api.action_state import JournalKey
from flink_agents.api.events.signals import Signal
from flink_agents.cli import erase
from flink_agents.cli.main import app
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.connectors.kafka.requests.desk import read_signal, signal_json
from flink_agents.runtime.serde.keys import encode_key
from tests.suite.tables import each_case
from tests.trace.clusters import cluster

pytestmark = pytest.mark.own_conditions

SIGNAL = TypeAdapter(Signal)
ASKED: list[Any] = []
ANSWER: dict[str, Any] = {
    "agent": "Shop",
    "outcome": "erased",
    "time": 1000.0,
    "values": 1,
    "journal": "orders/Shop",
    "through": 1,
}


def remaining_runs(file: Path, job: str, key: Any) -> list[int]:
    """Return the runs that a journal has."""

    async def read() -> list[int]:
        store = SQLiteStore(file)
        await store.open(None)
        try:
            return [record.seq for record in await store.scan(JournalKey(job, encode_key(key)))]
        finally:
            await store.close()

    return asyncio.run(read())


def erased(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
    key: str = "7",
    answers: list[dict[str, Any]] | None = None,
    begun: int | None = 2_000_000,
) -> Result:
    """Erase a key of a job that answers so, and whose last checkpoint began at a time."""

    class Requests:
        can_read_answers = True

        def ask_agents(self, request: Any, seconds: float) -> list[dict[str, Any]]:
            ASKED.append(request)
            return [ANSWER] if answers is None else answers

    def requests(*_: Any) -> Requests:
        return Requests()

    monkeypatch.setattr(erase, "requests_to", requests)
    monkeypatch.setattr("flink_agents.connectors.kafka.topics.describe_topic", described)
    served: dict[str, Any] = {
        "/jobs/overview": {"jobs": [{"jid": "1", "name": "orders", "state": "RUNNING"}]},
        "/jobs/1": {"vertices": [{"id": "v", "name": "Source -> agent Shop -> Sink"}]},
    }
    if begun is not None:
        served["/jobs/1/checkpoints"] = {"latest": {"completed": {"id": 3, "trigger_timestamp": begun}}}
    with cluster(bytes, served) as address:
        options = ["--signals", "answers", "--client", "a:1", "--cluster", address, "--timeout", "0"]
        store = ["--store", "sqlite", "--journal", str(file)]
        return CliRunner().invoke(app, ["erase", key, "--yes", *options, *store, *arguments])


def described(name: str, **client: Any) -> Any:
    class Topic:
        config: dict[str, str] = {}

    return Topic


@pytest.fixture
def filled(file: Path) -> Iterator[Path]:
    """Journals of two jobs and of keys that look alike, with the runs 0 to 2."""
    runs = [header(0), header(1), header(2)]
    keys = [("orders/Shop", 7), ("orders/Shop", "7"), ("bills/Shop", 7), ("orders/Shop", "s7")]
    write(file, *((job, key, runs) for job, key in keys))
    yield file


OTHERS = [("orders/Shop", "7"), ("bills/Shop", 7), ("orders/Shop", "s7")]


@each_case(
    "answers, begun, remaining, words",
    [
        (None, 2_000_000, [2], ["removed 2 records", "orders/Shop: keeps 1 runs: they came later"]),
        # Until a checkpoint has the ends of the runs, a restore reads their records.
        (None, 999_000, [0, 1, 2], ["keeps 3 runs: no checkpoint was completed"]),
        (None, None, [0, 1, 2], ["keeps 3 runs: no checkpoint was completed"]),
        # The inputs of its runs can still be replayed.
        ([{**ANSWER, "known": False, "journal": None, "through": None}], 2_000_000, [0, 1, 2], ["no answer"]),
        ([{**ANSWER, "through": "1"}], 2_000_000, [0, 1, 2], ["no answer of the job"]),
        ([{**ANSWER, "through": -1}], 2_000_000, [0, 1, 2], ["no answer of the job"]),
        ([{**ANSWER, "agent": "Other"}], 2_000_000, [0, 1, 2], ["no checkpoint"]),
    ],
)
def test_only_records_that_no_restart_needs_are_removed(
    answers: list[dict[str, Any]] | None,
    begun: int | None,
    remaining: list[int],
    words: list[str],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file.unlink(missing_ok=True)
    runs = [header(0), header(1), header(2)]
    write(file, ("orders/Shop", 7, runs), *((job, key, runs) for job, key in OTHERS))
    result = erased(file, monkeypatch, answers=answers, begun=begun)
    assert result.exit_code == 0, result.output
    assert remaining_runs(file, "orders/Shop", 7) == remaining
    assert all(word in result.output for word in words), result.output
    # Another job and other keys, which look alike, keep theirs.
    assert [remaining_runs(file, *journal) for journal in OTHERS] == [[0, 1, 2]] * len(OTHERS)
    assert "journal of bills/Shop: keeps 3 runs: no answer of the job" in result.output
    # It can be repeated.
    assert erased(file, monkeypatch, answers=answers, begun=begun).exit_code == 0
    assert remaining_runs(file, "orders/Shop", 7) == remaining


@dataclass(frozen=True)
class Place:
    country: str


@each_case("key", [Place("eu"), uuid.UUID(int=7)])
def test_a_key_that_json_does_not_have_is_named_by_its_text(
    key: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.unlink(missing_ok=True)
    text = encode_key(key)
    write(file, *(("orders/Shop", journal_key, [header(0)]) for journal_key in (key, text)))
    refused = erased(file, monkeypatch, key=text)
    assert refused.exit_code == 2 and "--raw" in refused.output
    ASKED.clear()
    result = erased(file, monkeypatch, "--raw", key=text)
    assert result.exit_code == 0, result.output
    assert remaining_runs(file, "orders/Shop", key) == [] and remaining_runs(file, "orders/Shop", text) == [0]
    assert read_signal(SIGNAL.validate_json(signal_json(ASKED[0]))).key == key
    # In quotes, the same text is a string.
    assert erased(file, monkeypatch, key=json.dumps(text)).exit_code == 0
    assert remaining_runs(file, "orders/Shop", text) == []


@each_case("key, chosen", [('"7"', "7"), ("7", 7), ("s7", "s7")])
def test_the_one_key_is_erased_that_is_named(
    key: str, chosen: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.unlink(missing_ok=True)
    keys: list[Any] = [7, "7", "s7"]
    write(file, *(("orders/Shop", journal_key, [header(0), header(1)]) for journal_key in keys))
    assert erased(file, monkeypatch, key=key).exit_code == 0
    assert [remaining_runs(file, "orders/Shop", journal_key) for journal_key in keys] == [
        []
        if journal_key is chosen or (type(journal_key) is type(chosen) and journal_key == chosen)
        else [0, 1]
        for journal_key in keys
    ]


@each_case(
    "answers, code",
    [([{**ANSWER, "outcome": "rejected", "reason": "unfinished"}], 1), ([], 4)],
)
def test_a_key_that_the_job_does_not_erase_keeps_all(
    answers: list[dict[str, Any]], code: int, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace names the runs to end first."""
    trace = tmp_path / "a.trace.jsonl"
    trace.write_text('{"key":"i7"}\n')
    result = erased(filled, monkeypatch, "--path", str(trace), answers=answers)
    assert result.exit_code == code
    assert remaining_runs(filled, "orders/Shop", 7) == [0, 1, 2]
    assert trace.read_text() == '{"key":"i7"}\n'
