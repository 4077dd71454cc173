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
from flink_agents.runtime.journal.records import ActionRecord, RunHeader, portions, with_layout
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.suspended import Suspension

END_OF_PART = 2**62
"""The index of the record which says that a part of the run ends after the records before it."""


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
        part_seq: Sequence number of the part of the run, under which the store gets its records. Default:
            that of the run.

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
        part_seq: int | None = None,
    ) -> None:
        self._part_seq = seq if part_seq is None else part_seq
        self._has_ended = any(map(ends_part, records))
        records = [record._replace(seq=seq) for record in records]
        stored = [record for record in records if _is_kept(record)]
        suspended_records = list(suspension.records) if suspension is not None else []
        # A record of a later part may equal one of an earlier part. Then both count.
        is_later = suspension is not None and suspension.frees_key
        repeated = set[Record]() if is_later else set(suspended_records)
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
        super().__init__(store, codec, journal, seq, header, known_now, log)
        self.replayed = bool(self.all_records)
        self.has_records = bool(records) or (suspension is not None and suspension.recorded)
        was_bound = suspension is not None and suspension.bound
        # A run that only waited has nothing that state lacks: its next call is made for the first time.
        self.was_interrupted = (
            bool(since) or (bool(headers) and not was_bound) or len(self._unstored) < len(unstored)
        )
        # If the store has records, only those decide. State may be older.
        self.bound = bool(headers) or (was_bound and not records)

    @classmethod
    def continuing(cls, journal: RunJournal) -> BufferedJournal:
        """Return the journal with which a run continues that waits for the first time.

        Appends of ``journal`` in flight add to the same records.
        """
        store: ActionStateStore | None = journal._store
        buffered = cls(
            store, journal._codec, journal._journal, journal._seq, journal._header, log=journal._log
        )
        buffered.all_records = journal.appended
        # The first append has a header again if that of an append in flight is not stored yet.
        buffered.bound = journal.bound
        buffered.has_records = journal.has_records
        buffered._logged = journal._logged
        buffered._steps = journal._steps
        return buffered

    @property
    def unstored(self) -> list[int]:
        """The positions of the records that are not in the store yet."""
        return [place for place, record in enumerate(self.all_records) if record in self._unstored]

    def drop_end(self, step: str) -> None:
        """Drop the records of an end of an execution that has not ended."""
        self.all_records[:] = [
            record
            for record in self.all_records
            if record.kind is not RecordKind.ACTION or record.step != step
        ]

    def keep_end(self, step: str, record: ActionRecord) -> None:
        """Add the end of an execution without durable calls to the records in memory."""
        self._keep([Record(RecordKind.ACTION, self._seq, step, record.calls, record.pack(self._codec))])

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
        if outcomes:
            self._keep(self._outcomes(step, outcomes))
        self.keep_end(step, record)
        return _nothing()

    async def end_part(self, counts: bool) -> None:
        """Store the records that the store lacks, and a last one that marks the end of the part.

        Args:
            counts: True if the part did anything.
        """
        if self._has_store and (self._unstored or (counts and not self._has_ended)):
            self._has_ended = True
            # Code that does not know this index takes it for a record of reads, with no reads in it.
            nothing = with_layout(self._codec, [True, True, self._codec.encode([])])
            await self._append([Record(RecordKind.RUN, self._seq, "", END_OF_PART, nothing)])

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
        if self._part_seq != self._seq:
            whole = [record._replace(seq=self._part_seq) for record in whole]
        for portion in portions(whole, self.limit):
            await self._store.append(self._journal, portion)
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
