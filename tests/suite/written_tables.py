"""Tables of pages that tests make: a test compares the page with what it found, or writes it.

WRITE_TABLES=1 scripts/test tests/runtime/journal/test_journal_upgrades.py
"""

from __future__ import annotations

import os
from pathlib import Path

WRITES = "WRITE_TABLES"
"""Environment variable with which tests write tables in place of comparing them."""


def write_or_check(page: Path, header: str, table: str) -> None:
    """Compare the table of a page that begins with ``header``, or replace it if that is asked for."""
    text = page.read_text("utf-8")
    before, found, behind = text.partition(header)
    assert found, f"{page.name} has no table with the header {header}"
    rest = behind.split("\n\n", 1)[1]
    wanted = f"{before}{table}\n\n{rest}"
    if os.environ.get(WRITES):
        page.write_text(wanted, "utf-8")
        return
    assert text == wanted, f"the table of {page.name} is not what the test found: run it with {WRITES}=1"
