"""Hooks of mkdocs: the site's page of errors has the full entries, whose index is in ``docs/errors.md``."""

from __future__ import annotations

from typing import Any

from flink_agents.cli.explain import entries_text, index


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the index of errors by their entries."""
    if page.file.src_path != "errors.md":
        return markdown
    return markdown.replace(index().strip(), entries_text().strip())
