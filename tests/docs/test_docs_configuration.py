"""``docs/configuration.md`` has the options that are registered, word for word."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any

from docs_pages import ROOT, prose

from flink_agents.api.common.option_values import ConfigOption, write_value
from flink_agents.api.settings.options import FLINK_PREFIX, all_options
from tests.suite.written_tables import write_or_check_rest

PAGE = "docs/configuration.md"
GROUPS = {
    "Jobs, memory and state": ("job-identifier", "memory.", "state."),
    "Actions, runs and signals": ("actions.", "events.", "run.", "signals.", "queue.", "loop."),
    "Resources": ("chat-models", "embedding-models", "skills", "vector-stores", "mcp-servers"),
    "Local jobs": ("local.",),
    "Journals": ("action-state.",),
    "Stores": ("action-state.memory.", "action-state.sqlite.", "action-state.kafka."),
    "Trace": ("trace.", "answers."),
}
"""Headings of the list, with the beginnings of their options; the longest beginning counts."""


def test_the_list_is_the_registry() -> None:
    assert len(all_options()) > 5
    first, *remaining_lines = described()
    write_or_check_rest(ROOT / PAGE, first.strip(), "\n".join(remaining_lines))


def test_the_page_names_the_prefix_of_flink() -> None:
    assert f"`{FLINK_PREFIX}" in prose(PAGE)


def described() -> Iterator[str]:
    """The lines of the list: a heading for each group, and a line for each option."""
    grouped: dict[str, list[str]] = {title: [] for title in GROUPS}
    for option in all_options().values():
        grouped[group(option.key)].append(item(option))
    for title, items in grouped.items():
        yield from (f"### {title}\n", *items, "")


def group(key: str) -> str:
    """The group of an option."""
    fitting = [
        (len(start), title) for title, starts in GROUPS.items() for start in starts if key.startswith(start)
    ]
    return max(fitting)[1]


def item(option: ConfigOption[Any]) -> str:
    """The line of an option: its default (or type), other values, and a minimum above 1."""
    shown = kind(option.type) if option.default is None else f"`{write_value(option.default)}`"
    if issubclass(option.type, Enum):
        other_values = [f"`{member.value}`" for member in option.type if member is not option.default]
        shown += f" or {', '.join(other_values)}"
    if option.minimum not in (None, 0, 1, timedelta(0)):
        shown += f", at least `{write_value(option.minimum)}`"
    return f"- **`{option.key}`** ({shown}): {option.doc}"


def kind(type_: type[Any]) -> str:
    """How the page calls the type of an option without a default."""
    return {str: "string", dict: "entries", int: "integer", bool: "bool", timedelta: "duration"}[type_]
