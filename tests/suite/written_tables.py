"""Tables of pages that tests generate: a test compares the table with its results, or writes it.

WRITE_TABLES=1 scripts/test tests/runtime/journal/test_journal_upgrades.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

WRITES = "WRITE_TABLES"
"""Environment variable with which tests write tables in place of comparing them."""


def write_or_check(page: Path, header: str, table: str) -> None:
    """Compare the table of a page that begins with ``header``, or replace it if that is asked for."""
    text = page.read_text("utf-8")
    preceding_text, matched_header, behind = text.partition(header)
    assert matched_header, f"{page.name} has no table with the header {header}"
    remaining_text = behind.split("\n\n", 1)[1]
    wanted = f"{preceding_text}{table}\n\n{remaining_text}"
    if os.environ.get(WRITES):
        page.write_text(wanted, "utf-8")
        return
    assert text == wanted, f"the table of {page.name} is not what the test found: run it with {WRITES}=1"


def write_or_check_rest(page: Path, heading: str, rest: str) -> None:
    """Compare what follows a heading up to the end of a page, or replace it if that is asked for."""
    text = page.read_text("utf-8")
    preceding_text, matched_heading, behind = text.partition(heading)
    assert matched_heading, f"{page.name} has no {heading!r}"
    if os.environ.get(WRITES):
        page.write_text(f"{preceding_text}{heading}\n\n{rest.strip()}\n", "utf-8")
        return
    assert behind.strip() == rest.strip(), (
        f"{page.name} is not what the code says: run this test with {WRITES}=1"
    )


def listed_edits(page: Path) -> dict[str, str]:
    """Return the edits that "Changing the code" lists, with their verdicts: ``Safe``, or a code."""
    section = page.read_text("utf-8").partition("## Changing the code")[2].partition("\n## ")[0]
    verdicts: dict[str, str] = {}
    verdict = ""
    for line in section.splitlines():
        if title := re.match(r"\*\*\[?(\w+)", line):
            verdict = title[1]
        elif line.startswith("- "):
            edit, _, own_verdict = line[2:].partition(": [")
            verdicts[re.sub(r" \([^()]*\)$", "", edit)] = own_verdict[:6] or verdict
    return verdicts
