"""Queries to a store ``sqlite``; each sees one snapshot of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from flink_agents.api.action_state import (
    NOTHING_PRUNED,
    JournalInfo,
    JournalKey,
    Record,
    RecordKind,
    decode_text,
    encode_text,
    pruned_error,
)

LAST_SEQ = 2**63 - 1
KNOWN_JOURNALS = 1_000_000
"""If there are more journals than this, the store does not remember which ones have records."""


@contextmanager
def _read_snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def _find_journal(connection: sqlite3.Connection, journal: JournalKey) -> tuple[int, int] | None:
    """Return the row id of a journal, and its last pruned run; None if the journal is not in the file."""
    return connection.execute(
        "SELECT id, pruned_through FROM journals WHERE journal_id = ? AND key = ?",
        (encode_text(journal.journal_id), encode_text(journal.key)),
    ).fetchone()


def scan_records(
    connection: sqlite3.Connection, journal: JournalKey, from_seq: int | None, to_seq: int | None
) -> list[Record]:
    """Return the records of runs ``from_seq`` to ``to_seq``, by run and then in the order of their append.

    None stands for no bound.

    Raises:
        RecordsPrunedError: ``from_seq`` is a pruned run.
    """
    with _read_snapshot(connection):
        journal_row = _find_journal(connection, journal)
        if journal_row is None:
            return []
        if from_seq is not None and from_seq <= journal_row[1]:
            raise pruned_error(journal, from_seq, journal_row[1])
        first = 0 if from_seq is None else min(from_seq, LAST_SEQ)
        last = LAST_SEQ if to_seq is None else min(to_seq, LAST_SEQ)
        rows = connection.execute(
            "SELECT kind, seq, step, idx, data FROM records "
            "WHERE journal = ? AND seq BETWEEN ? AND ? ORDER BY seq, id",
            (journal_row[0], first, last),
        )
        return [Record(RecordKind(row[0]), row[1], decode_text(row[2]), row[3], row[4]) for row in rows]


def pruned_through(connection: sqlite3.Connection, journal: JournalKey) -> int:
    """Return the last run of ``journal`` that was pruned; :data:`NOTHING_PRUNED` if none."""
    journal_row = _find_journal(connection, journal)
    return NOTHING_PRUNED if journal_row is None else journal_row[1]


def known_journals(connection: sqlite3.Connection, limit: int = KNOWN_JOURNALS) -> frozenset[int] | None:
    """Return the hashes of all journal keys, so that a lookup of an unknown journal needs no query.

    Returns None if there are more than ``limit``. A hash takes a fifth of the memory of a key. If two keys
    have the same hash, only an unnecessary query follows.
    """
    rows = connection.execute("SELECT journal_id, key FROM journals LIMIT ?", (limit + 1,))
    hashes = frozenset(hash(JournalKey(decode_text(row[0]), decode_text(row[1]))) for row in rows)
    return hashes if len(hashes) <= limit else None


def list_journals(
    connection: sqlite3.Connection, journal_id: str | None, after: JournalKey | None, limit: int
) -> list[JournalInfo]:
    """Return the figures of up to ``limit`` journals, of one job or all, after the journal ``after``."""
    where = ["1"]
    values = list[bytes | int]()
    if journal_id is not None:
        where.append("journal_id = ?")
        values.append(encode_text(journal_id))
    if after is not None:
        where.append("(journal_id, key) > (?, ?)")
        values += encode_text(after.journal_id), encode_text(after.key)
    rows = connection.execute(
        "SELECT j.journal_id, j.key, count(DISTINCT r.seq), count(r.id), coalesce(sum(length(r.data)), 0), "
        "min(r.seq), max(r.seq), j.pruned_through FROM "
        f"(SELECT * FROM journals WHERE {' AND '.join(where)} ORDER BY journal_id, key LIMIT ?) j "
        "LEFT JOIN records r ON r.journal = j.id GROUP BY j.id ORDER BY j.journal_id, j.key",
        (*values, limit),
    )
    return [JournalInfo(JournalKey(decode_text(row[0]), decode_text(row[1])), *row[2:]) for row in rows]


def read_totals(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the number of journals, the number of records, and the size of all record data in bytes."""
    return connection.execute(
        "SELECT (SELECT count(*) FROM journals), count(*), coalesce(sum(length(data)), 0) FROM records"
    ).fetchone()
