"""The statements of one transaction: few, since the interpreter switches threads in each of them.

Next to a busy event loop, one statement per record took most of the writer's time (measured):
journals are looked up, and records are inserted and removed, many at a time. Reading a row also
switches threads, so a look-up returns a single row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from flink_agents.api.action_state import JournalKey, Record, encode_text, pruned_error
from flink_agents.connectors.action_state.sqlite.removals import WITHOUT_RECORDS
from flink_agents.runtime.journal.identity import POSITION

MANY = 100
"""The largest number of journals or records per statement. SQLite always allows 999 parameters."""


STATEMENTS = 4 * MANY
"""Number of prepared statements of a connection: those of each kind for each number of rows.

Preparing one costs as much as to execute it.
"""

_COLUMNS = 6
"""Number of columns of a record."""


@lru_cache(maxsize=MANY)
def _insert_statement(records: int) -> str:
    """Return the SQL that inserts this number of records in one statement."""
    return f"INSERT INTO records VALUES {', '.join(['(NULL, ?, ?, ?, ?, ?, ?)'] * records)}"


@lru_cache(maxsize=MANY)
def _lookup_statement(journals: int) -> str:
    """Return the SQL that looks up this number of journals by job id and key.

    Its result is a single text: for each stored journal its number in the statement, its row id, and its last
    pruned run.
    """
    rows = ", ".join(f"({number}, ?, ?)" for number in range(journals))
    return (
        f"WITH asked (number, job, text) AS (VALUES {rows}) "
        "SELECT group_concat(number || ' ' || id || ' ' || pruned_through) "
        "FROM asked CROSS JOIN journals ON journals.journal_id = job AND journals.key = text"
    )


CACHED_JOURNALS = 20_000
"""With more rows of journals than this, the next transaction looks up its own ones again."""


class Rows:
    """Reads and writes the rows of transactions on one connection.

    It caches the row ids of journals. The cache is valid until another connection changes the file, or until
    this one rolls back: then call :meth:`forget_lookups`.

    Args:
        connection: The connection, with an open transaction during each call.

    Attributes:
        pruned: Number of journals that the current transaction has pruned.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._values: list[Any] = []
        self._pruned_rows: dict[int, int] = {}
        self.pruned = 0
        self._journals: dict[JournalKey, tuple[int, int]] = {}

    def look_up(self, journals: Iterable[JournalKey]) -> None:
        """Begin the changes of a transaction: cache the row ids of the journals that it changes."""
        self._values = []
        self._pruned_rows = {}
        self.pruned = 0
        cached = self._journals
        if len(cached) > CACHED_JOURNALS:
            cached.clear()
        unread = [journal for journal in set(journals) if journal not in cached]
        for start in range(0, len(unread), MANY):
            self._look_up_journals(unread[start : start + MANY])

    def forget_lookups(self) -> None:
        """Clear the cache of row ids, so that the next transaction reads them again."""
        self._journals.clear()

    def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Queue records for insertion at the next :meth:`flush`; add a row for a new journal at once.

        Raises:
            RecordsPrunedError: A record belongs to a pruned run. No record was queued.
        """
        journal_row = self._journals.get(journal)
        if journal_row is None:
            names = list(map(encode_text, journal))
            cursor = self._connection.execute("INSERT INTO journals VALUES (NULL, ?, ?, -1)", names)
            journal_row = self._journals[journal] = (cursor.lastrowid or 0, -1)
        row, pruned_through = journal_row
        for record in records:
            if record.seq <= pruned_through:
                raise pruned_error(journal, record.seq, pruned_through)
        for new_record in records:
            self._values += (
                row,
                new_record.seq,
                int(new_record.kind),
                encode_text(new_record.step),
                new_record.index,
                new_record.data,
            )

    def prune(self, journal: JournalKey, through: int) -> None:
        """Queue the removal of all runs of a journal up to number ``through``, for the next :meth:`flush`."""
        row, pruned_through = self._journals.get(journal, (0, through))
        if through > pruned_through:
            # No further record of these runs is appended, so it can wait until the end of the transaction.
            self._pruned_rows[row] = through
            self._journals[journal] = (row, through)
            self.pruned += 1

    def forget(self, journal_id: str) -> None:
        """Flush, and delete all journals of a job with their records."""
        self.flush()
        job = encode_text(journal_id)
        self._connection.execute(
            "DELETE FROM records WHERE journal IN (SELECT id FROM journals WHERE journal_id = ?)", (job,)
        )
        self._connection.execute(
            "DELETE FROM removals WHERE journal IN (SELECT id FROM journals WHERE journal_id = ?)", (job,)
        )
        self._connection.execute("DELETE FROM journals WHERE journal_id = ?", (job,))
        for journal in [journal for journal in self._journals if journal.journal_id == journal_id]:
            del self._journals[journal]

    def set_position(self, position: int) -> None:
        """Store the number of transactions that have appended records, by which older copies are detected."""
        self._connection.execute(
            "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (POSITION, str(position))
        )

    def flush(self) -> None:
        """Insert the queued records, and then delete the records of the pruned runs."""
        values = self._values
        self._values = []
        for start in range(0, len(values), _COLUMNS * MANY):
            chunk = values[start : start + _COLUMNS * MANY]
            self._connection.execute(_insert_statement(len(chunk) // _COLUMNS), chunk)
        pruned_rows = list(self._pruned_rows.items())
        self._pruned_rows = {}
        for start in range(0, len(pruned_rows), MANY):
            self._remove_runs(pruned_rows[start : start + MANY])

    def _remove_runs(self, pruned_rows: list[tuple[int, int]]) -> None:
        """Delete the records of pruned runs, and list the journals that have no records left in ``removals``.

        Args:
            pruned_rows: Row id of each journal, and the last run to delete.
        """
        rows = f"WITH gone (row, through) AS (VALUES {', '.join(['(?, ?)'] * len(pruned_rows))}) "
        values = [value for pruned_row in pruned_rows for value in pruned_row]
        self._connection.execute(
            rows + "UPDATE journals SET pruned_through = (SELECT through FROM gone WHERE row = journals.id) "
            "WHERE id IN (SELECT row FROM gone)",
            values,
        )
        self._connection.execute(
            rows + "DELETE FROM records WHERE id IN (SELECT records.id FROM gone CROSS JOIN records "
            "ON records.journal = row AND records.seq <= through)",
            values,
        )
        self._connection.execute(
            rows + "INSERT OR REPLACE INTO removals SELECT row, "
            "(SELECT coalesce(max(position), 0) + 1 FROM removals) FROM gone WHERE "
            + WITHOUT_RECORDS.format("row"),
            values,
        )

    def _look_up_journals(self, journals: list[JournalKey]) -> None:
        names = list(map(encode_text, chain.from_iterable(journals)))
        (rows_text,) = self._connection.execute(_lookup_statement(len(journals)), names).fetchone()
        for row_text in rows_text.split(",") if rows_text else ():
            number, row, pruned_through = map(int, row_text.split())
            self._journals[journals[number]] = (row, pruned_through)
