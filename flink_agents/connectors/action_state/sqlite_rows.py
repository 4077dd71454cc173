"""The statements of one transaction: few, since the interpreter goes to other threads in each of them.

With a busy event loop beside it, a statement per record cost most of the writer's time (measured):
journals are looked up, and records are inserted, many at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from flink_agents.api.action_state import JournalKey, Record, encode_text, pruned_error

MANY = 64
"""How many journals or records a statement is about, at most. SQLite allows 999 parameters everywhere."""

Names = tuple[bytes, bytes]
"""Job and key of a journal, as they stand in the file."""


def names_of(journal: JournalKey) -> Names:
    """The names of a journal."""
    return encode_text(journal.journal_id), encode_text(journal.key)


class Rows:
    """What one transaction finds and writes.

    Args:
        connection: In a transaction.
        journals: All journals that the transaction is about.
    """

    def __init__(self, connection: sqlite3.Connection, journals: Iterable[JournalKey]) -> None:
        self._connection = connection
        self._records: list[tuple[Any, ...]] = []
        self._journals: dict[Names, tuple[int, int]] = {}
        names = list({names_of(journal) for journal in journals})
        for start in range(0, len(names), MANY):
            self._look_up(names[start : start + MANY])

    def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Add records to a journal.

        Raises:
            RecordsPrunedError: One of them belongs to a run that was pruned. Nothing was added.
        """
        names = names_of(journal)
        if names not in self._journals:
            made = self._connection.execute("INSERT INTO journals VALUES (NULL, ?, ?, -1)", names)
            self._journals[names] = (made.lastrowid or 0, -1)
        row, pruned_through = self._journals[names]
        for record in records:
            if record.seq <= pruned_through:
                raise pruned_error(journal, record.seq, pruned_through)
        self._records += [
            (row, one.seq, int(one.kind), encode_text(one.step), one.index, one.data) for one in records
        ]

    def prune(self, journal: JournalKey, through: int) -> None:
        """Remove the records of the first runs of a journal."""
        names = names_of(journal)
        row, pruned_through = self._journals.get(names, (0, through))
        if through > pruned_through:
            self.flush()
            self._connection.execute("UPDATE journals SET pruned_through = ? WHERE id = ?", (through, row))
            self._connection.execute("DELETE FROM records WHERE journal = ? AND seq <= ?", (row, through))
            self._journals[names] = (row, through)

    def flush(self) -> None:
        """Insert what was added."""
        records, self._records = self._records, []
        for start in range(0, len(records), MANY):
            some = records[start : start + MANY]
            rows = ", ".join(["(NULL, ?, ?, ?, ?, ?, ?)"] * len(some))
            values = [value for record in some for value in record]
            self._connection.execute(f"INSERT INTO records VALUES {rows}", values)

    def _look_up(self, names: list[Names]) -> None:
        rows = ", ".join(["(?, ?)"] * len(names))
        found = self._connection.execute(
            f"WITH asked (job, text) AS (VALUES {rows}) "
            "SELECT job, text, id, pruned_through FROM asked CROSS JOIN journals "
            "ON journals.journal_id = job AND journals.key = text",
            [name for pair in names for name in pair],
        )
        for journal_id, key, row, pruned_through in found.fetchall():
            self._journals[bytes(journal_id), bytes(key)] = (row, pruned_through)
