"""Texts that commands read from options and print."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def named_values(options: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the values of an option that takes ``name=value`` any number of times."""
    found: dict[str, str] = {}
    for one in options or ():
        name, equals, value = one.partition("=")
        if not equals:
            raise typer.BadParameter(f"{option} takes name=value, not {one!r}")
        found[name] = value
    return found


def plain(text: str) -> str:
    """Return ``text`` on one line, without characters that a terminal would interpret or cannot show."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
