"""Which batches of a store ``kafka`` nobody needs any more.

A batch is needed as long as it has a record of a run that was not pruned, or the last removal of a
journal, or says that a journal was forgotten. What a scan or a writer knows of is enough to say that one
is not: nothing that was pruned comes back. So anybody may remove a batch that is dead, whoever wrote it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from flink_agents.api.action_state import NOTHING_PRUNED, JournalKey, Owner
from flink_agents.connectors.action_state.kafka.layout import FORGET, BatchKey, Entry

SPARSE = 4
"""A batch of removals of which less than one in so many is needed is written anew."""


class Batch(NamedTuple):
    """Where a batch is.

    Attributes:
        partition: Its partition.
        key: Its key.
    """

    partition: int
    key: BatchKey


class _Removal(NamedTuple):
    """The last removal of a journal.

    Attributes:
        through: The last run that it removed.
        offset: Where it is. Of two that say the same, the later one is kept: so all agree on which.
        batch: In which batch.
    """

    through: int
    offset: int
    batch: Batch


class Garbage:
    """See the module. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needed: dict[Batch, int] = {}
        self._runs: dict[JournalKey, dict[int, list[Batch]]] = {}
        self._removals: dict[JournalKey, _Removal] = {}
        self._forgotten: dict[JournalKey, _Removal] = {}
        self._offsets: dict[Batch, int] = {}
        self._sizes: dict[Batch, int] = {}
        self._dead: list[Batch] = []
        self._kept_runs = 0
        self.found = 0

    def pruned_through(self, journal: JournalKey) -> int:
        """The last run that was pruned, as far as is known here."""
        removal = self._removals.get(journal)
        return NOTHING_PRUNED if removal is None else removal.through

    def counts(self) -> dict[str, int]:
        """Runs and batches that are needed, as far as is known here, and batches that were removed."""
        return {
            "runs_kept": self._kept_runs,
            "batches_kept": len(self._needed),
            "batches_removed": self.found,
        }

    def with_runs(self) -> set[Batch]:
        """The batches that hold runs which were not pruned."""
        with self._lock:
            return {batch for runs in self._runs.values() for batches in runs.values() for batch in batches}

    def knows(self, journal: JournalKey) -> bool:
        """Whether a batch has something of the journal."""
        return journal in self._runs or journal in self._removals

    def add(self, batch: Batch, offset: int, entries: Iterable[Entry]) -> None:
        """Note what the batch at an offset holds; again does no harm."""
        with self._lock:
            if batch in self._needed:
                return
            self._needed[batch] = 0
            self._offsets[batch] = offset
            removals = 0
            for entry in entries:
                if entry.through is None:
                    self._add_runs(batch, entry)
                elif entry.through == FORGET:
                    self._forget(entry.journal, _Removal(FORGET, offset, batch))
                else:
                    removals += 1
                    self._remove(entry.journal, _Removal(entry.through, offset, batch))
            if removals:
                self._sizes[batch] = removals
            if self._needed.get(batch) == 0:
                self._die(batch)

    def void(self, batch: Batch) -> None:
        """Note that a batch never counted."""
        with self._lock:
            self._dead.append(batch)

    def gone(self, batch: Batch) -> None:
        """Note that a batch was removed by somebody."""
        with self._lock:
            self._drop(batch)

    def take_dead(self) -> list[Batch]:
        """Batches that can be removed, once."""
        if not self._dead:
            return []
        with self._lock:
            dead, self._dead = self._dead, []
            self.found += len(dead)
            return dead

    def take_sparse(self, limit: int, owner: Owner) -> list[tuple[JournalKey, int]]:
        """Removals out of batches of which most is not needed: they are to be written anew.

        Only of journals of the owner's group, or that the owner wrote itself: of others it may not know yet
        that they were forgotten.
        """
        with self._lock:
            sparse = {
                batch for batch, size in self._sizes.items() if 0 < self._needed.get(batch, 0) * SPARSE < size
            }
            if not sparse:
                return []
            found = [
                (journal, removal.through)
                for journal, removal in self._removals.items()
                if removal.batch in sparse
                and (journal.journal_id == owner.group or removal.batch.key.token == owner.token)
            ]
            return found[:limit]

    def _add_runs(self, batch: Batch, entry: Entry) -> None:
        if self._offsets[batch] < self._forgotten_at(entry.journal):
            return
        through = self.pruned_through(entry.journal)
        for seq in {record.seq for record in entry.records}:
            if seq > through:
                self._note_run(entry.journal, seq, batch)
                self._needed[batch] += 1

    def _note_run(self, journal: JournalKey, seq: int, batch: Batch) -> None:
        batches = self._runs.setdefault(journal, {}).setdefault(seq, [])
        if not batches:
            self._kept_runs += 1
        batches.append(batch)

    def _remove(self, journal: JournalKey, removal: _Removal) -> None:
        known = self._removals.get(journal)
        if removal.through < 0 or (known is not None and removal[:2] < known[:2]):
            return
        if removal.offset < self._forgotten_at(journal):
            return
        self._removals[journal] = removal
        self._needed[removal.batch] += 1
        if known is not None:
            self._release(known.batch)
        runs = self._runs.get(journal)
        if runs is None:
            return
        for seq in [seq for seq in runs if seq <= removal.through]:
            self._kept_runs -= 1
            for each in runs.pop(seq):
                self._release(each)
        if not runs:
            del self._runs[journal]

    def _forgotten_at(self, journal: JournalKey) -> int:
        """What of a journal lies before this offset is forgotten."""
        known = self._forgotten.get(journal)
        return -1 if known is None else known.offset

    def _forget(self, journal: JournalKey, forgotten: _Removal) -> None:
        """Note that all of a journal that lies before an offset was forgotten."""
        known = self._forgotten.get(journal)
        if known is not None and forgotten.offset < known.offset:
            return
        self._forgotten[journal] = forgotten
        self._needed[forgotten.batch] += 1
        if known is not None:
            self._release(known.batch)
        removal = self._removals.get(journal)
        if removal is not None and removal.offset < forgotten.offset:
            del self._removals[journal]
            self._release(removal.batch)
        runs = self._runs.pop(journal, {})
        self._kept_runs -= len(runs)
        for seq, batches in runs.items():
            for batch in batches:
                if self._offsets.get(batch, -1) < forgotten.offset:
                    self._release(batch)
                else:
                    self._note_run(journal, seq, batch)

    def _release(self, batch: Batch) -> None:
        needed = self._needed.get(batch)
        if needed is None:
            return
        self._needed[batch] = needed - 1
        if needed == 1:
            self._die(batch)

    def _die(self, batch: Batch) -> None:
        self._drop(batch)
        self._dead.append(batch)

    def _drop(self, batch: Batch) -> None:
        self._needed.pop(batch, None)
        self._offsets.pop(batch, None)
        self._sizes.pop(batch, None)
