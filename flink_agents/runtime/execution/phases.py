"""The state of a run: its phase, since when it is in that phase, and what it waits for.

All of it is set by the methods of :class:`RunState`. An action can wait for several things at a time; the
phase is that of the wait which began last and has not ended. A wait is opened only where something really
waits, so that a run which meets no limit pays for the begin and the end of its execution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flink_agents.api.agents.observers import IN_FLIGHT, Phase
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.keys import decode_key


class WaitPhase:
    """Something of the runtime that a run waits for.

    Args:
        phase: The phase of the run meanwhile.
        what: What it waits for, in words.

    Attributes:
        phase: See above.
        since: When the wait began.
        awaited: What leads to its end: a coroutine, a task, or a function that finds it; None where that is
            not known.
        thread: The thread that leads to its end, or None.
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
        """What the run waits for, in words."""
        return self._what


class RunState:
    """What a run is doing; the thread that executes the run sets it, and any thread may read it.

    Args:
        key_text: Canonical text of the key.
        sequence_number: Number of the run within the key.
        observers: Whoever is told.
        phase: The first phase.
        since: When it began, where a time was taken.

    Attributes:
        phase: What the run is doing.
        since: When that phase began; 0.0 where no time was taken.
        started: When the run began to be executed outside of Flink's thread; 0.0 before that.
        begun: The same, later by its pauses.
        identity: Identity of the job that the run began in; empty until its input is handled.
        parent: Id of the message that was the input; None if there is none, or nobody wants to know.
        traceparent: The trace context that came with the input, or None.
        executing: Whether the loop is inside of its actions, so that it can be cancelled there.
        ended_by: What gives the run up, since somebody wants that; None for most.
        open_waits: What a suspended run waits for.
        action_run: The ``action_run.ActionRun`` that executes outside of Flink's thread, or None.
    """

    # What most runs never change is kept by the class: one is made for each event.
    started = begun = 0.0
    identity = ""
    parent: str | None = None
    traceparent: str | None = None
    executing = False
    ended_by: BaseException | None = None
    open_waits: Sequence[Any] = ()
    action_run: Any = None
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
        if observers.phase_changed is not None:
            observers.phase_changed(self, None)

    @property
    def key(self) -> Any:
        """The key."""
        return decode_key(self.key_text)

    @property
    def wait(self) -> WaitPhase | None:
        """What the run waits for; None where it waits for nothing of the runtime."""
        waits = self._waits
        # The thread that executes the run may add one meanwhile.
        return next(reversed(waits.copy()), None) if waits else None

    @property
    def waits_for(self) -> str:
        """What the run waits for, in words; empty where the phase says it all."""
        wait = self.wait
        return "" if wait is None else wait.what

    def told(self, now: float) -> str:
        """Which run it is, what it does and since when, in words."""
        wait = self.wait
        does = self.phase.value if wait is None else f"waits for {wait.what}"
        return f"key {self.key!r}, sequence {self.sequence_number}, {does}, for {now - self.since:.3g} s"

    @property
    def in_flight(self) -> bool:
        """Whether the run is executed."""
        return self.phase in IN_FLIGHT

    def enter(self, phase: Phase, since: float = 0.0) -> None:
        """Begin a phase. No other method tells observers that one begins.

        Args:
            phase: The phase.
            since: The present, where the caller knows it.
        """
        before, self.phase, self.since = self.phase, phase, since
        tell = self._observers.phase_changed
        if tell is not None and before is not phase:
            tell(self, before)

    def begin(self, now: float) -> None:
        """Begin to execute the run outside of Flink's thread."""
        self.begun = self.started = now
        if self._observers.phase_changed is None:
            self.phase, self.since = Phase.RUNNING, now
        else:
            self.enter(Phase.RUNNING, now)

    def begin_wait(self, wait: WaitPhase) -> None:
        """Let an action of the run wait for something."""
        if self.phase not in IN_FLIGHT:
            # A thread that cannot be stopped goes on behind the end of its run.
            return
        waits = self._waits
        if waits is None:
            waits = self._waits = {}
        waits[wait] = None
        wait.since = clock()
        self.enter(wait.phase, wait.since)

    def end_wait(self, wait: WaitPhase) -> None:
        """Note that an action waits for something no more."""
        waits = self._waits
        if not waits or wait not in waits:
            return
        del waits[wait]
        last = self.wait if waits else None
        if last is not None:
            self.enter(last.phase, last.since)
        elif self.phase in IN_FLIGHT:
            self.enter(Phase.RUNNING, clock())

    @contextmanager
    def waiting(self, phase: Phase, what: str) -> Iterator[WaitPhase]:
        """Let an action wait for something, for as long as the context lasts."""
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
            self.phase, self.since = Phase.FINISHED, now
        else:
            self.enter(Phase.FINISHED, now)

    def suspend(self, now: float, waits: Sequence[Any] = ()) -> None:
        """Note that nothing but records are left of the run, which waits for ``waits``."""
        self._waits = self.action_run = None
        self.open_waits = waits
        self.enter(Phase.SUSPENDED, now)

    def fail(self) -> None:
        """Note that an error ended the run."""
        if self.phase in IN_FLIGHT or self.phase in (Phase.QUEUED, Phase.RECORDS):
            self._waits = self.action_run = None
            self.enter(Phase.FAILED, clock())

    def commit(self, now: float | None = None) -> None:
        """Note that the run is committed.

        Args:
            now: The present; None for a run that never left Flink's thread.
        """
        seconds = None if now is None else now - self.since
        if self._observers.phase_changed is None:
            self.phase, self.since = Phase.COMMITTED, now or 0.0
        else:
            self.enter(Phase.COMMITTED, now or 0.0)
        self._observers.committed(self, seconds)
