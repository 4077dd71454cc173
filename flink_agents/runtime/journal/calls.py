"""The outcomes of one execution of an action, matched with its records.

An *outcome* ends a wait of an action: the end of a durable call, a timer that fires, a wait of the context.
It has a *number*: the task of the action that waits, and its place among the calls, or the other waits, of
that task. The name of a task is its path: the action itself is ``""``, its third task ``2``, the first task
of that ``2.0``. So concurrent branches cannot take each other's numbers, in whatever order they come to their
calls.

Outcomes are delivered one at a time (``runtime.execution.calls``), and each has its place in their
*order*. A success is recorded before it is delivered. Other outcomes are recorded when the action may have
reacted to them: with its next call, or with its end. If an action fails, its failure is not recorded. So its
next attempt, or the next attempt of the job, makes the call again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import ActionRecord, CallIdentity, CallRecord, WaitRecord
from flink_agents.runtime.serde.codec import ValueCodec

_OF_TASK = "\x00"
"""Separates the path of the execution from the task, in the ``step`` of a record."""

_ATTEMPT = "!"
"""Ends the name of the task under which the attempts of a sub-agent's action are numbered."""


class Number(NamedTuple):
    """The number of an outcome within its execution.

    Attributes:
        kind: ``RecordKind.CALL``, or ``RecordKind.WAIT``.
        task: The path of the task that waits.
        nth: The number of earlier calls, or other waits, of that task.
    """

    kind: RecordKind
    task: str
    nth: int


Outcome: TypeAlias = CallRecord | WaitRecord
"""The end of a durable call, or of another wait of an action."""


def step_name(step: str, task: str) -> str:
    """Return the ``step`` of the records of a task in an execution.

    Args:
        step: The path of the execution.
        task: The path of the task; empty for the action's first task.
    """
    return f"{step}{_OF_TASK}{task}" if task else step


def sub_agent_path(task: str, call: int, place: int) -> str:
    """Return the path of an action of a sub-agent: that of the task which executes it.

    Args:
        task: The task that calls the sub-agent.
        call: The number of earlier calls of sub-agents from that task.
        place: The number of actions of the sub-agent before it.
    """
    return f"{task}>{call}.{place}"


def is_of_sub_agent(task: str) -> bool:
    """Return True if a task belongs to a sub-agent."""
    return ">" in task


def action_path(task: str) -> str:
    """Return the path of the sub-agent's action that a task belongs to; empty for the job's agent."""
    outer, is_inner, inner = task.rpartition(">")
    return f"{outer}>{'.'.join(inner.split('.')[:2])}" if is_inner else ""


def attempts_task(path: str) -> str:
    """Return the task under which the attempts of the sub-agent's action with that path are numbered."""
    return path + _ATTEMPT


def is_inside(task: str, path: str) -> bool:
    """Return True if a task belongs to the sub-agent's action with a path; an empty path has all tasks."""
    return not path or task == path or task.startswith((path + ".", path + ">"))


def task_of(name: str) -> tuple[str, str]:
    """Return the paths of execution and task from the ``step`` of a record; see :func:`step_name`."""
    step, _, task = name.partition(_OF_TASK)
    return step, task


@dataclass(slots=True)
class StepRecords:
    """The records of one execution of an action.

    Attributes:
        outcomes: Calls and other waits that ended, by number.
        intents: Calls that were about to be made, by number.
        action: The end of the execution, if it is recorded.
    """

    outcomes: dict[Number, Outcome] = field(default_factory=dict)
    intents: dict[Number, CallIdentity] = field(default_factory=dict)
    action: ActionRecord | None = None

    def in_order(self) -> list[tuple[Number, Outcome]]:
        """Return the outcomes with their numbers, in the order in which they were delivered."""
        return sorted(self.outcomes.items(), key=lambda item: item[1].order)

    def calls_made(self) -> list[tuple[str, Number, CallRecord]]:
        """Return function, number and outcome of the calls, in the order of their delivery."""
        return [
            (outcome.call.function, number, outcome)
            for number, outcome in self.in_order()
            if isinstance(outcome, CallRecord)
        ]


def steps_of(codec: ValueCodec, records: Iterable[Record]) -> dict[str, StepRecords]:
    """Return the records of each execution of a run, from the run's records in the order of their append."""
    steps: dict[str, StepRecords] = {}
    for record in records:
        if record.kind is RecordKind.RUN:
            continue  # its header, and its reads of memory
        name, task = task_of(record.step)
        if record.kind is RecordKind.RERUN:
            # All earlier records of that execution are void.
            steps.pop(name, None)
            continue
        step = steps.get(name)
        if step is None:
            step = steps[name] = StepRecords()
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


class Mismatch(Exception):
    """A replay makes another call, or waits for something else, than was recorded.

    Args:
        number: Number of the call, or of the other wait.
        recorded: The recorded call or wait; None for the end of the execution.
        requested: The call or wait that the code makes; None for the end of the execution.
    """

    def __init__(
        self,
        number: Number,
        recorded: CallIdentity | str | None,
        requested: CallIdentity | str | None,
    ) -> None:
        super().__init__(f"call {number.nth}: {recorded} was recorded, {requested} was requested")
        self.number = number
        self.recorded = recorded
        self.requested = requested


class ExecutionOutcomes:
    """Numbers the outcomes of one execution, and matches them with recorded ones.

    Args:
        records: The records of an earlier attempt.

    Attributes:
        ended: The place of the next outcome in the order.
        call_count: The number of calls so far.
        attempts: The paths of actions of sub-agents whose attempts have not ended; empty for most.
        unrecorded: Outcomes that were delivered and are not recorded yet, by number.
        unsure: Outcomes that may or may not be recorded, because their append was cancelled.
        had_outcomes: True if an earlier attempt, of the action or of a sub-agent's, recorded some.
        mismatch: The first mismatch. It stays, whatever the action does with the error.
    """

    # Attributes of the class, because most executions never change these.
    ended = call_count = 0
    unrecorded: dict[Number, Outcome] = cast("Any", MappingProxyType({}))
    unsure: dict[Number, Outcome] = cast("Any", MappingProxyType({}))
    mismatch: Mismatch | None = None
    attempts: tuple[str, ...] = ()
    had_outcomes = False

    def __init__(self, records: StepRecords) -> None:
        self._records = records
        self._counts: dict[tuple[RecordKind, str], int] = {}
        if outcomes := records.outcomes:
            self.had_outcomes = True
            # New outcomes come after all recorded ones. Otherwise, a replay would wait for them too early.
            self.ended = 1 + max(outcome.order for outcome in outcomes.values())

    def recorded(self, number: Number) -> Outcome | None:
        """Return the outcome that an earlier attempt recorded under ``number``, or None."""
        return self._records.outcomes.get(number)

    def number(self, kind: RecordKind, task: str) -> Number:
        """Assign and return the next number of a call or another wait of ``task``."""
        index = self._counts.get((kind, task), 0)
        self._counts[kind, task] = index + 1
        return Number(kind, task, index)

    def match_call(
        self, task: str, identity: CallIdentity, is_former: Callable[[CallIdentity], bool]
    ) -> tuple[Number, CallRecord | None, bool]:
        """Assign a number to the next call of ``task``, and match it with its record.

        Args:
            task: The task that makes the call.
            identity: The function and the arguments of the call.
            is_former: Returns True if the call is a recorded one although the digests of their arguments
                differ.

        Returns:
            The number; the outcome if the call was made before; True if its intent is recorded, so that it
            may have taken effect.

        Raises:
            Mismatch: Another call was recorded under its number.
        """
        index = self._counts.get((RecordKind.CALL, task), 0)
        self._counts[RecordKind.CALL, task] = index + 1
        number = Number(RecordKind.CALL, task, index)
        # Also for recorded calls: the count is the index of the action's own record.
        self.call_count += 1
        records = self._records
        recorded = records.outcomes.get(number)
        intent = records.intents.get(number)
        assert not isinstance(recorded, WaitRecord)
        # An intent without an outcome: the call may have taken effect before a crash.
        call = recorded.call if recorded is not None else intent
        if call is not None and not call.same(identity):
            if not is_former(call):
                raise self.note_mismatch(Mismatch(number, call, identity))
        return number, recorded, intent is not None

    def restart_numbers(self, path: str) -> None:
        """Number the outcomes of a sub-agent's action from 0 again: an attempt of it begins."""
        self.end_attempt(path)
        self.attempts = (*self.attempts, path)
        # Outcomes of the attempt before it are there, and this one has to ask for them.
        self.had_outcomes = True
        for kind, task in self._counts:
            # Not the numbers of its own attempts, none of which is used twice.
            if is_inside(task, path):
                self._counts[kind, task] = 0

    def of_attempts(self, path: str, through: int) -> list[tuple[Number, Outcome]]:
        """Return the recorded outcomes of a sub-agent's action up to place ``through`` in the order."""
        return [
            (number, outcome)
            for number, outcome in self._records.in_order()
            if outcome.order <= through and is_inside(number.task, path)
        ]

    def end_attempt(self, path: str) -> None:
        """Note that an attempt of a sub-agent's action has ended, as the calling task knows."""
        self.attempts = tuple(running for running in self.attempts if not is_inside(running, path))

    def end_failed_attempt(self, path: str, order: int) -> None:
        """Note that an attempt of an action of a sub-agent has failed.

        As after an attempt of any other action, failures that are not recorded are forgotten, so that the
        next attempt makes these calls again. A replay does not execute it, so it reads none of its records.

        Args:
            path: The path of the action.
            order: The place of the end of the attempt in the order.
        """
        self.end_attempt(path)
        for number in [number for number in self.unrecorded if is_inside(number.task, path)]:
            del self.unrecorded[number]
        for number, outcome in self._records.outcomes.items():
            if outcome.order < order and is_inside(number.task, path):
                task = number.kind, number.task
                self._counts[task] = max(self._counts.get(task, 0), number.nth + 1)

    def next_place(self) -> int:
        """Assign and return the place in the order for an outcome that has just ended."""
        self.ended += 1
        return self.ended - 1

    def seen(self, number: Number, outcome: Outcome) -> None:
        """Note that an outcome was delivered to the action before it was recorded."""
        if not self.unrecorded:
            self.unrecorded = {}
        self.unrecorded[number] = outcome

    def seen_by(self, task: str) -> dict[Number, Outcome]:
        """Return the unrecorded outcomes that the code of a task may have reacted to.

        Others see nothing of an attempt in a sub-agent before its end. Its failures must not be recorded with
        their calls: if it fails, the next attempt makes these calls again.
        """
        if not self.attempts:
            return dict(self.unrecorded)
        return {number: outcome for number, outcome in self.unrecorded.items() if self._is_seen(number, task)}

    def _is_seen(self, number: Number, task: str) -> bool:
        """Return True unless an outcome belongs to an open attempt that the task is not part of."""
        return all(is_inside(task, path) for path in self.attempts if is_inside(number.task, path))

    def still_unrecorded(self, outcomes: Mapping[Number, Outcome]) -> dict[Number, Outcome]:
        """Return those of the given outcomes that are still not recorded."""
        return {number: outcome for number, outcome in outcomes.items() if number in self.unrecorded}

    def note_unsure(self, outcomes: Mapping[Number, Outcome]) -> None:
        """Note that the append of outcomes was cancelled: the store may have them or not."""
        self.unsure = {**self.unsure, **outcomes}

    def take_unsure(self) -> dict[Number, Outcome]:
        """Remove and return the outcomes whose append was cancelled."""
        unsure = self.unsure
        self.unsure = {}
        return unsure

    def mark_recorded(self, recorded: Mapping[Number, Outcome]) -> None:
        """Note that outcomes were recorded. Further attempts of the execution get the same ones."""
        self._records.outcomes.update(recorded)
        if self.unrecorded:
            for number in recorded:
                self.unrecorded.pop(number, None)

    def note_mismatch(self, mismatch: Mismatch) -> Mismatch:
        """Note that the replay does not match the records, and return the first mismatch, for raising."""
        # The first one: later ones are its consequences.
        self.mismatch = self.mismatch or mismatch
        return self.mismatch

    def check_end(self) -> None:
        """Check that the execution, which has ended, matches its records to the last one.

        Raises:
            Mismatch: It did not ask for all recorded outcomes, or did not match before.
        """
        if self.mismatch is None and self.had_outcomes:
            unread = [
                number
                for number in self._records.outcomes
                if number.nth >= self._counts.get((number.kind, number.task), 0)
            ]
            if unread:
                first = min(unread, key=lambda number: self._records.outcomes[number].order)
                self.mismatch = Mismatch(first, as_shown(self._records.outcomes[first]), None)
        if self.mismatch is not None:
            raise self.mismatch


def as_shown(outcome: Outcome) -> CallIdentity | str:
    """Return the recorded call, or the text of the wait, for the error about a mismatch."""
    return outcome.call if isinstance(outcome, CallRecord) else outcome.what
