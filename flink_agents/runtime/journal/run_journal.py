"""The records of one run: read before it begins, appended while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flink_agents.api.action_state import ActionStateStore, JournalKey, Record, RecordKind
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.journal.calls import Call, StepRecords, steps_of
from flink_agents.runtime.journal.portions import portions
from flink_agents.runtime.journal.records import ActionRecord, CallRecord, RunHeader


class RunJournal:
    """See the module. Only for the thread of the agent loop.

    Args:
        store: Where records go.
        codec: Encodes them.
        journal: The journal of the run's key.
        seq: Sequence number of the run.
        header: Makes the run's header; called before its first record.
        records: What earlier attempts recorded of the run, in the order of their append.

    Attributes:
        replayed: Whether earlier attempts recorded something of the run.
        begun: Whether anything was recorded of it.
        end: A marker behind its records, once it has ended; None while the key has runs that were
            recorded before, and wherever the run recorded nothing.
    """

    def __init__(
        self,
        store: ActionStateStore,
        codec: ValueCodec,
        journal: JournalKey,
        seq: int,
        header: Callable[[], RunHeader],
        records: Iterable[Record] = (),
    ) -> None:
        self._store = store
        self._codec = codec
        self._journal = journal
        self._seq = seq
        self._header = header
        known = list(records)
        self.replayed = self.begun = self._headed = bool(known)
        self.end: bytes | None = None
        self._steps: dict[str, StepRecords] = steps_of(codec, known) if known else {}

    def step(self, step: str) -> StepRecords:
        """What was recorded of one execution of an action."""
        return self._steps.setdefault(step, StepRecords())

    async def add_intent(self, step: str, call: Call, failed: dict[int, CallRecord]) -> None:
        """Record that a call is about to be made; returns when that is durable."""
        data = call.identity.pack(self._codec)
        await self._append(
            [*self._calls(step, failed), self._record(RecordKind.INTENT, step, call.index, data)]
        )

    async def add_call(
        self, step: str, index: int, record: CallRecord, failed: dict[int, CallRecord]
    ) -> None:
        """Record how a call ended; returns when that is durable."""
        await self._append([*self._calls(step, failed), *self._calls(step, {index: record})])

    async def add_failed(self, step: str, failed: dict[int, CallRecord]) -> None:
        """Record failures that the action has taken into account."""
        if failed:
            await self._append(self._calls(step, failed))

    async def add_action(self, step: str, record: ActionRecord, failed: dict[int, CallRecord]) -> None:
        """Record the end of an execution; returns when that is durable."""
        data = record.pack(self._codec)
        await self._append(
            [*self._calls(step, failed), self._record(RecordKind.ACTION, step, record.calls, data)]
        )

    async def void(self, step: str) -> None:
        """Make all that an execution recorded void."""
        self._steps.pop(step, None)
        await self._append([self._record(RecordKind.RERUN, step, 0, b"")])

    def _calls(self, step: str, calls: dict[int, CallRecord]) -> list[Record]:
        return [
            self._record(RecordKind.CALL, step, index, record.pack(self._codec))
            for index, record in sorted(calls.items())
        ]

    def _record(self, kind: RecordKind, step: str, index: int, data: bytes) -> Record:
        return Record(kind, self._seq, step, index, data)

    async def _append(self, records: list[Record]) -> None:
        self.begun = True
        if not self._headed:
            # It goes with each append until one is stored: calls that run side by side do not wait for
            # the first append, and where that is refused, theirs may be stored all the same.
            header = self._header().pack(self._codec)
            records.insert(0, self._record(RecordKind.RUN, "", 0, header))
        for part in portions(records, self._store.max_record_bytes):
            await self._store.append(self._journal, part)
            self._headed = True
