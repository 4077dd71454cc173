"""Commands in the documentation exist, with the options that stand there."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import pytest
import typer
import yaml
from docs_pages import ROOT, Snippet, snippets, snippets_of

from flink_agents.api.common.installation import DISTRIBUTION
from flink_agents.api.settings.options import (
    CONFIG_FILE_VARIABLE,
    CONSOLE_TOKEN_VARIABLE,
    ENVIRONMENT_PREFIX,
    TEST_MODE_VARIABLE,
    all_options,
    environment_name,
)
from flink_agents.cli.main import app
from tests.suite.tables import each_case

FOREIGN = {"cd", "cp", "curl", "export", "flink", "git", "kill", "pytest", "systemctl"}
"""Commands that are not ours; they are not checked."""

PLACEHOLDERS = {"job.py", "my_job.py"}
"""Names that stand for a file of the reader; `flink-agents new` writes `job.py`."""


def commands() -> Iterator[tuple[Snippet, str]]:
    """Each command line of a shell snippet, its continuation lines joined."""
    for snippet in snippets("shell"):
        text = re.sub(r"\\\n\s*", " ", snippet.text)
        for line in text.splitlines():
            if line.strip() and not line.startswith("#"):
                yield snippet, line


COMMANDS = [pytest.param(snippet, line, id=f"{snippet.id} {line}") for snippet, line in commands()]


@each_case(("snippet", "line"), COMMANDS)
def test_command_exists(snippet: Snippet, line: str) -> None:
    words = shlex.split(line, comments=True)
    while words and "=" in words[0]:
        check_variable(words.pop(0).partition("=")[0])
    program, *arguments = words
    name = program.removeprefix(".venv/bin/")
    if name.startswith("scripts/"):
        assert os.access(ROOT / name, os.X_OK), f"no script {name}"
        check_script_options(name, arguments)
    elif name == "flink-agents":
        check_flink_agents(arguments)
    elif name == "python":
        check_python(snippet, arguments)
    elif name == "pip":
        check_pip(arguments)
    elif name == "docker":
        check_compose(arguments)
    else:
        assert name in FOREIGN, f"an unknown command: {line}"
        if name == "export":
            check_variable(arguments[0].partition("=")[0])


def test_there_are_commands() -> None:
    lines = [line for _, line in commands()]
    for program in (
        "scripts/demo",
        "scripts/test",
        "flink-agents doctor",
        "flink-agents plan show",
        "flink run",
    ):
        assert any(program in line for line in lines), f"no page shows {program}"


def check_variable(name: str) -> None:
    """A variable with our prefix is an option."""
    variable_names = {environment_name(key) for key in all_options()}
    variable_names |= {CONFIG_FILE_VARIABLE, CONSOLE_TOKEN_VARIABLE, TEST_MODE_VARIABLE}
    assert not name.startswith(ENVIRONMENT_PREFIX) or name in variable_names, f"no option {name}"


def check_script_options(script: str, arguments: list[str]) -> None:
    """Options of the demo are those of its command and of its example."""
    if script == "scripts/demo":
        files = (ROOT / "examples" / "review_analysis.py", ROOT / "flink_agents" / "cli" / "main.py")
        example = "".join(file.read_text(encoding="utf-8") for file in files)
        for option in arguments:
            assert not option.startswith("--") or f'"{option}"' in example, f"the demo has no {option}"


@functools.cache
def installed_command() -> Any:
    return typer.main.get_command(app)


def check_flink_agents(arguments: list[str]) -> None:
    """A command, perhaps a command of its own in it, and its options."""
    command = installed_command()
    for argument in arguments:
        nested = getattr(command, "commands", {})
        if argument in nested:
            command = nested[argument]
        elif argument.startswith("--") and command.name != "demo":
            known_options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
            assert argument in known_options, f"{command.name} has no {argument}"
        else:
            assert not nested, f"no command {argument}"


def check_python(snippet: Snippet, arguments: list[str]) -> None:
    """A module with a case, or a script that exists or that the page shows."""
    if arguments[:2] == ["-m", "benchmarks"]:
        from benchmarks.__main__ import CASES

        assert arguments[2] in {*CASES, "peers", "scale"}
    elif arguments[0] == "-m" and arguments[1].startswith("tests."):
        assert find_spec(arguments[1]) is not None, f"no module {arguments[1]}"
    elif arguments[0] == "-m":
        assert arguments[1] in ("pytest", "venv"), f"an unknown module {arguments[1]}"
    else:
        shown = {page_snippet.file_name for page_snippet in snippets_of(snippet.page)} | PLACEHOLDERS
        assert (ROOT / arguments[0]).is_file() or arguments[0] in shown, f"no script {arguments[0]}"


def check_compose(arguments: list[str]) -> None:
    """The file at the top of the repository, and of ``run`` a service that it has."""
    compose, command, *remaining_arguments = arguments
    assert compose == "compose", arguments
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert command in ("up", "down", "run"), f"an unknown command: {command}"
    assert command != "run" or remaining_arguments[-1] in services, (
        f"docker-compose.yml has no service {remaining_arguments[-1]}"
    )


def check_pip(arguments: list[str]) -> None:
    """Our own distribution from a checkout, as it is on no index yet, with extras that it has."""
    extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    match = re.fullmatch(r"(?P<name>[\w./-]+?)(?:\[(?P<extras>[\w,]+)\])?", arguments[-1])
    assert arguments[0] == "install" and match is not None, arguments
    assert match["name"] in (".", "path/to/checkout"), f"{match['name']} is on no index yet"
    for extra in (match["extras"] or "").split(","):
        assert not extra or extra in extras, f"no extra {extra}"
