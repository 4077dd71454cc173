"""``flink-agents.toml``: options that commands otherwise take each time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from flink_agents.api.errors import OptionError
from flink_agents.cli.job_file import defaults_of, given_options, read_job_file
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
    # Like the paths, whatever the working directory is.
    plan = [str(here / "agents.py:Refunds")]
    everything = {"requests": "asked", "dead_letters": ["letters", "more"], "plan": plan}
    assert found["ui"] == {**places, **job, **stored, **everything}
    answered = {"topic": "asked", "signals": "answers", "bootstrap_servers": "localhost:9092"}
    assert found["approvals"]["approve"] == found["approvals"]["deny"] == answered
    assert found["signal"] == {"topic": "answers", "bootstrap_servers": "localhost:9092"}
    assert found["kafka"]["redrive"] == {"client": "localhost:9092"}
    # Their --path is no directory of traces.
    assert found["journal"]["show"] == {"store": "sqlite", "path": journal} == found["journal"]["reset"]
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
        ("cluster = 8081", ("cluster", "a string")),
        ("dead-letters = [1]", ("dead-letters", "list of strings")),
        ("jobs = 'a'", ("jobs", "[jobs.orders]")),
        ("[jobs.a]\nhost = 'b'", ("host", "signals")),
        ("cluster = ", ("cannot be read",)),
        ("\x00", ("cannot be read",)),
        ("signals = " + 100_000 * "[", ("cannot be read", "Recursion")),
        ("#" + (1 << 20) * "a", ("cannot be read", "1,048,576")),
        ("signal = 'a'", ("unknown", "write signals")),
        ("password = 'hunter2'", ("password", "signals")),
        ("[client]\nsasl_plain_password = 'hunter2'", ("client", "a table")),
        ("client = ['hunter2']", ("client", "a list of 1")),
        ("jobs = 'hunter2'", ("jobs",)),
        ("signals = ''", ("signals", "empty")),
        ("path = 'a\\u0000hunter2'".replace("'", '"'), ("path", "control")),
        ("plan = ['agents.py:A', '']", ("plan",)),
        ("cluster = 2026-01-01", ("cluster", "date")),
    ],
)
def test_an_invalid_file_is_an_error(text: str, words: tuple[str, ...], here: Path) -> None:
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    told = asked("runs")
    assert told.exit_code == 2 and "FA1100" in told.output
    assert all(word in told.output for word in words), told.output
    # An invalid value may be a password.
    assert "hunter2" not in told.output
    # What needs no option of the file helps to mend it.
    for command in (["version"], ["explain", "FA1100"], ["why", "--help"], ["doctor", "--help"]):
        assert asked(*command).exit_code == 0, command


@each(
    "content",
    [b'\xef\xbb\xbfpath = "traces"\r\n', b'path = "traces"', b'path = "traces"\n[jobs.path]\npath = "b"'],
)
def test_a_file_of_any_editor_is_read(content: bytes, here: Path) -> None:
    (here / "flink-agents.toml").write_bytes(content)
    assert read_job_file(here / "flink-agents.toml")["path"] == str(here / "traces")


@each("path, expected", [("~nobody-such/a", "~nobody-such/a"), ("/a/b", "/a/b"), ("../a", "../a")])
def test_each_path_is_beside_the_file(path: str, expected: str, here: Path) -> None:
    (here / "flink-agents.toml").write_text(f"path = '{path}'\nplan = 'a.b:C'", encoding="utf-8")
    found = read_job_file(here / "flink-agents.toml")
    assert found == {"path": str(here / expected), "plan": ["a.b:C"]}


def test_what_is_no_file_is_an_error(here: Path) -> None:
    file = here / "flink-agents.toml"
    file.mkdir()
    told = asked("runs")
    assert told.exit_code == 2 and "cannot be read" in told.output
    file.rmdir()
    file.symlink_to("nowhere")
    told = asked("runs")
    assert told.exit_code == 2 and "cannot be read" in told.output


def test_help_shows_no_secret_of_the_file(here: Path) -> None:
    text = "client = '{\"sasl_plain_password\": \"hunter2\"}'\ncluster = 'http://a:hunter2@b'"
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    for command in (["top"], ["why"], ["runs", "end"], ["signal"], ["kafka", "topic", "list"]):
        told = asked(*command, "--help")
        assert told.exit_code == 0 and "hunter2" not in told.output, command


@each("command", [["why", "--", "--help"], ["trace", "--key", "--help"], ["runs", "--agent", "--help"]])
def test_a_key_that_looks_like_an_option_is_none(command: list[str], here: Path) -> None:
    write(here / "traces", records_of_run(1, "s--help", "completed", agent="--help"))
    (here / "flink-agents.toml").write_text('path = "traces"\nsignals = "answers"', encoding="utf-8")
    told = asked(*command)
    assert told.exit_code == 0 and "completed" in told.output, told.output


def test_an_option_that_would_be_ignored_is_an_error(here: Path) -> None:
    (here / "flink-agents.toml").write_text('path = "traces"', encoding="utf-8")
    told = asked("--job", "refunds", "doctor")
    assert told.exit_code == 2 and "--job" in told.output and "doctor" in told.output
    told = asked("runs", "--trace-topic", "a", "end", "run", "--signals", "b")
    assert told.exit_code == 2 and "write --trace-topic behind 'end'" in told.output


def test_the_file_of_another_user_is_rejected(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could import code, and name brokers that get answers."""
    file = here / "flink-agents.toml"
    file.write_text('path = "traces"', encoding="utf-8")
    write(here / "traces", records_of_run(1, "sfirst", "completed"))
    assert asked("runs").exit_code == 0
    owner = file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    # The superuser could replace this program as well.
    allowed = owner == 0
    if allowed:
        assert asked("runs").exit_code == 0
        try:
            os.chown(file, 4242, -1)
        except PermissionError:
            return
    told = asked("runs")
    assert told.exit_code == 2 and "another user" in told.output and "FLINK_AGENTS_JOB_FILE" in told.output
    assert asked("version").exit_code == 0
    monkeypatch.setenv("FLINK_AGENTS_JOB_FILE", str(file))
    assert asked("runs").exit_code == 0


@each(
    ("command", "arguments", "left_out"),
    [
        ("runs", ["--path", "a"], {"path", "trace_topic"}),
        ("runs", ["--trace-topic=a"], {"path", "trace_topic"}),
        ("trace", ["--cluster", "a"], {"path", "trace_topic"}),
        ("why", ["--cluster", "a"], set[str]()),
        ("why", ["--journal", "a"], {"store"}),
        ("ui", ["--trace-topic", "a"], {"path", "trace_topic"}),
        ("cancel", ["--data", "a"], {"cluster"}),
        ("stop", ["--data=a"], {"cluster"}),
        ("runs end", ["end", "--cluster", "a"], set[str]()),
        ("runs end", ["end", "--path", "a"], {"path", "trace_topic"}),
        ("kafka topic list", ["topic", "list", "--data", "a"], {"client"}),
        ("journal show", ["show", "k", "--path", "a"], {"store"}),
        ("erase", ["--path", "a"], set[str]()),
        # These are keys and values.
        ("why", ["--", "--path"], set[str]()),
        ("why", ["key", "--requests", "--path", "--dead-letters=--journal"], set[str]()),
        ("runs end", ["end", "run", "--reason", "--path"], set[str]()),
    ],
)
def test_an_option_goes_before_the_other_places_of_the_file(
    command: str, arguments: list[str], left_out: set[str], here: Path
) -> None:
    (here / "flink-agents.toml").write_text(ALL, encoding="utf-8")
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    values = read_job_file(here / "flink-agents.toml")
    before: Any = defaults_of(group, values)
    after: Any = defaults_of(group, values, given_options(group, [command.split()[0], *arguments]))
    for name in command.split():
        before, after = before[name], after[name]
    assert before.keys() - after.keys() == {one for one in left_out if one in before}
    assert left_out & before.keys() or not left_out


def test_a_trace_that_you_name_is_the_only_one(here: Path) -> None:
    write(here / "others", records_of_run(2, "ssecond", "completed"))
    text = 'path = "traces"\ntrace-topic = "trace"\nclient = "localhost:1"'
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    told = asked("runs", "--json", "--path", "others")
    assert told.exit_code == 0 and len(told.stdout.splitlines()) == 1


def test_signals_and_approvals_take_options_of_the_client_as_the_others_do(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[dict[str, Any]]()

    class Desk:
        def __init__(self, signals: str | None, requests: str | None, **client: Any) -> None:
            made.append({"signals": signals, "requests": requests, **client})
            raise OptionError("no brokers here")

    monkeypatch.setattr("flink_agents.connectors.kafka.requests.desk.KafkaApprovals", Desk)
    client = """client = '{"bootstrap_servers": "a:1", "security_protocol": "SSL"}'"""
    text = f"requests = 'asked'\nsignals = 'answers'\n{client}"
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    brokers = {"bootstrap_servers": "a:1", "security_protocol": "SSL"}
    asked("signal", "--name", "a", "--key", "k", "--topic", "answers")
    asked("signal", "--name", "a", "--key", "k", "-o", "security_protocol=SASL_SSL")
    asked("approvals", "list")
    asked("approvals", "list", "--bootstrap-servers", "b:2")
    assert made == [
        {"signals": "answers", "requests": None, **brokers},
        {"signals": "answers", "requests": None, **brokers, "security_protocol": "SASL_SSL"},
        {"signals": None, "requests": "asked", **brokers},
        {"signals": None, "requests": "asked", "bootstrap_servers": "b:2"},
    ]


def test_a_variable_of_a_job_does_not_matter_to_commands_without_options(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_JOB", "refunds")
    assert asked("version").exit_code == 0
    assert "flink-agents.toml" in asked("runs").output


def test_a_job_that_is_not_there_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked("--job", "a", "runs").exit_code == 2
    (here / "flink-agents.toml").write_text("[jobs.b]", encoding="utf-8")
    told = asked("--job", "a", "runs")
    assert told.exit_code == 2 and "no job 'a'" in told.output and "'b'" in told.output
    monkeypatch.setenv("FLINK_AGENTS_JOB_FILE", str(here / "none.toml"))
    assert "FA1100" in asked("runs").output
