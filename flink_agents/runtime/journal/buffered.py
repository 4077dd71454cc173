"""The records of a run that may be suspended: kept in memory, and in the store if there is one.

State takes over all records when the run is suspended. Records of waits, and of actions without durable
calls, do not go to the store at once. They go there with the next record, which may depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from typing_extensions import override

from flink_agents.api.action_state import ActionStateStore, JournalKey, Record, RecordKind
from flink_agents.runtime.journal.calls import Number, Outcome, StepRecords
from flink_agents.runtime.journal.memory.reads import ReadLog
from flink_agents.runtime.journal.portions import portions
from flink_agents.runtime.journal.records import ActionRecord, RunHeader
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.suspended import Suspension

END_OF_PART = 2**62
"""The index of the record which says that a part of the run ends after the records before it."""

MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of a record if there is no store."""


class BufferedJournal(RunJournal):
    """The records of one run. Only the thread of the event loop uses it.

    Args:
        store: Stores records; None if there is no store.
        codec: Encodes them.
        journal: The journal of the run's key; None if there is no store.
        seq: Sequence number of the run.
        header: Creates the run's header; called before its first record.
        records: The records of the run in the store.
        suspension: The form in which state stored the run; None if it was not suspended.
        log: The reads of memory of the run; None if they are not recorded.

    Attributes:
        all_records: All records of the run, in order.
    """

    def __init__(
        self,
        store: ActionStateStore | None,
        codec: ValueCodec,
        journal: JournalKey | None,
        seq: int,
        header: Callable[[], RunHeader],
        records: Sequence[Record] = (),
        suspension: Suspension | None = None,
        log: ReadLog | None = None,
    ) -> None:
        records = [record._replace(seq=seq) for record in records]
        stored = [record for record in records if _is_kept(record)]
        suspended_records = list(suspension.records) if suspension is not None else []
        repeated = self._repeated(suspended_records)
        since = [record for record in stored if record not in repeated]
        self.all_records = suspended_records + since
        stored_records = set(stored)
        unstored = (
            [suspended_records[place] for place in suspension.unstored] if suspension is not None else []
        )
        # A crash may have come between the append and the checkpoint: then the store has some of them.
        self._unstored = {record: None for record in unstored if record not in stored_records}
        # A journal without a store never appends, and so has no use for these two.
        headers = [record for record in records if record.kind is RecordKind.RUN and record.index == 0]
        known_now = [*headers, *self.all_records]
        super().__init__(store, codec, journal, seq, header, known_now, log)  # pyright: ignore[reportArgumentType]
        self.replayed = bool(self.all_records)
        self.has_records = bool(records) or (suspension is not None and suspension.recorded)
        was_bound = suspension is not None and suspension.bound
        # A run that only waited has nothing that state lacks: its next call is made for the first time.
        self.was_interrupted = (
            bool(since) or (bool(headers) and not was_bound) or len(self._unstored) < len(unstored)
        )
        # If the store has records, only those decide. State may be older.
        self.bound = bool(headers) or (was_bound and not records)

    @staticmethod
    @override
    def _limit_of(store: ActionStateStore | None) -> int:
        return MOST_BYTES if store is None else store.max_record_bytes

    @property
    def unstored(self) -> list[int]:
        """The positions of the records that are not in the store yet."""
        return [place for place, record in enumerate(self.all_records) if record in self._unstored]

    def _repeated(self, suspended_records: Sequence[Record]) -> set[Record]:
        """Return the records from before the suspension that the store may have as well."""
        return set(suspended_records)

    def _addressed(self, records: list[Record]) -> list[Record]:
        """Return records in the form that the store gets."""
        return records

    def keep_outcomes(self, step: str, outcomes: Mapping[Number, Outcome]) -> None:
        """Add the outcomes of waits to the records in memory. The store gets them with the next record."""
        self._keep(self._outcomes(step, outcomes))

    def keep_reads(self) -> None:
        """Add the run's reads of memory so far to the records in memory."""
        if self._log is not None and len(self._log.reads) > self._logged:
            reads = self._log.reads[self._logged :]
            self._keep(list(self._read(reads)))
            self._logged = len(self._log.reads)

    def add_action(
        self, step: str, record: ActionRecord, outcomes: Mapping[Number, Outcome]
    ) -> Coroutine[Any, Any, None]:
        """Record the end of an execution; in memory only if it made no durable call."""
        # It made durable calls, so its end must be stored, too.
        if record.calls:
            return super().add_action(step, record, outcomes)
        ends = self._outcomes(step, outcomes) if outcomes else []
        self._keep(
            [*ends, Record(RecordKind.ACTION, self._seq, step, record.calls, record.pack(self._codec))]
        )
        return _nothing()

    @override
    async def void(self, step: str) -> None:
        """Make the records of an execution void, by one more record."""
        self._steps[step] = StepRecords()
        times = sum(record.kind is RecordKind.RERUN and record.step == step for record in self.all_records)
        await self._append([Record(RecordKind.RERUN, self._seq, step, times, b"")])

    def _keep(self, records: list[Record]) -> None:
        self.all_records += records
        if self._has_store:
            self._unstored.update(dict.fromkeys(records))

    @property
    def _has_store(self) -> bool:
        return self._store is not None  # pyright: ignore[reportUnnecessaryComparison]

    async def _append(self, records: list[Record]) -> None:
        new_records = list(records)
        if not self._has_store:
            # Only the end of an execution with calls from before a suspension comes here without a store.
            self.all_records += new_records
            return
        # Records from now on may depend on the unstored ones, so those go first.
        unstored_records = list(self._unstored)
        self.has_records = True
        logged = 0
        reads = list[Record]()
        if self._log is not None and len(self._log.reads) > self._logged:
            logged = len(self._log.reads)
            reads = list(self._read(self._log.reads[self._logged : logged]))
        whole = [*reads, *unstored_records, *new_records]
        if not self.bound:
            header = self._header().pack(self._codec)
            whole.insert(0, Record(RecordKind.RUN, self._seq, "", 0, header))
        for part in portions(self._addressed(whole), self.limit):
            await self._store.append(self._journal, part)
            # The first portion has the header. It is stored now, even if a later portion fails.
            self.bound = True
        # Only now, because the reads are recorded only if the append succeeded.
        self._logged = max(self._logged, logged)
        self.all_records += [*reads, *filter(_is_kept, new_records)]
        for record in unstored_records:
            self._unstored.pop(record, None)


def ends_part(record: Record) -> bool:
    """Return True if a record says that a part of the run ends after the records before it."""
    return record.kind is RecordKind.RUN and record.index == END_OF_PART


def _is_kept(record: Record) -> bool:
    """Return True if state takes over a record when the run is suspended."""
    return record.kind is not RecordKind.RUN or 0 < record.index < END_OF_PART


async def _nothing() -> None:
    """Return at once: no append is needed."""
