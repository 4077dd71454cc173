"""The journals of a store ``kafka`` as far as they were read, in memory."""

from __future__ import annotations

from collections.abc import Iterable

from flink_agents.api.action_state import (
    NOTHING_PRUNED,
    JournalInfo,
    JournalKey,
    Record,
    encode_text,
    pruned_error,
)
from flink_agents.connectors.action_state.kafka.layout import FORGET, Entry


class _Journal:
    __slots__ = ("runs", "through")

    def __init__(self) -> None:
        self.runs: dict[int, list[Record]] = {}
        self.through = NOTHING_PRUNED

    def prune(self, through: int) -> None:
        if through > self.through:
            self.through = through
            for seq in [seq for seq in self.runs if seq <= through]:
                del self.runs[seq]


class JournalIndex:
    """See the module. Entries are applied in the order of their partition."""

    def __init__(self) -> None:
        self._journals: dict[JournalKey, _Journal] = {}
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
                kept = self._journals[entry.journal] = _Journal()
            if entry.through is not None:
                kept.prune(entry.through)
                continue
            for record in entry.records:
                if record.seq > kept.through:
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
            kept.prune(behind.through)
            for seq, records in behind.runs.items():
                if seq > kept.through:
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
            through = max(kept.through, before.through)
            kept.through = NOTHING_PRUNED
            kept.prune(through)
        self._forgotten |= older._forgotten

    def pruned_through(self, journal: JournalKey) -> int:
        """See the protocol of stores."""
        kept = self._journals.get(journal)
        return NOTHING_PRUNED if kept is None else kept.through

    def scan(self, journal: JournalKey, from_seq: int | None, to_seq: int | None) -> list[Record]:
        """See the protocol of stores."""
        kept = self._journals.get(journal)
        if kept is None:
            return []
        if from_seq is not None and from_seq <= kept.through:
            raise pruned_error(journal, from_seq, kept.through)
        return [
            record
            for seq in sorted(kept.runs)
            if (from_seq is None or seq >= from_seq) and (to_seq is None or seq <= to_seq)
            for record in kept.runs[seq]
        ]

    def describe(self, journal_id: str | None, after: JournalKey | None, limit: int) -> list[JournalInfo]:
        """See ``ActionStateStore.journals``."""
        found = sorted(
            (_order(journal), journal)
            for journal in self._journals
            if journal_id is None or journal.journal_id == journal_id
        )
        behind = [journal for order, journal in found if after is None or order > _order(after)]
        return [self._info(journal) for journal in behind[:limit]]

    def totals(self) -> tuple[int, int, int]:
        """Numbers of journals and records, and the bytes of their data."""
        records = [record for kept in self._journals.values() for run in kept.runs.values() for record in run]
        return len(self._journals), len(records), sum(len(record.data) for record in records)

    def _info(self, journal: JournalKey) -> JournalInfo:
        kept = self._journals[journal]
        records = [record for run in kept.runs.values() for record in run]
        return JournalInfo(
            journal=journal,
            runs=len(kept.runs),
            records=len(records),
            data_bytes=sum(len(record.data) for record in records),
            first_seq=min(kept.runs, default=None),
            last_seq=max(kept.runs, default=None),
            pruned_through=kept.through,
        )


def _order(key: JournalKey) -> tuple[bytes, bytes]:
    return encode_text(key.journal_id), encode_text(key.key)
