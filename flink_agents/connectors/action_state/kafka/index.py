"""The journals of a store ``kafka`` as far as they were read, in memory."""

from __future__ import annotations

from collections.abc import Iterable

from flink_agents.api.action_state import NOTHING_PRUNED, JournalInfo, JournalKey, Record
from flink_agents.connectors.action_state.journals import Journal, describe, totals
from flink_agents.connectors.action_state.kafka.layout import FORGET, Entry


class JournalIndex:
    """See the module. Entries are applied in the order of their partition."""

    def __init__(self) -> None:
        self._journals: dict[JournalKey, Journal] = {}
        self._forgotten: set[JournalKey] = set()

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

    def prepend(self, older: JournalIndex) -> None:
        """Take over what lies before all that was applied here."""
        for journal, before in older._journals.items():
            if journal in self._forgotten:
                continue
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

    def pruned_through(self, journal: JournalKey) -> int:
        """See the protocol of stores."""
        kept = self._journals.get(journal)
        return NOTHING_PRUNED if kept is None else kept.pruned_through

    def scan(self, journal: JournalKey, from_seq: int | None, to_seq: int | None) -> list[Record]:
        """See the protocol of stores."""
        kept = self._journals.get(journal)
        return [] if kept is None else kept.scan(journal, from_seq, to_seq)

    def describe(self, journal_id: str | None, after: JournalKey | None, limit: int) -> list[JournalInfo]:
        """See ``ActionStateStore.journals``."""
        return describe(self._journals, journal_id, after, limit)

    def totals(self) -> tuple[int, int, int]:
        """Numbers of journals and records, and the bytes of their data."""
        return totals(self._journals)
