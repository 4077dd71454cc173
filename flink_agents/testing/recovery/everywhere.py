"""``OperatorHarness(crash="everywhere")``: repeats the steps of a test with each possible crash.

The first execution has no crash, and counts the appends to the store and the commits. Then there is one
execution per crash point: the operator crashes before or after an append or commit, is restored from the
checkpoint before it, and continues; its outputs have to be the same. Functions of durable steps are called in
the first execution only (see ``outside``).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import (
    AgentsError,
    RecoveryMismatchError,
    StoreError,
)
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing.fakes.outside import MadeCall
from flink_agents.testing.faults import Fault, Faults
from flink_agents.testing.recovery.outcomes import HarnessOutcome, first_difference
from flink_agents.testing.recovery.restarts import Restarts
from flink_agents.testing.subtasks.crash_points import Crash, CrashPoints, Died, HarnessMoment, progress_of

FIX = (
    "usual causes: code of the action outside of durable calls that has an effect or depends on the clock, "
    "chance, a global or an attribute of the agent; a function that changes its arguments or uses ctx; a "
    "payload that is changed in place. Let all of it depend only on the event, memory and recorded results"
)

_KINDS = {
    RecordKind.RUN: "header of the run",
    RecordKind.INTENT: "intent of a call of",
    RecordKind.CALL: "call of",
    RecordKind.ACTION: "end of",
    RecordKind.RERUN: "new start of",
    RecordKind.WAIT: "end of a wait of",
}

Deliver = Callable[[], None]


@dataclass
class _Appended:
    """The appends and commits of an execution without a crash.

    Attributes:
        appends: Journal, records and fault of each append.
        commits: Number of commits.
    """

    appends: list[tuple[JournalKey, tuple[Record, ...], Fault | None]] = field(default_factory=list)
    commits: int = 0


class Crashes:
    """Repeats the steps of a test with a crash at each point.

    Args:
        harness: The harness that executes the steps.
        points: Counts appends and commits, and lets the harness crash.
    """

    def __init__(self, harness: Restarts, points: CrashPoints) -> None:
        self._harness = harness
        self._points = points
        self._past: Counter[MadeCall] = Counter()
        self._end_time = 0
        points.moment = self._save_moment

    # -- executing ----------------------------------------------------------------------

    def explore_crashes(
        self, act: Deliver, resume: Callable[[int], None], again: Deliver, ordered: bool
    ) -> None:
        """Execute a step without a crash, and then again with a crash at each append and commit.

        Args:
            act: Executes the step to its end.
            resume: Executes the part of it after a number of inputs, to its end.
            again: Executes the step to its end after a crash.
            ordered: True if outputs have to come in the same order.

        Raises:
            RecoveryMismatchError: A crash makes a difference.
        """
        harness = self._harness
        self._points.delivery_count = 0
        self._points.outputs = []
        initial_moment = self._save_moment()
        records = self._journals()
        first_append = len(self._points.faults.appends)
        self._past = self._stored_calls() if self._points.outside.has_answers else Counter()
        self._begin_step(initial_moment)
        self._points.outside.ordered = ordered
        act()
        self._points.outside.end_recording(any(action.timeout is not None for action in harness.plan.actions))
        expected = HarnessOutcome.from_harness(harness.checkpoint().keys, harness.codec, self._points.outputs)
        final_moment = self._save_moment()
        appended = _Appended(self._points.faults.appends[first_append:], self._points.count)
        self._end_time = final_moment.copies["time"]
        # The operator without a crash continues after this; others take its place meanwhile.
        crash_free_operator = harness.set_aside()
        place = self._points.place
        faults = self._points.faults
        self._parallelism = len(crash_free_operator[0])
        try:
            for crash in _crash_points(appended):
                self._restore_moment(initial_moment, records, crash)
                stored = self._until_crash(crash, act, resume, again)
                outcome = HarnessOutcome.from_harness(
                    harness.checkpoint().keys, harness.codec, self._points.outputs
                )
                self._compare_outcomes(crash, appended, expected, outcome, stored, ordered, initial_moment)
        finally:
            self._points.crash = None
            self._points.place = place
            self._points.faults = faults
            harness.take_back(crash_free_operator, final_moment.copies)
            self._begin_step(final_moment)
            self._points.outside.go_on(forget=not harness.busy)

    def _until_crash(
        self, crash: Crash, act: Deliver, resume: Callable[[int], None], again: Deliver
    ) -> Counter[MadeCall]:
        """Execute a step up to a crash, and from the checkpoint before it to the end.

        Returns:
            The calls with stored records at the crash, and how often each is stored.

        Raises:
            RecoveryMismatchError: The second part fails, or the first one without a crash.
        """
        previous_moment = self._previous_moment
        try:
            self._points.outside.repeat_answers(self._past)
            act()
        except Died:
            pass
        except StoreError as error:
            if not crash.died:
                raise self._failed_error(crash, error) from error
        except Exception as error:
            raise self._failed_error(crash, error) from error
        if crash.died:
            # Calls that are still running may be recorded.
            self._harness.close()
        stored = self._stored_calls()
        if not crash.died:
            return stored
        self._points.faults = Faults(make=lambda: MemoryStore(self._points.place))
        self._points.crash = None
        try:
            self._return_to(crash.checkpoint or previous_moment)
            self._points.outside.repeat_answers(stored + self._past)
            if crash.checkpoint is not None:
                resume(crash.checkpoint.delivery_count)
            else:
                again()
            # A recorded run may wait for a time that only the pause of an unrecorded one had reached.
            self._harness.catch_up_to(self._end_time)
        except Exception as error:
            raise self._failed_error(crash, error) from error
        return stored

    def _stored_calls(self) -> Counter[MadeCall]:
        """Count the durable calls among all stored records."""
        return self._points.outside.stored_among(
            (journal, records)
            for journal, records, fault in self._points.faults.appends
            if fault is None or fault.stores
        )

    def _restore_moment(self, moment: HarnessMoment, journals: Any, crash: Crash) -> None:
        """Return to a moment, with the journals of that moment, and set the crash to come."""
        place = MemoryPlace()
        place.store_id = self._points.place.store_id
        place.journals = copy.deepcopy(journals)
        self._points.place = place
        self._points.faults = Faults(self._points.next_fault, lambda: MemoryStore(place))
        self._points.crash = crash
        self._return_to(moment)

    def _begin_step(self, moment: HarnessMoment) -> None:
        self._previous_moment = moment
        self._points.count = 0
        self._points.delivery_count, self._points.outputs = moment.delivery_count, list(moment.outputs)
        self._points.heads = {key: progress_of(state.head) for key, state in moment.snapshot.keys.items()}

    def _journals(self) -> Any:
        with self._points.place.lock:
            return copy.deepcopy(self._points.place.journals)

    def _save_moment(self) -> HarnessMoment:
        return HarnessMoment(
            self._harness.checkpoint(),
            self._harness.copy_outside_state(),
            self._points.delivery_count,
            list(self._points.outputs),
        )

    def _return_to(self, moment: HarnessMoment) -> None:
        previous_moment = self._previous_moment
        self._harness.return_to(moment.snapshot, moment.copies, self._parallelism)
        self._begin_step(moment)
        self._previous_moment = previous_moment

    # -- comparing ----------------------------------------------------------------------

    def _compare_outcomes(
        self,
        crash: Crash,
        done: _Appended,
        expected: HarnessOutcome,
        actual_outcome: HarnessOutcome,
        stored: Counter[MadeCall],
        ordered: bool,
        moment: HarnessMoment,
    ) -> None:
        """Compare an execution with a crash to the one without.

        Raises:
            RecoveryMismatchError: They differ, or a call with a stored record was repeated.
        """
        where = _describe_crash(crash, done)
        repeated = self._points.outside.repeated_functions(stored) if crash.died else []
        if repeated:
            raise _mismatch_error(
                moment,
                where,
                "effects",
                None,
                expected="a call with a stored record is not repeated",
                found=f"{repeated[0]} was called again",
            )
        difference = first_difference(expected, actual_outcome, ordered)
        if difference is not None:
            raise _mismatch_error(
                moment,
                where,
                difference.what,
                difference.key,
                expected=difference.expected,
                found=difference.found,
            )

    def _failed_error(self, crash: Crash, error: Exception) -> RecoveryMismatchError:
        expected = "the same end as without a crash"
        message = error.message if isinstance(error, AgentsError) else str(error)
        error_text = f"{type(error).__name__}: {message}"[:2000]
        return _mismatch_error(
            self._previous_moment,
            _describe_crash(crash, None),
            "the end",
            None,
            expected=expected,
            found=error_text,
        )


def _crash_points(done: _Appended) -> Iterator[Crash]:
    for number in range(len(done.appends)):
        yield Crash(append=number, stored=False)
        yield Crash(append=number, stored=True)
    for number in range(done.commits):
        yield Crash(commit=number, stored=False)
        yield Crash(commit=number, stored=True)


def _describe_crash(crash: Crash, done: _Appended | None) -> str:
    side = "after" if crash.stored else "before"
    if crash.append is None:
        return f"{side} commit {crash.commit}"
    if done is None:
        return f"{side} append {crash.append}"
    _, records, _ = done.appends[crash.append]
    kinds = ", ".join(f"{_KINDS[record.kind]} {record.step}".rstrip() for record in records)
    return f"{side} append {crash.append} ({kinds})"


def _mismatch_error(
    moment: HarnessMoment, where: str, what: str, key: str | None, **details: str
) -> RecoveryMismatchError:
    state = moment.snapshot.keys.get(key) if key is not None else None
    head = state.head if state is not None else None
    number = Head.unpack(head).next_seq if head is not None else 0
    key_value = decode_key(key) if key is not None else None
    key_part = f"key {key_value!r}, from sequence {number} on: " if key is not None else ""
    return RecoveryMismatchError(
        f"{key_part}a crash {where} makes a difference: {what}",
        key=key_value,
        sequence_number=number,
        crash_point=where,
        difference=what,
        fix=FIX,
        **details,
    )
