"""Finds the batches of a store ``kafka`` that are no longer needed.

A batch is needed as long as it has a record of a run that was not pruned, or the last removal of a
journal, or the fact that a journal was deleted. The knowledge of a single scan or writer is enough to say
that a batch is not needed: pruned runs never return. So any owner may remove any dead batch.

A removal serves two purposes. While a batch with records of the runs exists, it says that they do
not count. After that, it only detects a state that is too old; of the many removals with only that purpose,
the latest ones are kept (``remembered``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from flink_agents.api.action_state import NOTHING_PRUNED, JournalKey, Owner
from flink_agents.connectors.action_state.kafka.layout import FORGET, BatchKey, Entry
from flink_agents.connectors.action_state.kafka.remembered import Dated, Remembered

SPARSE = 4
"""A batch of removals is rewritten if less than one in this many of its removals is needed."""


class Batch(NamedTuple):
    """The position of a batch.

    Attributes:
        partition: Number of its partition.
        key: Token of its writer, and its number.
    """

    partition: int
    key: BatchKey


class _Removal(NamedTuple):
    """The last removal of the first runs of a journal.

    Attributes:
        through: Number of the last run that it removed; :data:`FORGET` for all.
        offset: Its offset. Of two equal removals, the later one stays, so that all owners keep the same one.
        batch: The batch that contains it.
        since: Offset at which it was first written, before it was rewritten.
    """

    through: int
    offset: int
    batch: Batch
    since: int


class Garbage:
    """Records the content of batches, and tells which of them can be removed. Thread-safe.

    Args:
        remembered: Chooses the removals to keep; None to keep all of them.
        token: Token of the owner; None for a reader.
    """

    def __init__(self, remembered: Remembered | None = None, token: str | None = None) -> None:
        self._lock = threading.Lock()
        self._remembered = remembered
        self._token = token
        self._needed: dict[Batch, int] = {}
        self._runs: dict[JournalKey, dict[int, list[Batch]]] = {}
        self._removals: dict[JournalKey, _Removal] = {}
        self._forgotten: dict[JournalKey, _Removal] = {}
        self._offsets: dict[Batch, int] = {}
        self._removal_counts: dict[Batch, int] = {}
        # Of batches that are needed: the journals in each, and the number of records of each journal.
        self._journals_in: dict[Batch, tuple[JournalKey, ...]] = {}
        self._batch_counts: Counter[JournalKey] = Counter()
        self._needed_by_token: Counter[str] = Counter()
        self._needed_removals: Counter[int] = Counter()
        self._to_rewrite: set[JournalKey] = set()
        self._dead: list[Batch] = []
        self._stored_runs = 0
        self._keeps_all_removals = False
        self.removed_count = 0

    def pruned_through(self, journal: JournalKey) -> int:
        """Return the last run of a journal that is known to be pruned; :data:`NOTHING_PRUNED` if none."""
        removal = self._removals.get(journal)
        return NOTHING_PRUNED if removal is None else removal.through

    def removal_start(self, journal: JournalKey) -> int | None:
        """Return the offset at which the last removal of a journal was first written; None without one."""
        removal = self._removals.get(journal)
        return None if removal is None else removal.since

    def pruned(self) -> dict[JournalKey, int]:
        """Return the last pruned run by journal, for all journals with a known removal."""
        with self._lock:
            return {journal: removal.through for journal, removal in self._removals.items()}

    def counts(self) -> dict[str, int]:
        """Return the numbers of needed runs, batches and removals, and of removed batches, by name."""
        return {
            "runs_kept": self._stored_runs,
            "batches_kept": len(self._needed),
            "batches_removed": self.removed_count,
            "tombstones_kept": len(self._removals),
        }

    def with_runs(self) -> set[Batch]:
        """Return the batches with records of runs that are not pruned."""
        with self._lock:
            return {batch for runs in self._runs.values() for batches in runs.values() for batch in batches}

    def knows(self, journal: JournalKey) -> bool:
        """Return True if a needed batch has any record of the journal."""
        return journal in self._runs or journal in self._removals

    def needs(self, batch: Batch) -> bool:
        """Return True if a batch is known and has anything that is needed."""
        return batch in self._needed

    def owns(self, token: str) -> bool:
        """Return True if a batch of the owner with this token has anything that is needed."""
        return self._needed_by_token[token] > 0

    # -- notifications ----------------------------------------------------------------

    def add_batch(self, batch: Batch, offset: int, entries: Iterable[Entry]) -> None:
        """Record the content of the batch at an offset; a repeated call has no effect."""
        with self._lock:
            if batch in self._needed:
                return
            self._needed[batch] = 0
            self._offsets[batch] = offset
            self._needed_by_token[batch.key.token] += 1
            removals = 0
            holds: dict[JournalKey, None] = {}
            for entry in entries:
                if entry.through is None:
                    self._add_runs(batch, entry)
                    holds[entry.journal] = None
                elif entry.through == FORGET:
                    self._forget_records(entry.journal, _Removal(FORGET, offset, batch, offset))
                else:
                    removals += 1
                    since = offset if entry.since is None else entry.since
                    self._record_removal(entry.journal, _Removal(entry.through, offset, batch, since))
            if not self._needed.get(batch):
                self._mark_batch_dead(batch)
                return
            if removals:
                self._removal_counts[batch] = removals
            if holds:
                self._journals_in[batch] = tuple(holds)
                self._batch_counts.update(self._journals_in[batch])

    def void_batch(self, batch: Batch) -> None:
        """Record that the records of a batch never counted, so that the batch can be removed."""
        with self._lock:
            self._dead.append(batch)

    def remove_batch(self, batch: Batch) -> list[tuple[JournalKey, int]]:
        """Record that a writer removed a batch.

        Returns:
            Journal and number of each run in it that was still considered needed.
        """
        with self._lock:
            needed_runs: list[tuple[JournalKey, int]] = []
            for journal in self._journals_in.get(batch, ()):
                runs = self._runs.get(journal, {})
                # The owner that removed it knew of removals that are no longer known here.
                for seq in [seq for seq, batches in runs.items() if batch in batches]:
                    self._stored_runs -= 1
                    needed_runs.append((journal, seq))
                    for run_batch in runs.pop(seq):
                        self._release_record(run_batch)
                if not runs:
                    self._runs.pop(journal, None)
            self._drop_batch(batch)
            return needed_runs

    # -- work to do -------------------------------------------------------------------

    def take_dead(self) -> list[Batch]:
        """Return the batches that can be removed, each once: remove them, or call :meth:`put_back`."""
        if not self._dead:
            return []
        with self._lock:
            dead = self._dead
            self._dead = []
            self.removed_count += len(dead)
            return dead

    def put_back(self, dead: Iterable[Batch]) -> None:
        """Queue batches again that the caller of :meth:`take_dead` could not remove."""
        with self._lock:
            self._dead[:0] = dead

    def keep_removals(self) -> None:
        """Keep all removals from now on, since it is unknown if a batch was removed."""
        self._keeps_all_removals = True

    def take_sparse(self, limit: int, owner: Owner) -> list[tuple[JournalKey, int]]:
        """Return removals to write again, so that the batches that contain them now can be removed.

        These are removals in batches that are mostly unnecessary, and marked ones (:meth:`adopt_removals`).
        Only removals of the owner's group, and those that it wrote, are returned: other journals may have
        been deleted without its knowledge.

        Args:
            limit: Maximum number of removals. Marked ones beyond it are returned by a later call.
            owner: The owner that writes them.

        Returns:
            Journal and last removed run of each removal.
        """
        with self._lock:
            sparse = {
                batch
                for batch, size in self._removal_counts.items()
                if 0 < self._needed.get(batch, 0) * SPARSE < size
            }
            if not sparse and not self._to_rewrite:
                return []
            rewrite = self._to_rewrite
            self._to_rewrite = set()
            removals = [
                (journal, removal.through)
                for journal, removal in self._removals.items()
                if (removal.batch in sparse or journal in rewrite)
                and (journal.journal_id == owner.group or removal.batch.key.token == owner.token)
            ]
            self._to_rewrite.update(journal for journal, _ in removals[limit:] if journal in rewrite)
            return removals[:limit]

    def is_over(self, partition: int) -> bool:
        """Return True if a partition has enough removals to make a search for superfluous ones worthwhile."""
        remembered = self._remembered
        over = remembered is not None and remembered.is_over(partition, self._needed_removals[partition])
        return over and not self._keeps_all_removals

    def partitions_over_limit(self) -> list[int]:
        """Return the partitions in which a search for superfluous removals is worthwhile."""
        return [partition for partition in list(self._needed_removals) if self.is_over(partition)]

    def expire_removals(self, read: Mapping[int, int]) -> list[JournalKey]:
        """Forget the removals that ``remembered`` does not keep, and return their journals.

        Args:
            read: Offset up to which each partition was read, of those read from their first offset on. A
                removal is needed as long as any batch has records of its journal.
        """
        if self._remembered is None or self._keeps_all_removals:
            return []
        with self._lock:
            read_removals = [
                (journal, removal)
                for journal, removal in self._removals.items()
                if removal.offset <= read.get(removal.batch.partition, -1)
            ]
        dated: dict[int, list[Dated]] = {}
        for journal, removal in read_removals:
            is_own = removal.batch.key.token == self._token
            dated.setdefault(removal.batch.partition, []).append(Dated(removal.since, is_own, journal))
        expired: list[JournalKey] = []
        removals = dict(read_removals)
        for partition, partition_removals in dated.items():
            for journal in self._remembered.surplus_journals(partition_removals):
                with self._lock:
                    if self._expire_removal(journal, removals[journal]):
                        expired.append(journal)
            self._remembered.record_tombstones(partition, self._needed_removals[partition])
        return expired

    def adopt_removals(self, tokens: Collection[str]) -> None:
        """Mark all removals in batches of the writers with these tokens to be written again."""
        with self._lock:
            self._to_rewrite.update(
                journal for journal, removal in self._removals.items() if removal.batch.key.token in tokens
            )

    # -- counting ---------------------------------------------------------------------

    def _expire_removal(self, journal: JournalKey, removal: _Removal) -> bool:
        """Forget a removal, and return True; return False if it is needed, or not the last one any more."""
        if self._removals.get(journal) is not removal:
            return False
        is_held = journal in self._journals_in.get(removal.batch, ())
        if self._batch_counts[journal] > is_held or journal in self._runs:
            # Together with records of other journals, it would keep their removals from being dropped.
            if removal.batch in self._journals_in:
                self._to_rewrite.add(journal)
            return False
        del self._removals[journal]
        self._needed_removals[removal.batch.partition] -= 1
        self._release_record(removal.batch)
        return True

    def _add_runs(self, batch: Batch, entry: Entry) -> None:
        if self._offsets[batch] < self._forgotten_at(entry.journal):
            return
        through = self.pruned_through(entry.journal)
        records = entry.records
        # Most appends have one record.
        seqs = (records[0].seq,) if len(records) == 1 else {record.seq for record in records}
        for seq in seqs:
            if seq > through:
                self._note_run(entry.journal, seq, batch)
                self._needed[batch] += 1

    def _note_run(self, journal: JournalKey, seq: int, batch: Batch) -> None:
        batches = self._runs.setdefault(journal, {}).setdefault(seq, [])
        if not batches:
            self._stored_runs += 1
        batches.append(batch)

    def _record_removal(self, journal: JournalKey, removal: _Removal) -> None:
        """Store a removal if it is the last one of its journal, and release the runs that it removes."""
        previous_removal = self._removals.get(journal)
        if removal.through < 0 or (previous_removal is not None and removal[:2] < previous_removal[:2]):
            return
        if removal.offset < self._forgotten_at(journal):
            return
        self._removals[journal] = removal
        self._needed[removal.batch] += 1
        if previous_removal is not None:
            self._release_record(previous_removal.batch)
        else:
            self._needed_removals[removal.batch.partition] += 1
        runs = self._runs.get(journal)
        if runs is None:
            return
        for seq in [seq for seq in runs if seq <= removal.through]:
            self._stored_runs -= 1
            for batch in runs.pop(seq):
                self._release_record(batch)
        if not runs:
            del self._runs[journal]

    def _forgotten_at(self, journal: JournalKey) -> int:
        """Return the offset before which all records of a journal were deleted; negative if never."""
        removal = self._forgotten.get(journal)
        return -1 if removal is None else removal.offset

    def _forget_records(self, journal: JournalKey, forgotten: _Removal) -> None:
        """Apply the deletion of a journal: all of its records before that offset are unnecessary."""
        last_forgotten = self._forgotten.get(journal)
        if last_forgotten is not None and forgotten.offset < last_forgotten.offset:
            return
        self._forgotten[journal] = forgotten
        self._needed[forgotten.batch] += 1
        if last_forgotten is not None:
            self._release_record(last_forgotten.batch)
        removal = self._removals.get(journal)
        if removal is not None and removal.offset < forgotten.offset:
            del self._removals[journal]
            self._needed_removals[removal.batch.partition] -= 1
            self._release_record(removal.batch)
        runs = self._runs.pop(journal, {})
        self._stored_runs -= len(runs)
        for seq, batches in runs.items():
            for batch in batches:
                if self._offsets.get(batch, -1) < forgotten.offset:
                    self._release_record(batch)
                else:
                    self._note_run(journal, seq, batch)

    def _release_record(self, batch: Batch) -> None:
        needed = self._needed.get(batch)
        if needed is None:
            return
        self._needed[batch] = needed - 1
        if needed == 1:
            self._mark_batch_dead(batch)

    def _mark_batch_dead(self, batch: Batch) -> None:
        self._drop_batch(batch)
        self._dead.append(batch)

    def _drop_batch(self, batch: Batch) -> None:
        if self._needed.pop(batch, None) is None:
            return
        self._offsets.pop(batch, None)
        self._removal_counts.pop(batch, None)
        self._needed_by_token[batch.key.token] -= 1
        if not self._needed_by_token[batch.key.token]:
            del self._needed_by_token[batch.key.token]
        for journal in self._journals_in.pop(batch, ()):
            self._batch_counts[journal] -= 1
            if not self._batch_counts[journal]:
                self._batch_counts.pop(journal)  # a Counter deletes more slowly, in Python
