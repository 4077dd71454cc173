"""Journals in memory, for stores that hold or read them there."""

from __future__ import annotations

from collections.abc import Mapping

from flink_agents.api.action_state import (
    NOTHING_PRUNED,
    JournalInfo,
    JournalKey,
    Record,
    encode_text,
    pruned_error,
)


class Journal:
    """The records of one journal by run, in the order in which they were appended.

    Attributes:
        runs: Records in the order of their append, by the number of their run.
        pruned_through: Number of the last removed run; :data:`NOTHING_PRUNED` if none.
    """

    __slots__ = ("pruned_through", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, list[Record]] = {}
        self.pruned_through = NOTHING_PRUNED

    def prune(self, through: int) -> None:
        """Remove all runs up to number ``through``."""
        if through > self.pruned_through:
            self.pruned_through = through
            self.runs = {seq: records for seq, records in self.runs.items() if seq > through}

    def scan(self, key: JournalKey, from_seq: int | None, to_seq: int | None) -> list[Record]:
        """Return the records of runs ``from_seq`` to ``to_seq``, by run and then in the order of appends.

        None stands for no bound.

        Raises:
            RecordsPrunedError: ``from_seq`` is a pruned run.
        """
        if from_seq is not None and from_seq <= self.pruned_through:
            raise pruned_error(key, from_seq, self.pruned_through)
        run_numbers = sorted(
            seq
            for seq in self.runs
            if (from_seq is None or seq >= from_seq) and (to_seq is None or seq <= to_seq)
        )
        return [record for seq in run_numbers for record in self.runs[seq]]

    def describe(self, key: JournalKey) -> JournalInfo:
        """Return the figures of this journal, as ``ActionStateStore.journals`` does."""
        records = [record for run in self.runs.values() for record in run]
        return JournalInfo(
            journal=key,
            runs=len(self.runs),
            records=len(records),
            data_bytes=sum(len(record.data) for record in records),
            first_seq=min(self.runs, default=None),
            last_seq=max(self.runs, default=None),
            pruned_through=self.pruned_through,
        )


def describe(
    journals: Mapping[JournalKey, Journal], journal_id: str | None, after: JournalKey | None, limit: int
) -> list[JournalInfo]:
    """Return one page of the figures of journals, as ``ActionStateStore.journals`` does."""
    ordered_keys = sorted(
        (_sort_key(key), key) for key in journals if journal_id is None or key.journal_id == journal_id
    )
    behind = [key for order, key in ordered_keys if after is None or order > _sort_key(after)]
    return [journals[key].describe(key) for key in behind[:limit]]


def totals(journals: Mapping[JournalKey, Journal]) -> tuple[int, int, int]:
    """Return the numbers of journals and of records, and the size of the records' data in bytes."""
    records = [record for journal in journals.values() for run in journal.runs.values() for record in run]
    return len(journals), len(records), sum(len(record.data) for record in records)


def _sort_key(key: JournalKey) -> tuple[bytes, bytes]:
    return encode_text(key.journal_id), encode_text(key.key)
