"""A file, and the command on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from journal_files import Cli
from typer.testing import CliRunner, Result

from flink_agents.cli.main import app


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
