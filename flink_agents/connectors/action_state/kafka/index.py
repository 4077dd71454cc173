"""The journals of a store ``kafka`` in memory, as far as they were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flink_agents.api.action_state import NOTHING_PRUNED, JournalInfo, JournalKey, Record
from flink_agents.connectors.action_state.journals import Journal, describe, totals
from flink_agents.connectors.action_state.kafka.layout import FORGET, Entry


class JournalIndex:
    """The journals of a store ``kafka`` that were read.

    Entries must be applied in the order of their partition.
    """

    def __init__(self) -> None:
        self._journals: dict[JournalKey, Journal] = {}
        self._forgotten: set[JournalKey] = set()
        # Journals that may have no run left, since they were last checked.
        self._emptied: set[JournalKey] = set()

    def __contains__(self, journal: JournalKey) -> bool:
        return journal in self._journals

    def __len__(self) -> int:
        return len(self._journals)

    def apply_entries(self, entries: Iterable[Entry]) -> None:
        """Apply appends, removals and deletions of journals, in order."""
        for entry in entries:
            if entry.through == FORGET:
                self._journals.pop(entry.journal, None)
                self._forgotten.add(entry.journal)
                continue
            stored = self._journals.get(entry.journal)
            if stored is None:
                stored = self._journals[entry.journal] = Journal()
            if entry.through is not None:
                stored.prune(entry.through)
                self._emptied.add(entry.journal)
                continue
            for record in entry.records:
                if record.seq > stored.pruned_through:
                    stored.runs.setdefault(record.seq, []).append(record)

    def extend(self, newer: JournalIndex) -> None:
        """Add the journals of an index of later records; that index must not be used afterwards."""
        for journal in newer._forgotten:
            self._journals.pop(journal, None)
        self._forgotten |= newer._forgotten
        for journal, behind in newer._journals.items():
            stored = self._journals.get(journal)
            if stored is None:
                self._journals[journal] = behind
                continue
            stored.prune(behind.pruned_through)
            for seq, records in behind.runs.items():
                if seq > stored.pruned_through:
                    stored.runs.setdefault(seq, []).extend(records)
        self._emptied |= newer._emptied

    def prepend(self, older: JournalIndex, pruned: Callable[[JournalKey], int] | None = None) -> None:
        """Add the journals of an index of earlier records; that index must not be used afterwards.

        Args:
            older: The index of earlier records.
            pruned: Returns the last removed run of a journal, if it is known from another source.
        """
        for journal, older_journal in older._journals.items():
            if journal in self._forgotten:
                continue
            if pruned is not None:
                older_journal.prune(pruned(journal))
            stored = self._journals.get(journal)
            if stored is None:
                self._journals[journal] = older_journal
                continue
            for seq, records in older_journal.runs.items():
                stored.runs[seq] = records + stored.runs.get(seq, [])
            through = max(stored.pruned_through, older_journal.pruned_through)
            stored.pruned_through = NOTHING_PRUNED
            stored.prune(through)
        self._forgotten |= older._forgotten
        self._emptied |= older._journals.keys()

    def drop_runs(self, journal: JournalKey, through: int) -> None:
        """Drop the runs of a journal up to number ``through``, and the journal if it has no run left."""
        stored = self._journals.get(journal)
        if stored is not None:
            stored.prune(through)
            if not stored.runs:
                del self._journals[journal]

    def drop_run(self, journal: JournalKey, seq: int) -> None:
        """Drop one run of a journal, since its batch was removed; earlier runs stay."""
        stored = self._journals.get(journal)
        if stored is not None and stored.runs.pop(seq, None) is not None:
            self._emptied.add(journal)

    def free_journals(self, pruned: Callable[[JournalKey], int]) -> list[tuple[JournalKey, int]]:
        """Drop journals without runs if their removals are known from another source.

        Args:
            pruned: Returns the last removed run of a journal, as that source knows it.

        Returns:
            The dropped journals, each with its last removed run.
        """
        removals: list[tuple[JournalKey, int]] = []
        for journal in self._emptied:
            stored = self._journals.get(journal)
            if (
                stored is not None
                and not stored.runs
                and stored.pruned_through <= (through := pruned(journal))
            ):
                del self._journals[journal]
                removals.append((journal, through))
        self._emptied.clear()
        return removals

    def pruned_through(self, journal: JournalKey) -> int:
        """Return the last removed run of a journal that was read; :data:`NOTHING_PRUNED` if none."""
        stored = self._journals.get(journal)
        return NOTHING_PRUNED if stored is None else stored.pruned_through

    def scan(self, journal: JournalKey, from_seq: int | None, to_seq: int | None) -> list[Record]:
        """Return the records of runs ``from_seq`` to ``to_seq`` that were read; None stands for no bound."""
        stored = self._journals.get(journal)
        return [] if stored is None else stored.scan(journal, from_seq, to_seq)

    def describe(
        self,
        journal_id: str | None,
        after: JournalKey | None,
        limit: int,
        pruned: Mapping[JournalKey, int] | None = None,
    ) -> list[JournalInfo]:
        """Describe journals as ``ActionStateStore.journals`` does.

        Args:
            journal_id: Id of a job, to describe only its journals; None for all jobs.
            after: The last journal of the previous page; None for the first page.
            limit: The maximum number to return.
            pruned: Last removed run of each journal, as known from another source.
        """
        return describe(self._all_journals(pruned or {}), journal_id, after, limit)

    def totals(self, pruned: Mapping[JournalKey, int] | None = None) -> tuple[int, int, int]:
        """Return the numbers of journals and of records, and the size of the records' data in bytes."""
        return totals(self._all_journals(pruned or {}))

    def _all_journals(self, pruned: Mapping[JournalKey, int]) -> dict[JournalKey, Journal]:
        journals: dict[JournalKey, Journal] = {}
        for journal, through in pruned.items():
            journals[journal] = Journal()
            journals[journal].prune(through)
        return {**journals, **self._journals}
