"""The outcomes of one execution of an action, matched with what was recorded.

An *outcome* is what an action waits for: the end of a durable call, a timer that fires, a wait of the
context's own. It has a *number*: the task of the action that waits, and its place among the calls, or
the other waits, of that task. A task is named by the way to it: the action itself is ``""``, its third
task ``2``, the first task of that ``2.0``. So branches that run side by side cannot take each other's
numbers, whatever the order in which they come to their calls.

Outcomes are delivered one at a time (``runtime.execution.delivery``), and each has its place in their
*order*. A success is recorded before it is delivered. All else becomes part of the history when the action
may have taken it into account: with the next call that the action makes, or with its end. An action that
fails as a whole leaves no record of the failure, so that its next attempt, or the next attempt of the job,
calls again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import (
    FLAT_NUMBERS,
    TASK_NUMBERS,
    ActionRecord,
    CallIdentity,
    CallRecord,
    RunHeader,
    WaitRecord,
)
from flink_agents.runtime.serde.codec import ValueCodec

CANCELLED: dict[str, Any] = {"type": "", "message": "cancelled", "args": None}
"""What journals with flat numbers have as the error of a call that the action itself cancelled."""

_OF_TASK = "\x00"
"""Stands in the step of a record between the execution of the action and its task."""


class Number(NamedTuple):
    """What distinguishes an outcome from the others of its execution.

    Attributes:
        kind: ``RecordKind.CALL``, or ``RecordKind.WAIT``.
        task: The task that waits, by the way to it.
        nth: How many calls, or other waits, of that task came before it.
    """

    kind: RecordKind
    task: str
    nth: int


Outcome: TypeAlias = CallRecord | WaitRecord


def step_name(step: str, task: str) -> str:
    """The step that records of ``task`` have, in the execution ``step``."""
    return f"{step}{_OF_TASK}{task}" if task else step


def task_of(name: str) -> tuple[str, str]:
    """Execution and task of the step of a record."""
    step, _, task = name.partition(_OF_TASK)
    return step, task


@dataclass(slots=True)
class StepRecords:
    """What one execution of an action recorded.

    Attributes:
        outcomes: Calls and other waits that ended, by number.
        intents: Calls that were about to be made, by number.
        action: The end of the execution, if it came to it.
        layout: How its calls are numbered.
    """

    outcomes: dict[Number, Outcome] = field(default_factory=dict)
    intents: dict[Number, CallIdentity] = field(default_factory=dict)
    action: ActionRecord | None = None
    layout: int = TASK_NUMBERS

    def in_order(self) -> list[tuple[Number, Outcome]]:
        """The outcomes that are delivered, in their order."""
        delivered = [one for one in self.outcomes.items() if not is_cancelled(one[1])]
        return sorted(delivered, key=lambda one: one[1].order)


def is_cancelled(outcome: Outcome) -> bool:
    """Whether an outcome never comes: the action cancelled the call."""
    return isinstance(outcome, CallRecord) and outcome.error == CANCELLED


def steps_of(codec: ValueCodec, records: Iterable[Record]) -> dict[str, StepRecords]:
    """What the steps of a run recorded, of the records of that run in the order of their append."""
    steps: dict[str, StepRecords] = {}
    layout = TASK_NUMBERS
    for record in records:
        if record.kind is RecordKind.RUN and record.index > 0:
            continue  # what the run read of memory
        if record.kind is RecordKind.RUN:
            layout = RunHeader.unpack(codec, record.data).layout
            continue
        name, task = task_of(record.step)
        if record.kind is RecordKind.RERUN:
            steps.pop(name, None)
            continue
        step = steps.get(name)
        if step is None:
            step = steps[name] = StepRecords(layout=layout)
        if record.kind is RecordKind.CALL:
            number = Number(RecordKind.CALL, task, record.index)
            step.outcomes[number] = CallRecord.unpack(codec, record.data)
        elif record.kind is RecordKind.WAIT:
            number = Number(RecordKind.WAIT, task, record.index)
            step.outcomes[number] = WaitRecord.unpack(codec, record.data)
        elif record.kind is RecordKind.INTENT:
            number = Number(RecordKind.CALL, task, record.index)
            step.intents[number] = CallIdentity.unpack(codec, record.data)
        elif record.kind is RecordKind.ACTION:
            step.action = ActionRecord.unpack(codec, record.data)
    return steps


# Not frozen: that would make it three times as dear, for each call.
@dataclass(slots=True)
class Call:
    """One durable call of an execution; nobody changes it.

    Attributes:
        number: Its number.
        identity: What is called.
        recorded: How it ended when it was made before; None where it was not.
        begun: Whether it is recorded that it was about to be made.
        after: What the action had seen when it made the call, and what was not recorded then.
    """

    number: Number
    identity: CallIdentity
    recorded: CallRecord | None = None
    begun: bool = False
    after: Mapping[Number, Outcome] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The task that makes it."""
        return self.number.task

    @property
    def index(self) -> int:
        """Its place among the calls of that task."""
        return self.number.nth


class Mismatch(Exception):
    """A replay asks for something else than was recorded.

    Args:
        number: Number of the call, or of the other wait.
        recorded: What was recorded under it; None for the end of the execution.
        asked: What was asked for; None for the end of the execution.
        flat: Whether the run was recorded by a version that numbered calls without their tasks.
    """

    def __init__(
        self,
        number: Number,
        recorded: CallIdentity | str | None,
        asked: CallIdentity | str | None,
        flat: bool = False,
    ) -> None:
        super().__init__(f"call {number.nth}: {recorded} was recorded, {asked} was asked for")
        self.number = number
        self.recorded = recorded
        self.asked = asked
        self.flat = flat


_NOTHING: Mapping[Number, Outcome] = {}
_NOTHING_RECORDED = deque[tuple[Number, "Outcome"]]()
"""Nobody puts anything into it."""


class CallReplay:
    """Numbers the outcomes of one execution, and matches them with those that were recorded.

    Args:
        records: What an earlier attempt recorded.

    Attributes:
        ended: What the next outcome has as its place in the order.
        made: How many calls were made.
        unrecorded: What was delivered and is no part of the history yet, by number.
        unsure: What may be recorded or not: its append was cancelled.
        mismatch: The first mismatch. It stays, whatever the action does with the error.
    """

    __slots__ = ("_made", "_records", "ended", "made", "mismatch", "unrecorded", "unsure")

    def __init__(self, records: StepRecords) -> None:
        self._records = records
        self._made: dict[tuple[RecordKind, str], int] = {}
        # What ends now ends behind all that is recorded, which would wait for it otherwise.
        outcomes = records.outcomes
        self.ended = 1 + max(one.order for one in outcomes.values()) if outcomes else 0
        self.unrecorded: dict[Number, Outcome] = {}
        self.unsure: dict[Number, Outcome] = {}
        self.mismatch: Mismatch | None = None
        self.made = 0

    def in_order(self) -> deque[tuple[Number, Outcome]]:
        """What is recorded, in the order in which it is to be delivered."""
        return deque(self._records.in_order()) if self._records.outcomes else _NOTHING_RECORDED

    def recorded(self, number: Number) -> Outcome | None:
        """What was recorded under ``number``; None where nothing was."""
        return self._records.outcomes.get(number)

    def number(self, kind: RecordKind, task: str) -> Number:
        """The next number of ``task``."""
        index = self._made.get((kind, task), 0)
        self._made[kind, task] = index + 1
        return Number(kind, task, index)

    def make(self, task: str, identity: CallIdentity) -> Call:
        """The next call of ``task``.

        Raises:
            Mismatch: Another one was recorded under its number.
        """
        index = self._made.get((RecordKind.CALL, task), 0)
        self._made[RecordKind.CALL, task] = index + 1
        number = Number(RecordKind.CALL, task, index)
        self.made += 1
        records = self._records
        if task and records.layout == FLAT_NUMBERS and (records.outcomes or records.intents):
            raise self.refuse(Mismatch(number, None, identity, flat=True))
        recorded, intent = records.outcomes.get(number), records.intents.get(number)
        assert not isinstance(recorded, WaitRecord)
        known = recorded.call if recorded is not None else intent
        if known is not None and not known.same(identity):
            raise self.refuse(Mismatch(number, known, identity))
        after = dict(self.unrecorded) if self.unrecorded else _NOTHING
        return Call(number, identity, recorded, intent is not None, after)

    def end(self) -> int:
        """There is an outcome now; returns its place in the order."""
        self.ended += 1
        return self.ended - 1

    def seen(self, number: Number, outcome: Outcome) -> None:
        """The action has seen an outcome of which there is no record."""
        self.unrecorded[number] = outcome

    def still_unrecorded(self, after: Mapping[Number, Outcome]) -> dict[Number, Outcome]:
        """Those of ``after`` of which there is no record even now."""
        return {number: outcome for number, outcome in after.items() if number in self.unrecorded}

    def take_unsure(self) -> dict[Number, Outcome]:
        """What may be recorded or not, once."""
        unsure, self.unsure = self.unsure, {}
        return unsure

    def keep(self, recorded: Mapping[Number, Outcome]) -> None:
        """Outcomes were recorded: further attempts of the execution get the same."""
        self._records.outcomes.update(recorded)
        for number in recorded:
            self.unrecorded.pop(number, None)

    def refuse(self, mismatch: Mismatch) -> Mismatch:
        """Note a mismatch; returns the first one."""
        self.mismatch = self.mismatch or mismatch
        return self.mismatch

    def check_end(self) -> None:
        """Check that all that was recorded was asked for.

        Raises:
            Mismatch: It was not.
        """
        if self.mismatch is None:
            unread = [
                one for one in self._records.outcomes if one.nth >= self._made.get((one.kind, one.task), 0)
            ]
            if unread:
                first = min(unread, key=lambda number: self._records.outcomes[number].order)
                self.mismatch = Mismatch(first, told(self._records.outcomes[first]), None)
        if self.mismatch is not None:
            raise self.mismatch


def told(outcome: Outcome) -> CallIdentity | str:
    """What was recorded, as a mismatch shows it."""
    return outcome.call if isinstance(outcome, CallRecord) else outcome.what
