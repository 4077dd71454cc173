"""``docs/cli.md`` has the commands and options of ``flink-agents``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docs_pages import pages

from flink_agents.cli.main import app

PAGE = "docs/cli.md"
HEADING = "## Commands\n"


def test_the_page_has_the_commands() -> None:
    wanted = "\n".join(described(typer.main.get_command(app), "flink-agents"))
    assert pages()[PAGE].partition(HEADING)[2].strip() == wanted.strip(), (
        f"replace what follows {HEADING.strip()!r} in {PAGE} by:\n\n{wanted}"
    )


def described(command: Any, name: str) -> Iterator[str]:
    """One item for each command, in alphabetical order."""
    nested = getattr(command, "commands", {})
    for word in sorted(nested):
        yield from described(nested[word], f"{name} {word}")
    if command.hidden or (nested and not command.invoke_without_command):
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    flags = ", ".join(f"`{option.opts[0]}`" for option in options)
    usage = " ".join([name, *(argument.name.upper() for argument in arguments)])
    yield f"- **`{usage}`**: {first_paragraph(command.help)}" + (f" {flags}" if flags else "")


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a help text, on one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())
