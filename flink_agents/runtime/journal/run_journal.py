"""The records of one run: read before it starts, appended while it runs, and stored when it is suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from flink_agents.api.action_state import ActionStateStore, JournalKey, Record, RecordKind
from flink_agents.runtime.journal.calls import Number, Outcome, StepRecords, step_name, steps_of
from flink_agents.runtime.journal.memory_reads import ReadLog, packed_reads
from flink_agents.runtime.journal.records import (
    END_OF_PART,
    FRAME,
    ActionRecord,
    CallIdentity,
    RunHeader,
    input_digest,
    portions,
)
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.memory import MemoryTree
from flink_agents.runtime.state.suspended import Suspension

MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of a record if there is no store."""

MAX_DEBUG_BYTES = 64 * 1024
"""The most bytes of an input, and of memory, that a run's header stores for debugging."""


class RunJournal:
    """The records of one run. Only the thread of the event loop uses it.

    If the run has waits, state takes over its records when it is suspended. Then the ends of waits, and of
    executions without durable calls, do not go to the store at once. They go there with the next record,
    which may depend on them. Without a store, all records are only kept.

    Args:
        store: Stores records; None if there is no store.
        codec: Encodes records.
        journal: The journal of the run's key; None if there is no store.
        seq: Sequence number of the run.
        header: Creates the run's header; called before its first record.
        records: The run's records in the store, of earlier attempts, in the order of their append.
        log: The run's reads of memory, which go to the store with its records; None if they do not.
        suspension: The form in which state stored the run; None if it was not suspended.
        part_seq: Sequence number of the part of the run, under which the store gets its records. Default:
            that of the run.

    Attributes:
        records: Its records, without headers. As long as it has no waits, also those whose append has not
            ended or was cancelled.
        has_waits: True once it may wait for timers and signals.
        limit: The most bytes of a record.
        replayed: True if earlier attempts recorded something of the run.
        was_interrupted: True if an earlier attempt recorded something that state lacks. So it ended within
            the run, and may have made calls whose records are missing.
        has_records: True if anything of it was recorded.
        bound: True if its header is stored, so that no other input can get its number.
        end: A position after its records, once it has ended; None while the key has runs to replay, and if
            the run recorded nothing.
    """

    # Attributes of the class, because each run creates a journal, and most never change these.
    has_waits = replayed = has_records = was_interrupted = bound = False
    end: bytes | None = None
    _binding: asyncio.Future[None] | None = None
    _logged = 0
    _unstored: dict[Record, None] | None = None
    _has_ended = False

    def __init__(
        self,
        store: ActionStateStore | None,
        codec: ValueCodec,
        journal: JournalKey | None,
        seq: int,
        header: Callable[[], RunHeader],
        records: Sequence[Record] = (),
        log: ReadLog | None = None,
        suspension: Suspension | None = None,
        part_seq: int | None = None,
    ) -> None:
        self._has_store = store is not None
        self._store: ActionStateStore = store  # pyright: ignore[reportAttributeAccessIssue]
        self.limit = MOST_BYTES if store is None else store.max_record_bytes
        self._codec = codec
        self._journal: JournalKey = journal  # pyright: ignore[reportAttributeAccessIssue]
        self._seq = seq
        self._part_seq = seq if part_seq is None else part_seq
        self._header = header
        self._log = log
        self._steps: dict[str, StepRecords] = {}
        self.records: list[Record] = []
        if records or suspension is not None:
            self._restore(records, suspension)

    def _restore(self, recorded: Sequence[Record], suspension: Suspension | None) -> None:
        """Continue with the records of earlier attempts, in the store and in state."""
        self._has_ended = any(map(ends_part, recorded))
        # The store has them under the number of the part.
        recorded = [record._replace(seq=self._seq) for record in recorded]
        headers = [record for record in recorded if record.kind is RecordKind.RUN and record.index == 0]
        stored = [record for record in recorded if _is_kept(record)]
        suspended: list[Record] = []
        unstored: list[Record] = []
        was_bound = is_later = False
        if suspension is not None:
            suspended = list(suspension.records)
            unstored = [suspended[place] for place in suspension.unstored]
            was_bound = suspension.bound
            is_later = suspension.frees_key
        # A record of a later part may equal one of an earlier part. Then both count.
        repeated = set[Record]() if is_later else set(suspended)
        since = [record for record in stored if record not in repeated]
        self.records = suspended + since
        # A crash may have come between the append and the checkpoint: then the store has some of them.
        stored_records = set(stored)
        self._unstored = {record: None for record in unstored if record not in stored_records}
        self._steps = steps_of(self._codec, self.records)
        self.replayed = bool(self.records)
        self.has_records = bool(recorded) or (suspension is not None and suspension.recorded)
        # A run that only waited has nothing that state lacks: its next call is made for the first time.
        self.was_interrupted = (
            bool(since) or (bool(headers) and not was_bound) or len(self._unstored) < len(unstored)
        )
        # If the store has records, only those decide: state may be older.
        self.bound = bool(headers) if recorded else was_bound

    @property
    def steps(self) -> Iterable[str]:
        """The paths of the executions with records."""
        return self._steps.keys()

    @property
    def is_blank(self) -> bool:
        """True as long as nothing of the run is recorded, and it has not waited."""
        return not (self.has_records or self.has_waits or self.replayed)

    @property
    def unstored(self) -> list[int]:
        """The positions of the records that are not in the store yet."""
        unstored = self._unstored or ()
        return [place for place, record in enumerate(self.records) if record in unstored]

    def step(self, step: str) -> StepRecords:
        """Return the records of the execution with path ``step``; empty ones if there are none."""
        records = self._steps.get(step)
        if records is None:
            records = self._steps[step] = StepRecords()
        return records

    def mark_end(self) -> None:
        """Note the position in the store after the records of the run, which has ended."""
        self.end = self._store.recovery_marker(self._journal)

    # -- records that the store gets with the next one --------------------------------

    def drop_end(self, step: str) -> None:
        """Drop the record of the end of an execution from memory: the execution has not ended after all."""
        self.records = [
            record for record in self.records if record.kind is not RecordKind.ACTION or record.step != step
        ]

    def add_records(self, records: list[Record]) -> None:
        """Add records to those in memory. The store gets them with the next record."""
        self.records += records
        if self._has_store:
            self._unstored = self._unstored or {}
            self._unstored.update(dict.fromkeys(records))

    def keep_outcomes(self, step: str, outcomes: Mapping[Number, Outcome]) -> None:
        """Add the outcomes of waits to the records in memory, without an append."""
        self.add_records(self._outcomes(step, outcomes))

    def keep_reads(self) -> None:
        """Add the run's reads of memory so far to the records in memory."""
        if self._log is not None:
            self.add_records(self._new_reads(self._log))
            self._logged = len(self._log.reads)

    # -- appends ----------------------------------------------------------------------

    async def bind(self) -> None:
        """Store the header of the run, which names its input; return when that is durable.

        Concurrent calls share one append.
        """
        if self.bound:
            return
        if self._binding is None:
            self._binding = asyncio.get_running_loop().create_future()
            try:
                await self._append([])
            finally:
                binding = self._binding
                self._binding = None
                if not binding.done():
                    binding.set_result(None)
        else:
            await asyncio.shield(self._binding)
            # The task that made that append may have been cancelled.
            await self.bind()

    async def add_intent(
        self, step: str, number: Number, identity: CallIdentity, outcomes: Mapping[Number, Outcome]
    ) -> None:
        """Record that a call is about to be made; return when that is durable.

        Args:
            step: The path of the execution.
            number: The number of the call.
            identity: Function and arguments of the call.
            outcomes: Outcomes that the execution has seen and that are to be recorded first.
        """
        data = identity.pack(self._codec)
        intent = Record(RecordKind.INTENT, self._seq, step_name(step, number.task), number.nth, data)
        await self._append([*self._outcomes(step, outcomes), intent])

    def add_outcomes(self, step: str, outcomes: Mapping[Number, Outcome]) -> Awaitable[None]:
        """Record at least one outcome; returns an awaitable that ends when that is durable."""
        return self._append(self._outcomes(step, outcomes))

    def add_action(
        self, step: str, record: ActionRecord, outcomes: Mapping[Number, Outcome]
    ) -> Awaitable[None]:
        """Record the end of an execution; returns an awaitable that ends when that is durable."""
        records = self._outcomes(step, outcomes) if outcomes else []
        records.append(self.end_of(step, record))
        # No later record can depend on a call that it did not make, so the next one may take its end along.
        if self.has_waits and not record.calls:
            self.add_records(records)
            return _nothing()
        return self._append(records)

    async def void(self, step: str) -> None:
        """Make all records of an execution void, to execute it again; return when that is durable."""
        self._steps[step] = StepRecords()
        # Equal records count once in state, so each has its own index.
        times = sum(record.kind is RecordKind.RERUN and record.step == step for record in self.records)
        await self._append([Record(RecordKind.RERUN, self._seq, step, times, b"")])

    async def end_part(self, counts: bool) -> None:
        """Store the records that the store lacks, and a last one that marks the end of the part.

        Args:
            counts: True if the part did anything, so that it needs the last record.
        """
        if self._has_store and (self._unstored or (counts and not self._has_ended)):
            self._has_ended = True
            await self._append([Record(RecordKind.RUN, self._seq, "", END_OF_PART, b"")])

    def end_of(self, step: str, record: ActionRecord) -> Record:
        """Return the record of the end of an execution.

        Raises:
            UnserializableValueError: An event has a value that cannot be recorded.
        """
        return Record(RecordKind.ACTION, self._seq, step, record.calls, record.pack(self._codec))

    def _outcomes(self, step: str, outcomes: Mapping[Number, Outcome]) -> list[Record]:
        """Return the records of outcomes of an execution, in the order of their delivery."""
        ordered_outcomes = outcomes.items() if len(outcomes) < 2 else sorted(outcomes.items(), key=_place)
        records: list[Record] = []
        for (kind, task, nth), outcome in ordered_outcomes:
            name = step_name(step, task) if task else step
            records.append(Record(kind, self._seq, name, nth, outcome.pack(self._codec)))
        return records

    def _append(self, records: list[Record]) -> Awaitable[None]:
        """Append records; returns an awaitable that ends when they are durable."""
        if self.has_waits:
            return self._append_all(records, records)
        # At once: if the append is cancelled, the store may have them, and then state has to have them, too.
        self.records += records
        # The short path: no header, no reads, one record.
        if self.bound and self._log is None and len(records) == 1:
            return self._store.append(self._journal, records)
        return self._append_all(records, ())

    async def _append_all(self, records: Sequence[Record], new_records: Sequence[Record]) -> None:
        """Append records, after the header of the run, its reads of memory, and what it has kept so far.

        Args:
            records: The records.
            new_records: Those of them that the run keeps when they are stored.
        """
        if not self._has_store:
            # Only the end of an execution with calls from before a suspension comes here without a store.
            self.records += new_records
            return
        self.has_records = True
        # They go with each append until one is stored: concurrent appends do not wait for each other.
        reads: list[Record] = []
        logged = 0
        if self._log is not None:
            reads = self._new_reads(self._log)
            logged = len(self._log.reads)
        # These records may depend on the unstored ones, so those go first.
        unstored = list(self._unstored or ())
        appended = [*reads, *unstored, *records]
        if not self.bound:
            # Like the reads, it goes with each append until one is stored. If the first append is rejected,
            # the others may still be stored.
            header = self._header().pack(self._codec)
            appended.insert(0, Record(RecordKind.RUN, self._seq, "", 0, header))
        if self._part_seq != self._seq:
            appended = [record._replace(seq=self._part_seq) for record in appended]
        # Without a function for each record: the first record of each run comes here.
        size = sum(map(len, map(_data_of, appended))) + sum(map(len, map(_step_of, appended)))
        fits = size + FRAME * len(appended) <= self.limit
        for portion in (appended,) if fits else portions(appended, self.limit):
            await self._store.append(self._journal, portion)
            # The first portion has the header. It is stored now, even if a later portion fails.
            self.bound = True
        # Only now, because all of this is recorded only if the append succeeded. Concurrent appends may have
        # logged more already.
        if reads or new_records:
            self._logged = max(self._logged, logged)
            self.records += [*reads, *filter(_is_kept, new_records)]
        if self._unstored:
            for record in unstored:
                self._unstored.pop(record, None)

    def _new_reads(self, log: ReadLog) -> list[Record]:
        """Return the records of the reads of memory that are not stored yet."""
        reads = log.reads[self._logged :]
        if not reads:
            return []
        return list(packed_reads(self._codec, self._seq, reads, self._logged, self.limit))


_data_of = attrgetter("data")
_step_of = attrgetter("step")


def _place(outcome: tuple[Number, Outcome]) -> int:
    return outcome[1].order


def ends_part(record: Record) -> bool:
    """Return True if a record says that a part of the run ends after the records before it."""
    return record.kind is RecordKind.RUN and record.index == END_OF_PART


def _is_kept(record: Record) -> bool:
    """Return True if state takes over a record when the run is suspended."""
    return record.kind is not RecordKind.RUN or 0 < record.index < END_OF_PART


async def _nothing() -> None:
    """Return at once: no append is needed."""


def header_of(
    plan: str, started_at: int, memory: MemoryTree, packed: bytes, begin: int, is_part: bool = False
) -> RunHeader:
    """Return the header of a run.

    Args:
        plan: Fingerprint of the plan.
        started_at: Time at which the run started, in milliseconds.
        memory: Short-term memory before the run.
        packed: The bytes of its input.
        begin: The first sequence number of the key's generation.
        is_part: True for a later part of a run, which has no input.
    """
    nodes = memory.nodes()
    return RunHeader(
        input_digest(packed),
        started_at,
        plan,
        packed if len(packed) <= MAX_DEBUG_BYTES and not is_part else None,
        nodes if sum(map(len, nodes.values())) <= MAX_DEBUG_BYTES else None,
        begin=begin,
    )
