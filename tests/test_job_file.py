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
from tests.suite.tables import each_case
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


def run_command(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_commands_take_what_the_file_says(here: Path) -> None:
    file = here / "flink-agents.toml"
    file.write_text(ALL, encoding="utf-8")
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    defaults = defaults_of(group, read_job_file(file))
    traces = str(here / "traces")
    journal = str(here / "state.db")
    places = {"path": traces, "trace_topic": "trace", "client": "localhost:9092"}
    job = {"cluster": "localhost:8081", "signals": "answers", "answers": "replies"}
    stored = {"store": "sqlite", "journal": journal}
    # Their --cluster reads records from logs, so files would not be read.
    assert defaults["runs"] == {**places, "end": {**places, **job}} and defaults["trace"] == places
    assert defaults["top"] == {**places, "cluster": "localhost:8081"}
    assert defaults["why"] == {**places, **job, **stored, "requests": "asked", "dead_letters": "letters"}
    assert defaults["erase"] == {**places, **job, **stored}
    # Like the paths, whatever the working directory is.
    plan = [str(here / "agents.py:Refunds")]
    everything = {"requests": "asked", "dead_letters": ["letters", "more"], "plan": plan}
    assert defaults["ui"] == {**places, **job, **stored, **everything}
    answered = {"topic": "asked", "signals": "answers", "bootstrap_servers": "localhost:9092"}
    assert defaults["approvals"]["approve"] == defaults["approvals"]["deny"] == answered
    assert defaults["signal"] == {"topic": "answers", "bootstrap_servers": "localhost:9092"}
    assert defaults["kafka"]["redrive"] == {"client": "localhost:9092"}
    # Their --path is no directory of traces.
    assert defaults["journal"]["show"] == {"store": "sqlite", "path": journal} == defaults["journal"]["reset"]
    # What would check or change another cluster than you think takes nothing.
    assert not {"doctor", "run", "cluster", "demo", "new"} & defaults.keys()
    assert defaults_of(group, read_job_file(file, "refunds"))["ui"]["signals"] == "refund-signals"


def test_the_file_is_found_and_options_go_before_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here / "traces", records_of_run(1, "sfirst", "completed"))
    write(here / "others", records_of_run(2, "ssecond", "completed"))
    file = here / "flink-agents.toml"
    file.write_text('path = "traces"\n[jobs.other]\npath = "others"\n', encoding="utf-8")

    def keys(*arguments: str) -> list[str]:
        return [json.loads(line)["key"] for line in run_command(*arguments).stdout.splitlines()]

    first = keys("runs", "--json")
    second = keys("--job", "other", "runs", "--json")
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
    assert run_command("version").exit_code == 0


@each_case(
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
    result = run_command("runs")
    assert result.exit_code == 2 and "FA1100" in result.output
    assert all(word in result.output for word in words), result.output
    # An invalid value may be a password.
    assert "hunter2" not in result.output
    # What needs no option of the file helps to mend it.
    for command in (["version"], ["explain", "FA1100"], ["why", "--help"], ["doctor", "--help"]):
        assert run_command(*command).exit_code == 0, command


@each_case(
    "content",
    [b'\xef\xbb\xbfpath = "traces"\r\n', b'path = "traces"', b'path = "traces"\n[jobs.path]\npath = "b"'],
)
def test_a_file_of_any_editor_is_read(content: bytes, here: Path) -> None:
    (here / "flink-agents.toml").write_bytes(content)
    assert read_job_file(here / "flink-agents.toml")["path"] == str(here / "traces")


@each_case("path, expected", [("~nobody-such/a", "~nobody-such/a"), ("/a/b", "/a/b"), ("../a", "../a")])
def test_each_path_is_beside_the_file(path: str, expected: str, here: Path) -> None:
    (here / "flink-agents.toml").write_text(f"path = '{path}'\nplan = 'a.b:C'", encoding="utf-8")
    settings = read_job_file(here / "flink-agents.toml")
    assert settings == {"path": str(here / expected), "plan": ["a.b:C"]}


def test_what_is_no_file_is_an_error(here: Path) -> None:
    file = here / "flink-agents.toml"
    file.mkdir()
    result = run_command("runs")
    assert result.exit_code == 2 and "cannot be read" in result.output
    file.rmdir()
    file.symlink_to("nowhere")
    result = run_command("runs")
    assert result.exit_code == 2 and "cannot be read" in result.output


def test_help_shows_no_secret_of_the_file(here: Path) -> None:
    text = "client = '{\"sasl_plain_password\": \"hunter2\"}'\ncluster = 'http://a:hunter2@b'"
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    for command in (["top"], ["why"], ["runs", "end"], ["signal"], ["kafka", "topic", "list"]):
        result = run_command(*command, "--help")
        assert result.exit_code == 0 and "hunter2" not in result.output, command


@each_case("command", [["why", "--", "--help"], ["trace", "--key", "--help"], ["runs", "--agent", "--help"]])
def test_a_key_that_looks_like_an_option_is_none(command: list[str], here: Path) -> None:
    write(here / "traces", records_of_run(1, "s--help", "completed", agent="--help"))
    (here / "flink-agents.toml").write_text('path = "traces"\nsignals = "answers"', encoding="utf-8")
    result = run_command(*command)
    assert result.exit_code == 0 and "completed" in result.output, result.output


def test_an_option_that_would_be_ignored_is_an_error(here: Path) -> None:
    (here / "flink-agents.toml").write_text('path = "traces"', encoding="utf-8")
    result = run_command("--job", "refunds", "doctor")
    assert result.exit_code == 2 and "--job" in result.output and "doctor" in result.output
    result = run_command("runs", "--trace-topic", "a", "end", "run", "--signals", "b")
    assert result.exit_code == 2 and "write --trace-topic behind 'end'" in result.output


def test_the_file_of_another_user_is_rejected(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could import code, and name brokers that get answers."""
    file = here / "flink-agents.toml"
    file.write_text('path = "traces"', encoding="utf-8")
    write(here / "traces", records_of_run(1, "sfirst", "completed"))
    assert run_command("runs").exit_code == 0
    owner = file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    # The superuser could replace this program as well.
    allowed = owner == 0
    if allowed:
        assert run_command("runs").exit_code == 0
        try:
            os.chown(file, 4242, -1)
        except PermissionError:
            return
    result = run_command("runs")
    assert (
        result.exit_code == 2 and "another user" in result.output and "FLINK_AGENTS_JOB_FILE" in result.output
    )
    assert run_command("version").exit_code == 0
    monkeypatch.setenv("FLINK_AGENTS_JOB_FILE", str(file))
    assert run_command("runs").exit_code == 0


@each_case(
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
    previous_defaults: Any = defaults_of(group, values)
    after: Any = defaults_of(group, values, given_options(group, [command.split()[0], *arguments]))
    for name in command.split():
        previous_defaults = previous_defaults[name]
        after = after[name]
    assert previous_defaults.keys() - after.keys() == {
        option_name for option_name in left_out if option_name in previous_defaults
    }
    assert left_out & previous_defaults.keys() or not left_out


def test_a_trace_that_you_name_is_the_only_one(here: Path) -> None:
    write(here / "others", records_of_run(2, "ssecond", "completed"))
    text = 'path = "traces"\ntrace-topic = "trace"\nclient = "localhost:1"'
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    result = run_command("runs", "--json", "--path", "others")
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 1


def test_signals_and_approvals_take_options_of_the_client_as_the_others_do(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk_options = list[dict[str, Any]]()

    class Desk:
        def __init__(self, signals: str | None, requests: str | None, **client: Any) -> None:
            desk_options.append({"signals": signals, "requests": requests, **client})
            raise OptionError("no brokers here")

    monkeypatch.setattr("flink_agents.connectors.kafka.requests.desk.KafkaApprovals", Desk)
    client = """client = '{"bootstrap_servers": "a:1", "security_protocol": "SSL"}'"""
    text = f"requests = 'asked'\nsignals = 'answers'\n{client}"
    (here / "flink-agents.toml").write_text(text, encoding="utf-8")
    brokers = {"bootstrap_servers": "a:1", "security_protocol": "SSL"}
    run_command("signal", "--name", "a", "--key", "k", "--topic", "answers")
    run_command("signal", "--name", "a", "--key", "k", "-o", "security_protocol=SASL_SSL")
    run_command("approvals", "list")
    run_command("approvals", "list", "--bootstrap-servers", "b:2")
    assert desk_options == [
        {"signals": "answers", "requests": None, **brokers},
        {"signals": "answers", "requests": None, **brokers, "security_protocol": "SASL_SSL"},
        {"signals": None, "requests": "asked", **brokers},
        {"signals": None, "requests": "asked", "bootstrap_servers": "b:2"},
    ]


def test_a_variable_of_a_job_does_not_matter_to_commands_without_options(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLINK_AGENTS_JOB", "refunds")
    assert run_command("version").exit_code == 0
    assert "flink-agents.toml" in run_command("runs").output


def test_a_job_that_is_not_there_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command("--job", "a", "runs").exit_code == 2
    (here / "flink-agents.toml").write_text("[jobs.b]", encoding="utf-8")
    result = run_command("--job", "a", "runs")
    assert result.exit_code == 2 and "no job 'a'" in result.output and "'b'" in result.output
    monkeypatch.setenv("FLINK_AGENTS_JOB_FILE", str(here / "none.toml"))
    assert "FA1100" in run_command("runs").output
