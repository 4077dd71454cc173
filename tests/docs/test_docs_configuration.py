"""``docs/configuration.md`` has the options that are registered, word for word."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any

from docs_pages import prose

from flink_agents.api.common.option_values import ConfigOption, write_value
from flink_agents.api.settings.options import FLINK_PREFIX, all_options, environment_name

PAGE = "docs/configuration.md"
HEADER = "| option | type | default | environment variable | meaning |"


def test_the_table_is_the_registry() -> None:
    wanted = "\n".join([HEADER, "|---|---|---|---|---|", *map(row, all_options().values())])
    assert len(all_options()) > 5
    assert table() == wanted, f"replace the table in {PAGE} by:\n\n{wanted}\n"


def test_the_page_names_the_prefix_of_flink() -> None:
    assert f"`{FLINK_PREFIX}" in prose(PAGE)


def table() -> str:
    """The table of options on the page."""
    lines = prose(PAGE).split("\n")
    start = lines.index(HEADER)
    end = next(number for number in range(start, len(lines)) if not lines[number].startswith("|"))
    return "\n".join(lines[start:end])


def row(option: ConfigOption[Any]) -> str:
    """The row of an option."""
    default = "none" if option.default is None else f"`{write_value(option.default)}`"
    cells = (
        f"`{option.key}`",
        kind(option.type) + ("" if option.minimum is None else f", at least `{write_value(option.minimum)}`"),
        default,
        f"`{environment_name(option.key)}`",
        option.doc,
    )
    return f"| {' | '.join(cells)} |"


def kind(type_: type[Any]) -> str:
    """How the page calls a type."""
    if issubclass(type_, Enum):
        return " or ".join(f"`{member.value}`" for member in type_)
    return {str: "text", dict: "entries", int: "whole number", bool: "true or false", timedelta: "duration"}[
        type_
    ]
