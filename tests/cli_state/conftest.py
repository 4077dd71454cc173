"""A file, and the command on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from journal_files import Cli, write
from typer.testing import CliRunner, Result
from written_journals import CHARGE, CODEC, call, header

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.cli.main import app
from flink_agents.runtime.journal.records import ActionRecord
from flink_agents.runtime.state.keyed_state import OBJECT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


@pytest.fixture
def cli(file: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("FLINK_AGENTS_CONFIG", "FLINK_AGENTS_ACTION_STATE_STORE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, code: int = 0, store: bool = True) -> Result:
        options = ["--store", "sqlite", "--path", str(file)] if store else []
        result = CliRunner().invoke(app, ["journal", *arguments, *options])
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def journal(file: Path) -> list[Record]:
    """A run with every kind of record, and a second one that has begun."""
    action = ActionRecord(
        {"total": CODEC.encode(5), "old": None, "tree": OBJECT},
        {"seen": CODEC.encode(1)},
        [["Paid", {"id": 1}]],
        [["log", "x"]],
        2,
    )
    refused = {"type": "shop:CardRefused", "message": "no\x1b[31m funds", "args": None}
    records = [
        header(0),
        Record(RecordKind.INTENT, 0, "0/pay", 0, CHARGE.pack(CODEC)),
        Record(RecordKind.CALL, 0, "0/note", 0, call({"id": 7})),
        Record(RecordKind.CALL, 0, "0/pay", 0, call(error=refused, attempts=3)),
        Record(
            RecordKind.CALL, 0, "0/pay", 1, call(error={"type": "", "message": "cancelled", "args": None})
        ),
        Record(RecordKind.RERUN, 0, "0/note", 0, b""),
        Record(RecordKind.ACTION, 0, "0/pay", 2, action.pack(CODEC)),
        header(1),
        Record(RecordKind.INTENT, 1, "0/pay", 0, CHARGE.pack(CODEC)),
    ]
    write(file, ("orders", "order-1", records))
    return records
