"""Texts that commands read from options and print."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def named_values(options: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse the values of an option that takes ``name=value`` any number of times.

    Args:
        options: The values; None if the option is not used.
        option: Name of the option, for the error.

    Raises:
        typer.BadParameter: A value has no ``=``.
    """
    values: dict[str, str] = {}
    for assignment in options or ():
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(f"{option} takes name=value, not {assignment!r}")
        values[name] = value
    return values


def plain_text(text: str) -> str:
    """Return ``text`` as one line; control and other unprintable characters are escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
