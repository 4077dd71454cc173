"""Hooks of mkdocs: what the site shows besides the pages of ``docs/``.

The page of errors has the full entries, whose index is in ``docs/errors.md``. The reference has the
signature and docstring of each name in its lists. The page of commands has the help text of each command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

import flink_agents
from flink_agents.cli.explain import entries_text, render_index
from flink_agents.cli.main import app

_OPTIONS = {"flink_agents.api.context.RunnerContext": "\n    options:\n      inherited_members: true"}
"""Options of single names: the methods of the context come from several classes."""

_ITEM = re.compile(r"^- (?P<names>`[^:]+`): ", re.MULTILINE)
_NAME = re.compile(r"`(?:(?P<module>[\w.]+)\.)?(?P<name>\w+)`")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the Markdown of a page as the site shows it."""
    if page.file.src_path == "errors.md":
        return markdown.replace(render_index().strip(), entries_text().strip())
    if page.file.src_path == "reference.md":
        names = "\n\n".join(f"::: {path}{_OPTIONS.get(path, '')}" for path in public_paths(markdown))
        return f"{markdown}\n\n## Signatures\n\n{names}\n"
    if page.file.src_path == "cli.md":
        helps = "\n\n".join(_helps(typer.main.get_command(app), "flink-agents"))
        return f"{markdown}\n\n## Help texts\n\n{helps}\n"
    return markdown


def public_paths(markdown: str) -> Iterator[str]:
    """Yield module and name of each name in the lists of the reference."""
    for item in _ITEM.finditer(markdown):
        for match in _NAME.finditer(item["names"]):
            name = match["name"]
            yield f"{match['module'] or getattr(flink_agents, name).__module__}.{name}"


def _helps(command: Any, name: str) -> Iterator[str]:
    """Yield a section for each command below this one: its help text and its options."""
    nested = getattr(command, "commands", {})
    for word in sorted(nested):
        yield from _helps(nested[word], f"{name} {word}")
    if command.hidden or (nested and not command.invoke_without_command) or " " not in name:
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    yield f"### {name}"
    yield " ".join([f"`{name}", *(one.name.upper() for one in arguments), "[OPTIONS]`" if options else "`"])
    yield _plain(command.help)
    yield "\n".join(
        [f"- `{one.name.upper()}`: {_plain(one.help)}" for one in arguments if one.help]
        + [f"- `{', '.join(one.opts)}`: {_plain(one.help)}" for one in options]
    )


def _plain(text: str | None) -> str:
    """Return a help text as Markdown: words in brackets are no links."""
    return (text or "").strip().replace("[", "\\[").replace("<", "&lt;")
