"""The points at which a harness can crash, and its outputs before each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.action_state import JournalKey, Record
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.suspended import ListedRun
from flink_agents.testing.fakes.outside import AnswerLog
from flink_agents.testing.fakes.state import Snapshot
from flink_agents.testing.faults import Fault, Faults

EVERYWHERE = "everywhere"


class Died(Exception):
    """Raised where the operator of a harness crashes."""


Progress = tuple[int, int, int, tuple[ListedRun, ...], int | None, int | None]
"""State that a commit changes: the head of a key, a suspended run, a signal, or a delayed event."""

_NOTHING: Progress = (0, 0, 0, (), None, None)


@dataclass
class Crash:
    """A point at which the operator of a harness crashes.

    Attributes:
        append: Number of the append at which it crashes; None to crash at a commit.
        stored: True to crash after the append or commit is stored, False for before.
        commit: Number of the commit at which it crashes; None to crash at an append.
        checkpoint: The state after the commit, once it was saved; None before.
        died: True once it has crashed.
    """

    append: int | None = None
    stored: bool = False
    commit: int | None = None
    checkpoint: HarnessMoment | None = None
    died: bool = False

    def fault(self, number: int) -> Fault | None:
        """Return the fault with which the append ``number`` fails; None if it succeeds."""
        if number != self.append:
            return None
        self.died = True
        return Fault.UNACKNOWLEDGED if self.stored else Fault.LOST


@dataclass
class HarnessMoment:
    """All that a harness has at one moment.

    Attributes:
        snapshot: The state of its keys.
        copies: Outputs, clock and watermark; see ``copy_outside_state``.
        delivery_count: Number of inputs delivered so far.
        outputs: Emitted values so far: name of the output, canonical text of the key, value.
    """

    snapshot: Snapshot
    copies: dict[str, Any]
    delivery_count: int
    outputs: list[tuple[str, str, Any]]


class CrashPoints:
    """Counts the appends and commits of a harness, and lets it crash at one of them.

    Args:
        codec: Encodes the arguments of durable calls.

    Attributes:
        outside: Executes the functions of durable calls, or repeats their answers.
        place: Holds the records.
        faults: Chooses the appends that fail.
        crash: Where the harness crashes; None if it does not.
        heads: Last committed progress of each key, by :func:`progress_of`.
        count: Number of commits so far.
        delivery_count: Number of delivered inputs so far.
        outputs: Each emitted value: name of the output, canonical text of the key, value.
        moment: Saves the state of the harness.
    """

    def __init__(self, codec: ValueCodec) -> None:
        self.outside = AnswerLog(codec)
        self.place = MemoryPlace()
        self.faults = Faults(make=lambda: MemoryStore(self.place))
        self.crash: Crash | None = None
        self.heads: dict[str, Progress] = {}
        self.count = 0
        self.delivery_count = 0
        self.outputs: list[tuple[str, str, Any]] = []
        self.moment: Callable[[], HarnessMoment]

    def create_store(self) -> Any:
        """Create the store of one attempt of one subtask, whose appends can fail."""
        return self.faults.store()

    def count_delivery(self) -> None:
        """Count a delivered input."""
        self.delivery_count += 1

    def note_commit(self, key: str, packed: bytes | None) -> None:
        """Count a commit, before its outputs leave; ``packed`` is the new head of the key.

        Raises:
            Died: The operator crashes before this commit.
        """
        previous_progress = self.heads.get(key)
        now = progress_of(packed)
        if previous_progress == now or (previous_progress is None and now == _NOTHING):
            return
        self.heads[key] = now
        self.count += 1
        crash = self.crash
        if crash is not None and crash.commit == self.count - 1 and not crash.stored:
            crash.died = True
            self.outside.release_answers()
            raise Died

    def next_fault(self, number: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        """Return the fault of the append with a number, by the present crash; None if it succeeds."""
        fault = self.crash.fault(number) if self.crash is not None else None
        if fault is not None:
            self.outside.release_answers()
        return fault

    def record_output(self, what: str, key: str, value: Any) -> None:
        """Record an emitted value: name of the output, canonical string of the key, value."""
        self.outputs.append((what, key, value))

    def note_outputs_left(self) -> None:
        """Note that all outputs of a commit have left, and save the state if the crash is here.

        Raises:
            Died: The operator crashes after this commit.
        """
        crash = self.crash
        wanted = crash is not None and crash.commit is not None and crash.stored and not crash.died
        if crash is not None and wanted and self.count > (crash.commit or 0):
            crash.died, crash.checkpoint = True, self.moment()
            self.outside.release_answers()
            raise Died


def progress_of(packed: bytes | None) -> Progress:
    """Return those fields of a packed head that a commit changes; None stands for a key without a head."""
    if packed is None:
        return _NOTHING
    head = Head.unpack(packed)
    waits = tuple(head.suspended), head.signals_expire, head.delayed_due
    return (head.next_seq, head.first_pending, head.ahead, *waits)


def crash_points(
    codec: ValueCodec, crash: str | None, has_own_store: bool, forced: bool
) -> CrashPoints | None:
    """Return the crash points of a harness; None if it does not crash.

    Args:
        codec: Encodes the arguments of durable calls.
        crash: Argument of the test: ``"everywhere"``; None for no crash; empty if it is not given.
        has_own_store: True if the test or an option names a store.
        forced: True if the environment asks for crashes.

    Raises:
        AgentConfigurationError: The harness cannot crash in that way.
    """
    if crash == "":
        return CrashPoints(codec) if forced and not has_own_store else None
    if crash is None:
        return None
    if crash != EVERYWHERE or has_own_store:
        raise AgentConfigurationError(
            "the harness cannot crash everywhere",
            expected=f"crash={EVERYWHERE!r}, and a store in memory that it makes itself",
            found=f"crash={crash!r}" + (", and a store of the test's" if has_own_store else ""),
            fix="omit store and action-state.store, or crash; flink_agents.testing.faults lets a store "
            "fail at one append",
        )
    return CrashPoints(codec)
