"""``docs/cli.md`` has the commands and options of ``flink-agents``."""

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


SAID_ONCE = {"--json"}
"""What the page says of all commands."""


def described(command: Any, name: str, known: frozenset[str] = frozenset(SAID_ONCE)) -> Iterator[str]:
    """One item for each command, in order; options that all commands of a group take stand once."""
    nested = getattr(command, "commands", {})
    shared = frozenset[str]()
    if len(nested) > 1 and name:
        shared = frozenset.intersection(*(frozenset(flags(one)) for one in nested.values())) - known
    if shared:
        yield f"- **`{name} ...`**: All of them take {listed(sorted(shared))}."
    for word in sorted(nested):
        yield from described(nested[word], f"{name} {word}".strip(), known | shared)
    if command.hidden or (nested and not command.invoke_without_command):
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    own = [flag for flag in flags(command) if flag not in known]
    usage = " ".join([name, *(argument.name.upper() for argument in arguments)])
    yield f"- **`{usage}`**: {first_paragraph(command.help)}" + (f" {listed(own)}" if own else "")


def flags(command: Any) -> list[str]:
    """The options of a command."""
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    return [option.opts[0] for option in options]


def listed(names: list[str]) -> str:
    """Options as the page shows them."""
    return ", ".join(f"`{name}`" for name in names)


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a help text, on one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())
