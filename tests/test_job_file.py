"""``flink-agents.toml``: options that commands otherwise take each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from flink_agents.cli.job_file import defaults_of, read_job_file
from flink_agents.cli.main import app
from tests.suite.tables import each
from tests.ui.samples import records_of_run, write

pytestmark = pytest.mark.own_conditions

ALL = """
cluster = "localhost:8081"
client = "localhost:9092"
path = "traces"
trace-topic = "trace"
requests = "asked"
signals = "answers"
answers = "replies"
dead-letters = ["letters", "more"]
store = "sqlite"
journal = "state.db"
plan = "agents.py:Refunds"

[jobs.refunds]
signals = "refund-signals"
cluster = "other:8081"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("FLINK_AGENTS_JOB", "FLINK_AGENTS_JOB_FILE", "FLINK_AGENTS_TRACE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def asked(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_commands_take_what_the_file_says(here: Path) -> None:
    file = here / "flink-agents.toml"
    file.write_text(ALL, encoding="utf-8")
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    found = defaults_of(group, read_job_file(file))
    traces, journal = str(here / "traces"), str(here / "state.db")
    places = {"path": traces, "trace_topic": "trace", "client": "localhost:9092"}
    job = {"cluster": "localhost:8081", "signals": "answers", "answers": "replies"}
    stored = {"store": "sqlite", "journal": journal}
    # Their --cluster reads records from logs, so files would not be read.
    assert found["runs"] == {**places, "end": {**places, **job}} and found["trace"] == places
    assert found["top"] == {**places, "cluster": "localhost:8081"}
    assert found["why"] == {**places, **job, **stored, "requests": "asked", "dead_letters": "letters"}
    assert found["erase"] == {**places, **job, **stored}
    everything = {"requests": "asked", "dead_letters": ["letters", "more"], "plan": ["agents.py:Refunds"]}
    assert found["ui"] == {**places, **job, **stored, **everything}
    answered = {"topic": "asked", "signals": "answers", "bootstrap_servers": "localhost:9092"}
    assert found["approvals"]["approve"] == found["approvals"]["deny"] == answered
    assert found["signal"] == {"topic": "answers", "bootstrap_servers": "localhost:9092"}
    assert found["kafka"]["redrive"] == {"client": "localhost:9092"}
    assert found["journal"]["show"]["store"] == "sqlite"
    # What would check or change another cluster than you think takes nothing.
    assert not {"doctor", "run", "cluster", "demo", "new"} & found.keys()
    assert defaults_of(group, read_job_file(file, "refunds"))["ui"]["signals"] == "refund-signals"


def test_the_file_is_found_and_options_go_before_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here / "traces", records_of_run(1, "sfirst", "completed"))
    write(here / "others", records_of_run(2, "ssecond", "completed"))
    file = here / "flink-agents.toml"
    file.write_text('path = "traces"\n[jobs.other]\npath = "others"\n', encoding="utf-8")

    def keys(*arguments: str) -> list[str]:
        return [json.loads(line)["key"] for line in asked(*arguments).stdout.splitlines()]

    first, second = keys("runs", "--json"), keys("--job", "other", "runs", "--json")
    assert first and second and first != second
    assert keys("runs", "--json", "--path", "others") == second
    monkeypatch.setenv("FLINK_AGENTS_JOB", "other")
    assert keys("runs", "--json") == second
    monkeypatch.delenv("FLINK_AGENTS_JOB")
    # From elsewhere: paths are those beside the file.
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    monkeypatch.setenv("FLINK_AGENTS_JOB_FILE", str(file))
    assert keys("runs", "--json") == first
    # A command without options of the file works, whatever the environment says.
    assert asked("version").exit_code == 0


@each(
    ("text", "words"),
    [
        ("signal = 'a'", ("signal", "signals")),
        ("cluster = 8081", ("cluster", "a string")),
        ("dead-letters = [1]", ("dead-letters", "list of strings")),
        ("jobs = 'a'", ("jobs", "[jobs.orders]")),
        ("[jobs.a]\nhost = 'b'", ("host", "signals")),
        ("cluster = ", ("cannot be read",)),
        ("\x00", ("cannot be read",)),
    ],
)
def test_an_invalid_file_is_an_error(text: str, words: tuple[str, ...], here: Path) -> None:
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    told = asked("runs")
    assert told.exit_code == 2 and "FA1100" in told.output
    assert all(word in told.output for word in words), told.output


def test_a_job_that_is_not_there_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked("--job", "a", "runs").exit_code == 2
    (here / "flink-agents.toml").write_text("[jobs.b]", encoding="utf-8")
    told = asked("--job", "a", "runs")
    assert told.exit_code == 2 and "no job 'a'" in told.output and "'b'" in told.output
    monkeypatch.setenv("FLINK_AGENTS_JOB_FILE", str(here / "none.toml"))
    assert "FA1100" in asked("runs").output
