"""The journals of a store ``kafka`` as far as they were read, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flink_agents.api.action_state import NOTHING_PRUNED, JournalInfo, JournalKey, Record
from flink_agents.connectors.action_state.journals import Journal, describe, totals
from flink_agents.connectors.action_state.kafka.layout import FORGET, Entry


class JournalIndex:
    """Holds the journals that were read; entries are applied in the order of their partition."""

    def __init__(self) -> None:
        self._journals: dict[JournalKey, Journal] = {}
        self._forgotten: set[JournalKey] = set()
        # Journals that may have no run any more, since this was last looked at.
        self._emptied: set[JournalKey] = set()

    def __contains__(self, journal: JournalKey) -> bool:
        return journal in self._journals

    def __len__(self) -> int:
        return len(self._journals)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Take over what a batch says."""
        for entry in entries:
            if entry.through == FORGET:
                self._journals.pop(entry.journal, None)
                self._forgotten.add(entry.journal)
                continue
            kept = self._journals.get(entry.journal)
            if kept is None:
                kept = self._journals[entry.journal] = Journal()
            if entry.through is not None:
                kept.prune(entry.through)
                self._emptied.add(entry.journal)
                continue
            for record in entry.records:
                if record.seq > kept.pruned_through:
                    kept.runs.setdefault(record.seq, []).append(record)

    def extend(self, newer: JournalIndex) -> None:
        """Take over what lies behind all that was applied here."""
        for journal in newer._forgotten:
            self._journals.pop(journal, None)
        self._forgotten |= newer._forgotten
        for journal, behind in newer._journals.items():
            kept = self._journals.get(journal)
            if kept is None:
                self._journals[journal] = behind
                continue
            kept.prune(behind.pruned_through)
            for seq, records in behind.runs.items():
                if seq > kept.pruned_through:
                    kept.runs.setdefault(seq, []).extend(records)
        self._emptied |= newer._emptied

    def prepend(self, older: JournalIndex, pruned: Callable[[JournalKey], int] | None = None) -> None:
        """Take over what lies before all that was applied here.

        Args:
            older: What that is.
            pruned: The last run that was removed of a journal, as far as is known without ``older``.
        """
        for journal, before in older._journals.items():
            if journal in self._forgotten:
                continue
            if pruned is not None:
                before.prune(pruned(journal))
            kept = self._journals.get(journal)
            if kept is None:
                self._journals[journal] = before
                continue
            for seq, records in before.runs.items():
                kept.runs[seq] = records + kept.runs.get(seq, [])
            through = max(kept.pruned_through, before.pruned_through)
            kept.pruned_through = NOTHING_PRUNED
            kept.prune(through)
        self._forgotten |= older._forgotten
        self._emptied |= older._journals.keys()

    def settle(self, journal: JournalKey, through: int) -> None:
        """Let go of the runs of a journal up to a number, and of the journal if it has no other."""
        kept = self._journals.get(journal)
        if kept is not None:
            kept.prune(through)
            if not kept.runs:
                del self._journals[journal]

    def drop(self, journal: JournalKey, seq: int) -> None:
        """Let go of a run whose batch was removed, without a word about those before it."""
        kept = self._journals.get(journal)
        if kept is not None and kept.runs.pop(seq, None) is not None:
            self._emptied.add(journal)

    def free(self, pruned: Callable[[JournalKey], int]) -> list[tuple[JournalKey, int]]:
        """Let go of journals without runs of which others know what was removed; returns what they know.

        Args:
            pruned: The last run that was removed of a journal, as others know it.
        """
        found: list[tuple[JournalKey, int]] = []
        for journal in self._emptied:
            kept = self._journals.get(journal)
            if kept is not None and not kept.runs and kept.pruned_through <= (through := pruned(journal)):
                del self._journals[journal]
                found.append((journal, through))
        self._emptied.clear()
        return found

    def pruned_through(self, journal: JournalKey) -> int:
        """Return the last run that was pruned, as far as its removal was read."""
        kept = self._journals.get(journal)
        return NOTHING_PRUNED if kept is None else kept.pruned_through

    def scan(self, journal: JournalKey, from_seq: int | None, to_seq: int | None) -> list[Record]:
        """Return the records of some runs, as far as they were read."""
        kept = self._journals.get(journal)
        return [] if kept is None else kept.scan(journal, from_seq, to_seq)

    def describe(
        self,
        journal_id: str | None,
        after: JournalKey | None,
        limit: int,
        settled: Mapping[JournalKey, int] | None = None,
    ) -> list[JournalInfo]:
        """Describe journals as ``ActionStateStore.journals`` does.

        Args:
            journal_id: Only those of this job.
            after: Only those behind this one.
            limit: The most to return.
            settled: Journals of which a removal is known, with the last run that it removed.
        """
        return describe(self._with(settled or {}), journal_id, after, limit)

    def totals(self, settled: Mapping[JournalKey, int] | None = None) -> tuple[int, int, int]:
        """Return the numbers of journals and records, and the bytes of their data."""
        return totals(self._with(settled or {}))

    def _with(self, settled: Mapping[JournalKey, int]) -> dict[JournalKey, Journal]:
        found: dict[JournalKey, Journal] = {}
        for journal, through in settled.items():
            found[journal] = Journal()
            found[journal].prune(through)
        return {**found, **self._journals}
