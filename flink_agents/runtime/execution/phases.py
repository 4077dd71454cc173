"""The state of a run: its phase, the start of that phase, and the wait that it is in.

Methods of :class:`RunState` set all of it. An action can wait for several things at a time: the phase is that
of the newest open wait. A wait is opened only if the code really has to wait. So a run that meets no limit
pays only for its start and its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flink_agents.api.agents.observers import IN_FLIGHT, WAITS, Phase
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.trace.recording.segments import Segment
from flink_agents.trace.records import run_id_of

_MEASURED = WAITS | {Phase.QUEUED}
"""The phases whose durations are noted."""

_NOTED = (Phase.RUNNING, Phase.QUEUED)
"""The first phases of runs with notes. In others, only records of a run are there."""

_ENDS = frozenset((Phase.SUSPENDED, Phase.COMMITTED, Phase.FAILED))
"""The last phases of runs, which end their notes."""


class WaitPhase:
    """A wait of a run for something of the runtime.

    Args:
        phase: The phase of the run during the wait.
        what: The reason for the wait, as text.

    Attributes:
        phase: The phase of the run during the wait.
        since: The time at which the wait started, by ``clock``.
        awaited: A coroutine, a task, or a function that finds one, whose end ends the wait; None if unknown.
        thread: The thread that will end the wait, or None.
    """

    __slots__ = ("_what", "awaited", "phase", "since", "thread")

    def __init__(self, phase: Phase, what: str) -> None:
        self.phase = phase
        self._what = what
        self.since = 0.0
        self.awaited: Any = None
        self.thread: int | None = None

    @property
    def what(self) -> str:
        """The reason for the wait, as text."""
        return self._what


class RunState:
    """The state of a run. The thread that executes the run sets it, and any thread may read it.

    Args:
        key_text: Canonical text of the key.
        sequence_number: Number of the run within the key.
        observers: Observers of runs.
        phase: The first phase.
        since: The start of that phase, if the caller measured it.

    Attributes:
        phase: The present phase.
        since: The start of that phase; 0.0 if it was not measured.
        started: The time at which the run left Flink's task thread, by ``clock``; 0.0 before that.
        begun: Like ``started``, but later by the durations of its suspensions.
        identity: Identity of the job that the run started in; empty until its input is handled.
        parent: Id of the message that was the input; None if it has none, or if nothing traces inputs.
        traceparent: The W3C trace context of the input, or None.
        executing: True while the loop executes its actions, so that it can be cancelled there.
        ended_by: The error that ends the run because a user asked for that; None for most runs.
        open_waits: The waits of a suspended run.
        action_run: The ``action_run.ActionRun`` that executes outside of Flink's task thread, or None.
        notes: Receives what the run does, if an observer wants to read it later: that costs less than calls.
    """

    # Attributes of the class, because each event creates a run, and most never change these.
    started = begun = 0.0
    identity = ""
    parent: str | None = None
    traceparent: str | None = None
    executing = False
    ended_by: BaseException | None = None
    open_waits: Sequence[Any] = ()
    action_run: Any = None
    notes: Segment | None = None
    _waits: dict[WaitPhase, None] | None = None

    def __init__(
        self,
        key_text: str,
        sequence_number: int,
        observers: Observers,
        phase: Phase,
        since: float = 0.0,
    ) -> None:
        self.key_text = key_text
        self.sequence_number = sequence_number
        self._observers = observers
        self.phase = phase
        self.since = since
        if since:
            self.begun = self.started = since
        notify = observers.phase_changed
        if observers.begin_notes is not None and phase in _NOTED:
            self.notes = observers.begin_notes(self)
            notify = observers.phase_changed_unnoted
        if notify is not None:
            notify(self, None)

    @property
    def key(self) -> Any:
        """The key as a Python value."""
        return decode_key(self.key_text)

    @property
    def agent(self) -> str:
        """Name of the agent that the run belongs to."""
        return self._observers.agent

    @property
    def run_id(self) -> str:
        """Id of the run; empty until ``identity`` is known."""
        return run_id_of(self.identity, self.key_text, self.sequence_number) if self.identity else ""

    @property
    def newest_wait(self) -> WaitPhase | None:
        """The newest wait of the run; None if it waits for nothing of the runtime."""
        waits = self._waits
        # The thread that executes the run may add one meanwhile.
        return next(reversed(waits.copy()), None) if waits else None

    @property
    def waits_for(self) -> str:
        """The reason for the newest wait, as text; empty if there is none."""
        wait = self.newest_wait
        return "" if wait is None else wait.what

    def describe(self, now: float) -> str:
        """Return key, number, activity and its duration, as text for logs."""
        wait = self.newest_wait
        does = self.phase.value if wait is None else f"waits for {wait.what}"
        return f"key {self.key!r}, sequence {self.sequence_number}, {does}, for {now - self.since:.3g} s"

    @property
    def in_flight(self) -> bool:
        """True if the run is in a phase in which its actions are executed, or wait."""
        return self.phase in IN_FLIGHT

    def enter(self, phase: Phase, since: float = 0.0, now: float = 0.0) -> None:
        """Start a phase. Only this method notifies observers of a new phase.

        Args:
            phase: The phase that starts.
            since: Start of the phase, by ``clock``; 0.0 if the caller has not measured it.
            now: The present time, if the phase started before; 0.0 if it starts now.
        """
        previous_phase = self.phase
        self.phase = phase
        self.since = since
        notes = self.notes
        notify = self._observers.phase_changed
        if notes is not None:
            now = now or since
            if previous_phase in _MEASURED:
                waits = notes.waits
                if waits is None:
                    waits = notes.waits = {}
                waits[previous_phase] = waits.get(previous_phase, 0.0) + now - notes.changed
            notes.changed = now
            notify = self._observers.phase_changed_unnoted
            if phase in _ENDS:
                self._observers.end_notes(self)
        if notify is not None and previous_phase is not phase:
            notify(self, previous_phase)

    def begin(self, now: float) -> None:
        """Note that the run starts outside of Flink's task thread, at ``now`` by ``clock``."""
        self.begun = self.started = now
        if self._observers.phase_changed is None:
            self.phase = Phase.RUNNING
            self.since = now
        else:
            self.enter(Phase.RUNNING, now)

    def begin_wait(self, wait: WaitPhase) -> None:
        """Note that an action of the run starts to wait."""
        if self.phase not in IN_FLIGHT:
            # A thread that cannot be stopped continues after the end of its run.
            return
        waits = self._waits
        if waits is None:
            waits = self._waits = {}
        waits[wait] = None
        wait.since = now = clock()
        if self._observers.phase_changed is None:
            self.phase = wait.phase
            self.since = now
        else:
            self.enter(wait.phase, now)

    def end_wait(self, wait: WaitPhase) -> None:
        """Note that a wait of an action has ended."""
        waits = self._waits
        if not waits or wait not in waits:
            return
        del waits[wait]
        last = self.newest_wait if waits else None
        if last is not None:
            self.enter(last.phase, last.since, clock())
        elif self.phase in IN_FLIGHT:
            now = clock()
            if self._observers.phase_changed is None:
                self.phase = Phase.RUNNING
                self.since = now
            else:
                self.enter(Phase.RUNNING, now)

    @contextmanager
    def waiting(self, phase: Phase, what: str) -> Iterator[WaitPhase]:
        """Return a context manager: inside, an action of the run waits for ``what``, in that phase."""
        wait = WaitPhase(phase, what)
        self.begin_wait(wait)
        try:
            yield wait
        finally:
            self.end_wait(wait)

    def finish(self, now: float) -> None:
        """Note that all actions of the run have ended."""
        self._waits = self.action_run = None
        if self._observers.phase_changed is None:
            self.phase = Phase.FINISHED
            self.since = now
        else:
            self.enter(Phase.FINISHED, now)

    def suspend(self, now: float, waits: Sequence[Any] = ()) -> None:
        """Note that the run is suspended, with ``waits`` open. Only its records are left in memory."""
        self._waits = self.action_run = None
        self.open_waits = waits
        self.enter(Phase.SUSPENDED, now)

    def withdraw(self) -> None:
        """Note that the input waits in state again. Later, the run is queued with another state."""
        if self.notes is not None:
            self._observers.end_notes(self)

    def fail(self) -> None:
        """Note that an error ended the run; no effect on one that has finished."""
        if self.phase in IN_FLIGHT or self.phase in (Phase.QUEUED, Phase.RECORDS):
            self._waits = self.action_run = None
            self.enter(Phase.FAILED, clock())

    def commit(self, now: float | None = None) -> None:
        """Note that the run is committed.

        Args:
            now: The present time; None for a run that never left Flink's task thread.
        """
        seconds = None if now is None else now - self.since
        if self._observers.phase_changed is None:
            self.phase = Phase.COMMITTED
            self.since = now or 0.0
        else:
            self.enter(Phase.COMMITTED, now or 0.0)
        self._observers.committed(self, seconds)
