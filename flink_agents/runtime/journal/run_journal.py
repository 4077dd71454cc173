"""The records of one run: read before it starts, appended while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import attrgetter
from typing import Any

from flink_agents.api.action_state import ActionStateStore, JournalKey, Record, RecordKind
from flink_agents.runtime.journal.calls import Number, Outcome, StepRecords, step_name, steps_of
from flink_agents.runtime.journal.memory.reads import Read, ReadLog, packed_reads
from flink_agents.runtime.journal.records import (
    FRAME,
    TASK_NUMBERS,
    ActionRecord,
    CallIdentity,
    RunHeader,
    input_digest,
    portions,
)
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.memory import MemoryTree

MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of a record if there is no store."""

MAX_DEBUG_BYTES = 64 * 1024
"""The most bytes of an input, and of memory, that a run's header stores for debugging."""


class RunJournal:
    """The records of one run. Only the thread of the event loop uses it.

    Args:
        store: Stores records; None if there is no store.
        codec: Encodes them.
        journal: The journal of the run's key; None if there is no store.
        seq: Sequence number of the run.
        header: Creates the run's header; called before its first record.
        records: The run's records of earlier attempts, in the order of their append.
        log: The reads of memory of the run; None if they are not recorded.

    Attributes:
        appended: Its records, without headers, also those whose append has not ended or was cancelled.
        limit: The most bytes of a record.
        replayed: True if earlier attempts recorded something of the run.
        was_interrupted: True if an earlier attempt recorded something that state lacks. So it ended within
            the run, and may have made calls whose records are missing.
        has_records: True if anything of it was recorded.
        bound: True if its header is stored, so that no other input can get its number.
        end: A position after its records, once it has ended; None while the key has runs to replay, and if
            the run recorded nothing.
    """

    def __init__(
        self,
        store: ActionStateStore | None,
        codec: ValueCodec,
        journal: JournalKey | None,
        seq: int,
        header: Callable[[], RunHeader],
        records: Iterable[Record] = (),
        log: ReadLog | None = None,
    ) -> None:
        self._store: ActionStateStore = store  # pyright: ignore[reportAttributeAccessIssue]
        self.limit = MOST_BYTES if store is None else store.max_record_bytes
        self._codec = codec
        self._journal: JournalKey = journal  # pyright: ignore[reportAttributeAccessIssue]
        self._seq = seq
        self._header = header
        recorded = list(records)
        self.replayed = self.has_records = self.was_interrupted = bool(recorded)
        # If an earlier version numbered calls otherwise, its header does not hold for new records.
        self.bound = bool(recorded) and layout_of(codec, recorded) == TASK_NUMBERS
        self.end: bytes | None = None
        self._binding: asyncio.Future[None] | None = None
        self._log = log
        self._logged = 0
        self._steps: dict[str, StepRecords] = steps_of(codec, recorded) if recorded else {}
        self.appended: list[Record] = []

    @property
    def steps(self) -> Iterable[str]:
        """The paths of the executions with records."""
        return self._steps.keys()

    def step(self, step: str) -> StepRecords:
        """Return the records of one execution of an action."""
        records = self._steps.get(step)
        if records is None:
            records = self._steps[step] = StepRecords()
        return records

    def mark_end(self) -> None:
        """Store the position after the records of the run, which has ended."""
        self.end = self._store.recovery_marker(self._journal)

    async def bind(self) -> None:
        """Record which input the run belongs to; returns when that is durable.

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
        """Record that a call is about to be made; returns when that is durable."""
        data = identity.pack(self._codec)
        intent = Record(RecordKind.INTENT, self._seq, step_name(step, number.task), number.nth, data)
        await self._append([*self._outcomes(step, outcomes), intent])

    def add_outcomes(self, step: str, outcomes: Mapping[Number, Outcome]) -> Coroutine[Any, Any, None]:
        """Record at least one outcome of a call or wait; returns when it is durable."""
        return self._append(self._outcomes(step, outcomes))

    def add_action(
        self, step: str, record: ActionRecord, outcomes: Mapping[Number, Outcome]
    ) -> Coroutine[Any, Any, None]:
        """Record the end of an execution; returns when that is durable."""
        data = record.pack(self._codec)
        records = self._outcomes(step, outcomes) if outcomes else []
        records.append(Record(RecordKind.ACTION, self._seq, step, record.calls, data))
        return self._append(records)

    async def void(self, step: str) -> None:
        """Make the records of an execution void."""
        # New records of the execution are numbered as this version does.
        self._steps[step] = StepRecords()
        await self._append([Record(RecordKind.RERUN, self._seq, step, 0, b"")])

    def _outcomes(self, step: str, outcomes: Mapping[Number, Outcome]) -> list[Record]:
        ordered_outcomes = outcomes.items() if len(outcomes) < 2 else sorted(outcomes.items(), key=_place)
        records: list[Record] = []
        for (kind, task, nth), outcome in ordered_outcomes:
            name = step_name(step, task) if task else step
            records.append(Record(kind, self._seq, name, nth, outcome.pack(self._codec)))
        return records

    def _append(self, records: list[Record]) -> Coroutine[Any, Any, None]:
        # If the run waits later, state gets these records as well.
        self.appended += records
        # The short path: no header, no reads, one record.
        if self.bound and self._log is None and len(records) == 1:
            return self._store.append(self._journal, records)
        return self._append_with_header(records)

    async def _append_with_header(self, records: list[Record]) -> None:
        """Append records, after the header of the run and its reads of memory."""
        self.has_records = True
        logged = 0
        if self._log is not None and len(self._log.reads) > self._logged:
            # Like the header, they go with each append until one is stored.
            logged = len(self._log.reads)
            reads = list(self._read(self._log.reads[self._logged : logged]))
            self.appended += reads
            records[:0] = reads
        if not self.bound:
            # It goes with each append until one is stored. Concurrent calls do not wait for the first
            # append, and if that is rejected, theirs may still be stored.
            header = self._header().pack(self._codec)
            records.insert(0, Record(RecordKind.RUN, self._seq, "", 0, header))
        size = sum(map(len, map(_data_of, records))) + sum(map(len, map(_step_of, records)))
        for part in (
            (records,) if size + FRAME * len(records) <= self.limit else portions(records, self.limit)
        ):
            await self._store.append(self._journal, part)
            self.bound = True
        # Concurrent appends may have logged more already.
        self._logged = max(self._logged, logged)

    def _read(self, reads: list[Read]) -> Iterable[Record]:
        return packed_reads(self._codec, self._seq, reads, self._logged, self.limit)


_data_of = attrgetter("data")
_step_of = attrgetter("step")


def _place(outcome: tuple[Number, Outcome]) -> int:
    return outcome[1].order


def layout_of(codec: ValueCodec, records: list[Record]) -> int:
    """Return the layout of the numbers of calls that are recorded after ``records`` of a run."""
    headers = [record for record in records if record.kind is RecordKind.RUN and record.index == 0]
    return RunHeader.unpack(codec, headers[-1].data).layout if headers else TASK_NUMBERS


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
