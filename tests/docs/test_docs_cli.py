"""``docs/cli.md`` has the commands of ``flink-agents``; the site adds their options, from the help texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docs_pages import ROOT

from flink_agents.cli.main import app
from tests.suite.written_tables import write_or_check_rest

PAGE = "docs/cli.md"
HEADING = "## Commands"


def test_the_page_has_the_commands() -> None:
    wanted = "\n".join(described(typer.main.get_command(app), ""))
    write_or_check_rest(ROOT / PAGE, HEADING, wanted)


def described(command: Any, name: str) -> Iterator[str]:
    """One item for each command, in order."""
    nested = getattr(command, "commands", {})
    for word in sorted(nested):
        yield from described(nested[word], f"{name} {word}".strip())
    if command.hidden or (nested and not command.invoke_without_command):
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([name, *(argument.name.upper() for argument in arguments)])
    yield f"- **`{usage}`**: {first_paragraph(command.help)}"


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a help text, on one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())
