"""Journals of a store ``sqlite`` whose records were all pruned, in the order of that pruning.

A journal's row records its last pruned run, so that a restore from an earlier state is rejected. A job with
one key per order would keep one row for each order, so only the last ones stay: the runtime prunes nothing
that a retained checkpoint can need, and what remains to be rejected are restores from savepoints and copies.
"""

from __future__ import annotations

import sqlite3

AT_ONCE = 10_000
"""The largest number of journals that one transaction deletes."""

TABLE = "CREATE TABLE removals (journal INTEGER PRIMARY KEY, position INTEGER NOT NULL)"
INDEX = "CREATE INDEX removals_in_order ON removals (position)"

WITHOUT_RECORDS = "NOT EXISTS (SELECT 1 FROM records WHERE records.journal = {0})"


def expire_journals(connection: sqlite3.Connection, keep: int) -> bool:
    """Delete the oldest rows of journals whose records were all pruned, at most :data:`AT_ONCE` of them.

    Journals of one transaction are deleted together or not at all.

    Args:
        connection: A connection with an open transaction.
        keep: Number of such journals to keep, the ones pruned last_position.

    Returns:
        True if the limit was reached, so that there may be more to delete.
    """
    row = connection.execute(
        "SELECT position FROM removals ORDER BY position DESC LIMIT 1 OFFSET ?", (keep,)
    ).fetchone()
    if row is None:
        return False
    # Journals of one transaction share a position: if one of them stays, all of them stay.
    if keep:
        (first_kept_position,) = connection.execute(
            "SELECT position FROM removals ORDER BY position DESC LIMIT 1 OFFSET ?", (keep - 1,)
        ).fetchone()
    else:
        first_kept_position = row[0] + 1
    expired_count, last_position = connection.execute(
        "SELECT count(*), max(position) FROM "
        "(SELECT position FROM removals WHERE position < ? ORDER BY position LIMIT ?)",
        (first_kept_position, AT_ONCE),
    ).fetchone()
    if expired_count:
        # A journal that got records since then is in use again.
        connection.execute(
            "DELETE FROM journals WHERE id IN (SELECT journal FROM removals WHERE position <= ?) AND "
            + WITHOUT_RECORDS.format("journals.id"),
            (last_position,),
        )
        connection.execute("DELETE FROM removals WHERE position <= ?", (last_position,))
    return expired_count == AT_ONCE
