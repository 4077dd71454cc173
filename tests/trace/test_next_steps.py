"""Commands that commands, pages, errors and the docs name: each is one that you can run."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from flink_agents.cli.kafka import next_steps
from flink_agents.cli.main import app
from flink_agents.cli.runs.why import _explain_ending  # pyright: ignore[reportPrivateUsage]
from flink_agents.trace.reading import RunTrace
from flink_agents.trace.records import QUEUED_FOR, TraceRecord
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

COMMAND: Any = typer.main.get_command(app)
ROOT = Path(__file__).parents[2]
SASL = {
    "bootstrap_servers": ["b1:9092", "b2:9092"],
    "security_protocol": "SASL_SSL",
    "sasl_plain_password": "hush",
}
LOCAL = {"bootstrap_servers": "127.0.0.1:9092"}


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of a command line, as its own parser reads them."""
    command = COMMAND
    context = command.make_context("flink-agents", words[1:])
    while hasattr(command, "commands"):
        remaining_words = [*context._protected_args, *context.args]  # pyright: ignore[reportPrivateUsage]
        name, subcommand, remaining_words = command.resolve_command(context, remaining_words)
        assert subcommand is not None and name is not None
        command = subcommand
        context = subcommand.make_context(name, remaining_words, parent=context)
    return context.params


@each_case(
    "line, expected",
    [
        (
            next_steps.approve_command("sm-07|20|refund||0|2593", "asked", "answers", LOCAL),
            {"id": "sm-07|20|refund||0|2593", "topic": "asked", "signals": "answers"} | LOCAL,
        ),
        (
            next_steps.approve_command("s-1 'two'|1|a||0|f", "asked", None, SASL),
            {
                "id": "s-1 'two'|1|a||0|f",
                "bootstrap_servers": "b1:9092,b2:9092",
                "option": ["security_protocol=SASL_SSL", "sasl_plain_password=..."],
            },
        ),
        (
            next_steps.end_run("86ff", "-1", "signals", LOCAL, "http://h:8081"),
            {"run": "86ff", "key": "-1", "signals": "signals", "client": "127.0.0.1:9092", "cluster": "http://h:8081"},
        ),
        (
            next_steps.end_run("86ff", '["a", 1]', "signals", SASL, None),
            {"key": '["a", 1]', "client": json.dumps(SASL | {"sasl_plain_password": "..."}), "cluster": None},
        ),
        (
            next_steps.redrive_command("sales-dead", None, LOCAL),
            {"dead_letters": "sales-dead", "to": "TOPIC", "client": "127.0.0.1:9092"},
        ),
        (next_steps.redrive_command("dead", "sales", SASL), {"to": "sales"}),
    ],
)  # fmt: skip
def test_a_command_that_is_suggested_runs_as_it_stands(line: str, expected: dict[str, Any]) -> None:
    parameters = parsed(shlex.split(line))
    assert {name: parameters[name] for name in expected} == expected
    assert "hush" not in line


@each_case(
    "status, waits, command",
    [
        ("waiting", "durable call m:price_of", True),
        ("running", "", True),
        ("waiting", QUEUED_FOR, False),
        ("suspended", "", False),
        ("completed", "", False),
    ],
)
def test_the_end_of_a_run_that_hangs_is_suggested(status: str, waits: str, command: bool) -> None:
    about = {"for": waits, "since": 5.0}
    record = TraceRecord(
        "run", "a", status, "j", "a", 0, 0, "sk", 1, "r1", "x", None, 9.0, None, False, about
    )
    has_answer, lines = _explain_ending([RunTrace("r1", [record])], "k", "signals", "h:1", None)
    assert not has_answer and bool(lines) == command
    assert not lines or parsed(shlex.split(lines[-1]))["run"] == "r1"


@each_case("text", ["plain", "two words", "it's", "a\nb", "\x1b[31m", "$HOME", "ä"])
def test_a_word_is_one_word_of_a_shell(text: str) -> None:
    result = subprocess.run(
        ["bash", "-c", f"printf %s {next_steps.shell_word(text)}"], capture_output=True, text=True, check=True
    )
    assert result.stdout == text and next_steps.shell_word(text).isprintable()


def texts() -> Iterator[tuple[str, str]]:
    """The texts of this package and of its docs that may name commands, each with its file."""
    for file in sorted((ROOT / "flink_agents").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file.name, node.value
    for file in [
        *(ROOT / "flink_agents").rglob("*.html"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").glob("*.yml"),
    ]:
        yield file.name, re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "X", file.read_text("utf-8"))


def test_each_command_that_a_text_names_exists_with_its_options() -> None:
    wrong = list[str]()
    for file, text in texts():
        for groups in re.findall(r"`(flink-agents [^`\n]+)`|<code>(flink-agents [^<]+)</code>", text):
            line = groups[0] or groups[1]
            wrong += [f"{file}: {line}: {problem}" for problem in problems(line)]
    assert wrong == []


def problems(line: str) -> Iterator[str]:
    """What of a command line does not exist: its name, or an option."""
    command = COMMAND
    words = line.replace("[", " ").replace("]", " ").split()[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            if command.params and command.invoke_without_command:
                break
            yield f"no command {words[0]}"
            return
        command = command.commands[words[0]]
        words = words[1:]
    option_names = {
        name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]
    } | {"--help"}
    if command.context_settings.get("ignore_unknown_options"):
        return
    for word in words:
        if word == "--":
            return
        if word.startswith("--") and word.partition("=")[0].rstrip(".,)") not in option_names:
            yield f"no option {word}"


OPTION = re.compile(r"\b(?:[a-z]+(?:-[a-z]+)*\.)+[a-z]+(?:-[a-z]+)*\b")


def test_alerts_name_options_that_exist() -> None:
    from flink_agents.api.settings.options import AgentOptions

    option_keys = {option.key for option in vars(AgentOptions).values() if hasattr(option, "key")}
    groups = {key.partition(".")[0] for key in option_keys} | {"watch"}
    for file in sorted((ROOT / "docs").glob("*.yml")):
        named = {
            option_name
            for option_name in OPTION.findall(file.read_text("utf-8"))
            if option_name.partition(".")[0] in groups
        }
        assert named <= option_keys, file.name
