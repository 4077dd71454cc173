"""The durable calls of one execution of an action, matched with what was recorded.

A call gets its number when it is made, so that calls that run side by side have the same numbers
on replay. A call whose number has a record must be the call that was recorded.

Successes are recorded at once. A failure becomes part of the history when the action has taken it
into account: with the next call that it makes, or with its end. An action that fails as a whole
leaves no record of the failure, so that its next attempt, or the next attempt of the job, calls
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.journal.records import ActionRecord, CallIdentity, CallRecord

TURN_SECONDS = 1.0
"""How long a replayed call waits for the next one that had ended before it."""

TURNS = 10
"""How often the loop turns between the outcomes of two replayed calls."""


@dataclass(slots=True)
class StepRecords:
    """What one execution of an action recorded.

    Attributes:
        calls: Calls that ended, by number.
        intents: Calls that were about to be made, by number.
        action: The end of the execution, if it came to it.
    """

    calls: dict[int, CallRecord] = field(default_factory=dict)
    intents: dict[int, CallIdentity] = field(default_factory=dict)
    action: ActionRecord | None = None


def steps_of(codec: ValueCodec, records: Iterable[Record]) -> dict[str, StepRecords]:
    """What the steps of a run recorded, of the records of that run in the order of their append."""
    steps: dict[str, StepRecords] = {}
    for record in records:
        if record.kind is RecordKind.RUN:
            continue
        if record.kind is RecordKind.RERUN:
            steps.pop(record.step, None)
            continue
        step = steps.setdefault(record.step, StepRecords())
        if record.kind is RecordKind.CALL:
            step.calls[record.index] = CallRecord.unpack(codec, record.data)
        elif record.kind is RecordKind.INTENT:
            step.intents[record.index] = CallIdentity.unpack(codec, record.data)
        elif record.kind is RecordKind.ACTION:
            step.action = ActionRecord.unpack(codec, record.data)
    return steps


@dataclass(slots=True)
class Call:
    """One durable call of an execution.

    Attributes:
        index: Its number.
        identity: What is called.
        recorded: How it ended when it was made before; None where it was not.
        begun: Whether it is recorded that it was about to be made.
        after: Numbers of the calls whose failures were known when this one was made.
    """

    index: int
    identity: CallIdentity
    recorded: CallRecord | None = None
    begun: bool = False
    after: frozenset[int] = frozenset()


class Mismatch(Exception):
    """A replay asks for something else than was recorded.

    Args:
        index: Number of the call.
        recorded: What was recorded under it; None for the end of the execution.
        asked: What was asked for; None for the end of the execution.
    """

    def __init__(self, index: int, recorded: CallIdentity | None, asked: CallIdentity | None) -> None:
        super().__init__(f"call {index}: {recorded} was recorded, {asked} was asked for")
        self.index = index
        self.recorded = recorded
        self.asked = asked


class StepCalls:
    """See the module.

    Args:
        records: What an earlier attempt recorded.

    Attributes:
        made: How many calls were made.
        ended: What the next call to end has as its place in the order of ends.
        failed: Records of failures that are no part of the history yet, by number.
        mismatch: The first mismatch. It stays, whatever the action does with the error.
    """

    __slots__ = ("_records", "_replayed", "_waiting", "ended", "failed", "made", "mismatch")

    def __init__(self, records: StepRecords) -> None:
        self._records = records
        self._replayed: set[int] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self.made = 0
        # What ends now ends behind all that is recorded, which would wait for it otherwise.
        self.ended = 1 + max(call.order for call in records.calls.values()) if records.calls else 0
        self.failed: dict[int, CallRecord] = {}
        self.mismatch: Mismatch | None = None

    def make(self, identity: CallIdentity) -> Call:
        """The next call.

        Raises:
            Mismatch: Another one was recorded under its number.
        """
        index = self.made
        self.made += 1
        recorded, intent = self._records.calls.get(index), self._records.intents.get(index)
        known = recorded.call if recorded is not None else intent
        if known is not None and not known.same(identity):
            self.mismatch = self.mismatch or Mismatch(index, known, identity)
            raise self.mismatch
        return Call(index, identity, recorded, intent is not None, frozenset(self.failed))

    def end(self) -> int:
        """A call has ended now; returns its place in the order of ends."""
        self.ended += 1
        return self.ended - 1

    async def turn(self, record: CallRecord) -> None:
        """Wait until all recorded calls that had ended before this one have given their outcome.

        An action that looks at which of its calls ends first sees the same one on replay. One that
        does not make those calls any more is not kept waiting for ever: it is a mismatch.
        """
        while any(
            known.order < record.order and known.order not in self._replayed
            for known in self._records.calls.values()
        ):
            another: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(another)
            ended, _ = await asyncio.wait({another}, timeout=TURN_SECONDS)
            if not ended:
                break
        else:
            if self._replayed:
                # What waits for the call before this one is to see its end first.
                for _ in range(TURNS):
                    await asyncio.sleep(0)
        self.skip(record)

    def skip(self, record: CallRecord) -> None:
        """Let nobody wait for the outcome of a call."""
        self._replayed.add(record.order)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def failed_among(self, among: frozenset[int] | None = None) -> dict[int, CallRecord]:
        """Failures to be recorded, since what happens next depends on them: those of ``among``, or all."""
        if not self.failed:
            return {}
        return {index: record for index, record in self.failed.items() if among is None or index in among}

    def keep(self, recorded: dict[int, CallRecord]) -> None:
        """Calls were recorded: further attempts of the execution do not make them again."""
        self._records.calls.update(recorded)
        for index in recorded:
            self.failed.pop(index, None)

    def check_end(self) -> None:
        """See that all that was recorded was asked for.

        Raises:
            Mismatch: It was not.
        """
        if self.mismatch is None:
            unread = [index for index in self._records.calls if index >= self.made]
            if unread:
                index = min(unread)
                self.mismatch = Mismatch(index, self._records.calls[index].call, None)
        if self.mismatch is not None:
            raise self.mismatch
