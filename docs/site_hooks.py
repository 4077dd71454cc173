"""Hooks of mkdocs: what the site shows besides the pages of ``docs/``.

The page of errors has the full entries, whose index is in ``docs/errors.md``. The reference has the
signature and docstring of each name in its lists.
"""

from __future__ import annotations

import re
from typing import Any

import flink_agents
from flink_agents.cli.explain import entries_text, index

_NAME = re.compile(r"^- `(?:(?P<module>[\w.]+)\.)?(?P<name>\w+)`: ", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the Markdown of a page as the site shows it."""
    if page.file.src_path == "errors.md":
        return markdown.replace(index().strip(), entries_text().strip())
    if page.file.src_path == "reference.md":
        names = "\n\n".join(f"::: {_path_of(item)}" for item in _NAME.finditer(markdown))
        return f"{markdown}\n\n## Signatures\n\n{names}\n"
    return markdown


def _path_of(item: re.Match[str]) -> str:
    """Return the module and name of an item of a list."""
    name = item["name"]
    return f"{item['module'] or getattr(flink_agents, name).__module__}.{name}"
