"""``python -m tests.error_index`` writes the index in ``docs/errors.md`` from the entries of errors."""

from __future__ import annotations

from pathlib import Path

from flink_agents.cli.explain import render_index

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
HEADING = "## All errors\n\n"


def written() -> str:
    """Return the page with the index that belongs there."""
    head, heading, _ = PAGE.read_text("utf-8").partition(HEADING)
    return f"{head}{heading}{render_index().strip()}\n"


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
