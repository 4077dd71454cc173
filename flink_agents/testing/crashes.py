"""``OperatorHarness(crash="everywhere")``: repeats what a test does with each possible crash.

The first execution has no crash, and counts the appends to the store and the commits. Then there is one
execution per crash point: the operator crashes before or after an append or commit, is restored from the
checkpoint before it, and continues; its outputs have to be the same. Functions of durable steps are called in
the first execution only (see ``outside``).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import (
    AgentConfigurationError,
    AgentsError,
    RecoveryMismatchError,
    StoreError,
)
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.aside import Aside
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing.faults import Fault, Faults
from flink_agents.testing.outcomes import Outcome, difference
from flink_agents.testing.outside import Asked, Outside
from flink_agents.testing.snapshots import Snapshot

if TYPE_CHECKING:
    from flink_agents.testing.harness import OperatorHarness

EVERYWHERE = "everywhere"

FIX = (
    "usual causes: code of the action outside of durable calls that has an effect or depends on the clock, "
    "chance, a global or an attribute of the agent; a function that changes its arguments or uses ctx; "
    "a payload that is changed in place. Let all of it follow from the event, memory and recorded results"
)

_KINDS = {
    RecordKind.RUN: "header of the run",
    RecordKind.INTENT: "intent of a call of",
    RecordKind.CALL: "call of",
    RecordKind.ACTION: "end of",
    RecordKind.RERUN: "new begin of",
    RecordKind.WAIT: "end of a wait of",
}

Deliver = Callable[[], None]


class _Died(Exception):
    """The operator crashes here."""


_Progress = tuple[
    int, int, int, tuple[int, int, int | None] | None, int | None, int | None, tuple[Aside, ...]
]
"""State that a commit changes: the head of a key, a suspended run, a signal, or a delayed event."""

_NONE: _Progress = (0, 0, 0, None, None, None, ())


@dataclass
class _Crash:
    """The point at which the operator crashes.

    Attributes:
        append: Number of the append that it does not survive; None if it is a commit.
        stored: True if that append, or commit, is stored.
        commit: Number of the commit.
        checkpoint: The checkpoint after the commit, once it was taken.
    """

    append: int | None = None
    stored: bool = False
    commit: int | None = None
    checkpoint: _Moment | None = None
    died: bool = False

    def fault(self, asked: int) -> Fault | None:
        """Return the fault of the append with that number."""
        if asked != self.append:
            return None
        self.died = True
        return Fault.UNACKNOWLEDGED if self.stored else Fault.LOST


@dataclass
class _Moment:
    """The state of a harness at one moment, the number of inputs it had taken, and its outputs so far."""

    snapshot: Snapshot
    kept: dict[str, Any]
    taken: int
    left: list[tuple[str, str, Any]]


@dataclass
class _Appended:
    """The appends and commits of an execution without a crash."""

    appends: list[tuple[JournalKey, tuple[Record, ...], Fault | None]] = field(default_factory=list)
    commits: int = 0


class Crashes:
    """Repeats the steps of a test with a crash at each point.

    Args:
        harness: The harness that executes the steps.
    """

    def __init__(self, harness: OperatorHarness) -> None:
        self._harness = harness
        self._place = MemoryPlace()
        self._faults = Faults(make=lambda: MemoryStore(self._place))
        self._crash: _Crash | None = None
        self._heads: dict[str, _Progress] = {}
        self._commits = 0
        self._taken = 0
        self._left: list[tuple[str, str, Any]] = []
        self._past: Counter[Asked] = Counter()
        self.outside = Outside(harness.codec)

    def store(self) -> Any:
        """Return a store for one attempt of one subtask."""
        return self._faults.store()

    # -- called by the harness ----------------------------------------------------------

    def delivered(self) -> None:
        """Note that an input was delivered."""
        self._taken += 1

    def commits(self, key: str, packed: bytes | None) -> None:
        """Note a commit, before any output leaves.

        Raises:
            _Died: The operator crashes before this commit.
        """
        before, now = self._heads.get(key), _progress(packed)
        if before == now or (before is None and now == _NONE):
            return
        self._heads[key] = now
        self._commits += 1
        crash = self._crash
        if crash is not None and crash.commit == self._commits - 1 and not crash.stored:
            crash.died = True
            self.outside.die()
            raise _Died

    def _fault(self, asked: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        """Return the fault of an append."""
        fault = self._crash.fault(asked) if self._crash is not None else None
        if fault is not None:
            self.outside.die()
        return fault

    def left(self, what: str, key: str, value: Any) -> None:
        """Note an emitted value: name of the output, canonical string of the key, value."""
        self._left.append((what, key, value))

    def committed(self) -> None:
        """Note that all outputs of an emission have left.

        Raises:
            _Died: The operator crashes after this commit.
        """
        crash = self._crash
        wanted = crash is not None and crash.commit is not None and crash.stored and not crash.died
        if crash is not None and wanted and self._commits > (crash.commit or 0):
            crash.died, crash.checkpoint = True, self._moment()
            self.outside.die()
            raise _Died

    # -- executing ----------------------------------------------------------------------

    def explore(self, act: Deliver, resume: Callable[[int], None], again: Deliver, ordered: bool) -> None:
        """Do something once without a crash, and then again with each crash.

        Args:
            act: Does it from the beginning to the end.
            resume: The same, from a given number of taken inputs on.
            again: Does it from the beginning after a crash.
            ordered: True if outputs have to come in the same order.

        Raises:
            RecoveryMismatchError: A crash made a difference.
        """
        harness = self._harness
        self._taken, self._left = 0, []
        before, records = self._moment(), self._journals()
        first = len(self._faults.appends)
        self._past = self._stored() if self.outside.has_answers else Counter()
        self._begin(before)
        self.outside.ordered = ordered
        act()
        self.outside.recorded(any(one.timeout is not None for one in harness.plan.actions))
        expected, after = Outcome.of(harness, self._left), self._moment()
        done = _Appended(self._faults.appends[first:], self._commits)
        # The operator without a crash continues after this; others take its place meanwhile.
        aside, place, faults = harness.set_aside(), self._place, self._faults
        self._parallelism = len(aside[0])
        try:
            for crash in _points(done):
                self._reset(before, records, crash)
                stored = self._until_crash(crash, act, resume, again)
                found = Outcome.of(harness, self._left)
                self._compare(crash, done, expected, found, stored, ordered, before)
        finally:
            self._crash, self._place, self._faults = None, place, faults
            harness.take_back(aside, after.kept)
            self._begin(after)
            self.outside.go_on(forget=not harness.busy)

    def _until_crash(
        self, crash: _Crash, act: Deliver, resume: Callable[[int], None], again: Deliver
    ) -> Counter[Asked]:
        """Execute up to a crash, and from the checkpoint before it to the end; returns the outcome."""
        before = self._before
        try:
            self.outside.repeat(self._past)
            act()
        except _Died:
            pass
        except StoreError as error:
            if not crash.died:
                raise self._failed(crash, error) from error
        except Exception as error:
            raise self._failed(crash, error) from error
        if crash.died:
            # Calls that are still running may be recorded.
            self._harness.close()
        stored = self._stored()
        if not crash.died:
            return stored
        self._faults = Faults(make=lambda: MemoryStore(self._place))
        self._crash = None
        try:
            self._return_to(crash.checkpoint or before)
            self.outside.repeat(stored + self._past)
            if crash.checkpoint is not None:
                resume(crash.checkpoint.taken)
            else:
                again()
        except Exception as error:
            raise self._failed(crash, error) from error
        return stored

    def _stored(self) -> Counter[Asked]:
        """Return the calls among all stored records."""
        return self.outside.stored_among(
            (journal, records)
            for journal, records, fault in self._faults.appends
            if fault is None or fault.stores
        )

    def _reset(self, moment: _Moment, journals: Any, crash: _Crash) -> None:
        """Return to a moment, with the records of that moment."""
        place = MemoryPlace()
        place.store_id = self._place.store_id
        place.journals = copy.deepcopy(journals)
        self._place = place
        self._faults = Faults(self._fault, lambda: MemoryStore(place))
        self._crash = crash
        self._return_to(moment)

    def _begin(self, moment: _Moment) -> None:
        self._before = moment
        self._commits = 0
        self._taken, self._left = moment.taken, list(moment.left)
        self._heads = {key: _progress(state.head) for key, state in moment.snapshot.keys.items()}

    def _journals(self) -> Any:
        with self._place.lock:
            return copy.deepcopy(self._place.journals)

    def _moment(self) -> _Moment:
        return _Moment(self._harness.checkpoint(), self._harness.kept(), self._taken, list(self._left))

    def _return_to(self, moment: _Moment) -> None:
        before = self._before
        self._harness.return_to(moment.snapshot, moment.kept, self._parallelism)
        self._begin(moment)
        self._before = before

    # -- comparing ----------------------------------------------------------------------

    def _compare(
        self,
        crash: _Crash,
        done: _Appended,
        expected: Outcome,
        found: Outcome,
        stored: Counter[Asked],
        ordered: bool,
        before: _Moment,
    ) -> None:
        where = _told(crash, done)
        repeated = self.outside.repeated(stored) if crash.died else []
        if repeated:
            raise _error(
                before,
                where,
                "effects",
                None,
                expected="a call whose record is stored is not made again",
                found=f"{repeated[0]} was called again",
            )
        differs = difference(expected, found, ordered)
        if differs is not None:
            raise _error(
                before, where, differs.what, differs.key, expected=differs.expected, found=differs.found
            )

    def _failed(self, crash: _Crash, error: Exception) -> RecoveryMismatchError:
        expected = "the end that it came to without a crash"
        told = error.message if isinstance(error, AgentsError) else str(error)
        found = f"{type(error).__name__}: {told}"[:2000]
        return _error(self._before, _told(crash, None), "the end", None, expected=expected, found=found)


def _points(done: _Appended) -> Iterator[_Crash]:
    for number in range(len(done.appends)):
        yield _Crash(append=number, stored=False)
        yield _Crash(append=number, stored=True)
    for number in range(done.commits):
        yield _Crash(commit=number, stored=False)
        yield _Crash(commit=number, stored=True)


def _progress(packed: bytes | None) -> _Progress:
    if packed is None:
        return _NONE
    head = Head.unpack(packed)
    waits = head.suspended, head.mail_expires, head.delayed_due, tuple(head.aside)
    return (head.next_seq, head.first_pending, head.ahead, *waits)


def _told(crash: _Crash, done: _Appended | None) -> str:
    side = "after" if crash.stored else "before"
    if crash.append is None:
        return f"{side} commit {crash.commit}"
    if done is None:
        return f"{side} append {crash.append}"
    _, records, _ = done.appends[crash.append]
    kinds = ", ".join(f"{_KINDS[record.kind]} {record.step}".rstrip() for record in records)
    return f"{side} append {crash.append} ({kinds})"


def _error(before: _Moment, where: str, what: str, key: str | None, **details: str) -> RecoveryMismatchError:
    state = before.snapshot.keys.get(key) if key is not None else None
    head = state.head if state is not None else None
    number = Head.unpack(head).next_seq if head is not None else 0
    named = decode_key(key) if key is not None else None
    of = f"key {named!r}, from sequence {number} on: " if key is not None else ""
    return RecoveryMismatchError(
        f"{of}a crash {where} makes a difference: {what}",
        key=named,
        sequence_number=number,
        crash_point=where,
        difference=what,
        fix=FIX,
        **details,
    )


def crashes_of(harness: OperatorHarness, crash: str | None, own: bool, forced: bool) -> Crashes | None:
    """Return the object that lets a harness crash; None if it does not.

    Args:
        harness: The harness.
        crash: The test's argument: ``"everywhere"``, None, or an empty string if it is not given.
        own: True if the test or an option names a store.
        forced: True if the environment asks for it and the test does not say.

    Raises:
        AgentConfigurationError: The harness cannot crash in that way.
    """
    if crash == "":
        return Crashes(harness) if forced and not own else None
    if crash is None:
        return None
    if crash != EVERYWHERE or own:
        raise AgentConfigurationError(
            "the harness cannot crash everywhere",
            expected=f"crash={EVERYWHERE!r}, and a store in memory that it makes itself",
            found=f"crash={crash!r}" + (", and a store of the test's" if own else ""),
            fix="leave store and action-state.store out, or crash; "
            "flink_agents.testing.faults lets a store fail at one append",
        )
    return Crashes(harness)
