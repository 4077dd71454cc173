"""The entries of all errors: ``flink-agents explain`` prints one, and ``docs/errors.md`` is their index."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

import typer

from flink_agents.api.errors.base import DOCS_URL, error_url
from flink_agents.cli.errors import ERROR_EXIT

_ENTRY = re.compile(r"^### (?P<code>FA\d{4})$", re.MULTILINE)
_TITLE = re.compile(r"^\*\*(?P<name>\w+)\*\* \((?P<parent>\w+)\): (?P<meaning>.+)$", re.MULTILINE)
_PAGE_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<page>[\w/-]+)\.md(?P<anchor>#[\w-]+)?\)")
_LOCAL_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\(#fa\d{4}\)")


@dataclass(frozen=True)
class ErrorEntry:
    """The entry of an error in the index of errors.

    Attributes:
        code: Its code, such as ``FA4001``.
        name: Name of its class.
        parent: Name of the parent class.
        meaning: What it means, in a few words.
        text: The Markdown below its title.
    """

    code: str
    name: str
    parent: str
    meaning: str
    text: str


@cache
def entries_text() -> str:
    """Return the Markdown of all entries, without the title of the page."""
    text = resources.files("flink_agents.cli").joinpath("error_entries.md").read_text("utf-8")
    return text[text.index("### ") :]


@cache
def read_entries() -> dict[str, ErrorEntry]:
    """Parse all entries, and return them by code, in the order of the page."""
    parts = _ENTRY.split(entries_text())
    entries_by_code: dict[str, ErrorEntry] = {}
    for code, body in zip(parts[1::2], parts[2::2], strict=True):
        text = body.split("\n## ")[0].strip()
        title = _TITLE.match(text)
        assert title is not None, f"{code} has no title"
        entries_by_code[code] = ErrorEntry(
            code, title["name"], title["parent"], title["meaning"], text[title.end() :].strip()
        )
    return entries_by_code


def render_index() -> str:
    """Return the index at the end of ``docs/errors.md`` as Markdown: a heading and a line for each error."""
    lines: list[str] = []
    entries_by_code = read_entries()
    for line in entries_text().splitlines():
        if line.startswith("## "):
            lines += [line, ""]
        elif line.startswith("### "):
            entry = entries_by_code[line.removeprefix("### ")]
            lines += [line, "", f"{entry.name}: {entry.meaning}", ""]
    return "\n".join(lines)


def find_entry(word: str) -> ErrorEntry | None:
    """Return the entry of a code, with or without ``FA``, or of a class name; None if there is none."""
    wanted = word.strip("[]").upper()
    for entry in read_entries().values():
        if wanted in (entry.code, entry.code.removeprefix("FA"), entry.name.upper()):
            return entry
    return None


def plain_entry(entry: ErrorEntry) -> str:
    """Return an entry as text for a terminal, with URLs in place of links."""
    text = _LOCAL_LINK.sub(r"\g<text>", entry.text)
    text = _PAGE_LINK.sub(
        lambda link: f"{link['text']} ({DOCS_URL}{link['page']}.html{link['anchor'] or ''})", text
    )
    return f"{entry.code} {entry.name} ({entry.parent})\n\n{text}\n\n{error_url(entry.code)}"


def _as_url(link: re.Match[str]) -> str:
    return f"{link['text']} ({DOCS_URL}{link['page']}.html{link['anchor'] or ''})"


def explain(
    error: Annotated[
        str | None,
        typer.Argument(metavar="ERROR", help="A code or class, such as FA4001; none lists all errors."),
    ] = None,
) -> None:
    """Print what an error means, its cause and its fix. It needs no network."""
    if error is None:
        for entry in read_entries().values():
            typer.echo(f"{entry.code} {entry.name}: {entry.meaning}")
        return
    entry = find_entry(error)
    if entry is None:
        names = [
            name for error_entry in read_entries().values() for name in (error_entry.code, error_entry.name)
        ]
        close_names = difflib.get_close_matches(error, names, n=1)
        hint = (
            f" Did you mean {close_names[0]!r}?"
            if close_names
            else " 'flink-agents explain' lists all errors."
        )
        typer.echo(f"Unknown error {error!r}.{hint}", err=True)
        raise typer.Exit(ERROR_EXIT)
    typer.echo(plain_entry(entry))
