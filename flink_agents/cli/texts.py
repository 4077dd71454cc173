"""Texts that commands read from options and print."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def named_values(options: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the values of an option that takes ``name=value`` any number of times."""
    values: dict[str, str] = {}
    for assignment in options or ():
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(f"{option} takes name=value, not {assignment!r}")
        values[name] = value
    return values


def plain_text(text: str) -> str:
    """Return ``text`` on one line, without characters that a terminal would interpret or cannot show."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
