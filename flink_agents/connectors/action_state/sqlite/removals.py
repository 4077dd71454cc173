"""Journals of a store ``sqlite`` of which all records were pruned, in the order in which that happened.

A journal's row says what was pruned of it, so that a restore from before is refused by name. A job
with a key for each order would keep one for each of them, so only the last so many stay: the
runtime prunes what no checkpoint that Flink retains can ask for, and what remains to be refused are
restores from savepoints and copies.
"""

from __future__ import annotations

import sqlite3

AT_ONCE = 10_000
"""How many journals one transaction forgets, at most."""

TABLE = "CREATE TABLE removals (journal INTEGER PRIMARY KEY, position INTEGER NOT NULL)"
INDEX = "CREATE INDEX removals_in_order ON removals (position)"

WITHOUT_RECORDS = "NOT EXISTS (SELECT 1 FROM records WHERE records.journal = {0})"


def prepare(connection: sqlite3.Connection) -> None:
    """Make the table in a file of a version that had none; inside a transaction that writes."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'removals'").fetchone() is not None:
        return
    connection.execute(TABLE)
    connection.execute(INDEX)
    connection.execute(
        "INSERT INTO removals SELECT id, id FROM journals WHERE " + WITHOUT_RECORDS.format("journals.id")
    )


def expire(connection: sqlite3.Connection, keep: int) -> bool:
    """Forget journals without records but for the last ``keep``; whether that may have left some.

    Args:
        connection: In a transaction.
        keep: How many of them stay.
    """
    row = connection.execute(
        "SELECT position FROM removals ORDER BY position DESC LIMIT 1 OFFSET ?", (keep,)
    ).fetchone()
    if row is None:
        return False
    # Those of one transaction share a position. If one of them is to stay, all of them do.
    if keep:
        (least,) = connection.execute(
            "SELECT position FROM removals ORDER BY position DESC LIMIT 1 OFFSET ?", (keep - 1,)
        ).fetchone()
    else:
        least = row[0] + 1
    number, last = connection.execute(
        "SELECT count(*), max(position) FROM "
        "(SELECT position FROM removals WHERE position < ? ORDER BY position LIMIT ?)",
        (least, AT_ONCE),
    ).fetchone()
    if number:
        # What was appended to since it was noted is in use again.
        connection.execute(
            "DELETE FROM journals WHERE id IN (SELECT journal FROM removals WHERE position <= ?) AND "
            + WITHOUT_RECORDS.format("journals.id"),
            (last,),
        )
        connection.execute("DELETE FROM removals WHERE position <= ?", (last,))
    return number == AT_ONCE
