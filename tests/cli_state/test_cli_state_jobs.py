"""A module that runs its job when it is imported starts none where a command looks at a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.cli.main import app
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.testing import OperatorHarness

JOB = """
from flink_agents.runtime.flink.job import Job
from test_cli_state_jobs import Desk

Job.__new__(Job).execute()  # as execute() begins: there is no Flink here
"""


def charge(order: str) -> str:
    return f"receipt of {order}"


class Desk(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))


@pytest.mark.parametrize(
    "words", [("replay", "a", "0", "--agent", "own_job:Desk"), ("show", "a", "--module", "own_job")]
)
def test_no_job_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_job.py").write_text(JOB)
    file = tmp_path / "calls.db"
    with OperatorHarness(Desk, lambda record: record, store=lambda: SQLiteStore(file)) as harness:
        harness.push("a")
    done = CliRunner().invoke(app, ["journal", *words, "--store", "sqlite", "--path", str(file)])
    assert done.exit_code == 2, done.output
    first = done.stderr.splitlines()[0]
    assert first.startswith("MissingMainGuardError: own_job.py:")
    assert f"flink-agents state {words[0]} imports the module" in first
