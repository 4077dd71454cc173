"""Suspended runs as a key service: stores them, and resumes each when its time, or a signal, has come.

When a run waits for something that outlasts its execution, it is *suspended*: in one update of its key, its
stored form is put into state, the signals that it took are removed, and its outputs leave. From then on,
nothing of it is in the process. A timer or a signal resumes it: a new actor replays its records up to the
open waits, which end there. The entry in state stays unchanged until the run is suspended again or committed,
again in one update. So whatever ended a wait, a crash leaves both the open wait and the timer or signal that
ends it, or neither.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.queued_input import QueuedInput
from flink_agents.runtime.operator.commit import EndedRun
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.schedules.end_times import START
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.released import ReleasedRuns
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.pending import read_input
from flink_agents.runtime.state.suspended import Suspension

MOST_AT_ONCE = 1000
"""The most waiting inputs that the observer is told of when a run is suspended."""


class SuspensionService(KeyService):
    """Stores suspended runs of the current key, and resumes them.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.

    Attributes:
        input_has_ended: True if the input has ended.
        released: Wakes released runs; None if there are none.
    """

    def __init__(self, shared: RunEnvironment, state: KeyedState, clock: Callable[[], int]) -> None:
        self._codec = shared.codec
        self._submission = shared.submission
        self._state = state
        self._clock = clock
        self._open_waits = shared.telemetry.run_metrics.open_waits
        self.input_has_ended = False
        self.released: ReleasedRuns | None = None
        shared.telemetry.run_metrics.add_gauges("waits", self._open_waits.read)
        self._observe = shared.telemetry.observers.input_blocked
        self._observed: dict[str, int] = {}

    # -- keys without actors ----------------------------------------------------------

    def blocks(self, head: Head) -> bool:
        """Return True if the inputs of a key without an actor wait for the end of a suspended run."""
        return head.suspended is not None

    def blocked(self, key_text: str, head: Head) -> None:
        """Tell the observer which runs of a key will follow its suspended one, each once."""
        if self._observe is None or head.suspended is None:
            return
        # The input of the suspended run still waits, and its run has the first of these numbers.
        first = head.suspended[1]
        last = first + head.waiting - 1
        start = max(first, self._observed.get(key_text, first)) + 1
        for sequence_number in range(start, min(last, start + MOST_AT_ONCE - 1) + 1):
            self._observe(head.journal_id, key_text, sequence_number)
        self._observed[key_text] = last

    def rests(self, head: Head, key_text: str) -> bool:
        """Return True if the suspended run of a key still waits."""
        if head.suspended is None or self.input_has_ended or head.is_due(self._clock()):
            return False
        suspension = self._stored(head.suspended[0])
        if suspension.submission != self._submission:
            # Replay it: new code may have another timeout, or may not wait any more.
            return False
        # The run is from an earlier attempt. Its wait is counted again.
        since = suspension.started_at / 1000
        self._open_waits.suspended(key_text, suspension.seq, suspension.waits, since)
        return True

    # -- actors -----------------------------------------------------------------------

    def resuming(self, actor: KeyActor) -> None:
        """Put the suspended run of an actor's key first, before all other inputs."""
        if actor.head.suspended is None:
            return
        resumed = self._resume(actor.head.suspended[0])
        actor.resumed = resumed.number
        self._open_waits.resumed(actor.key_text, resumed.run_seq)
        recovery = actor.runs.recovery
        if recovery is not None and recovery.order is None:
            recovery.resumes = resumed
            return
        actor.next_seq = max(actor.next_seq, resumed.seq + 1)
        self.operator.waits.loop.submit(actor, resumed)

    def _resume(self, number: int) -> QueuedInput:
        """Return the suspended run of input ``number``, for the actor of its key."""
        suspension = self._stored(number)
        packed = self._state.pending.get(number)
        assert packed is not None
        record, timestamp = read_input(self._codec, packed)
        return QueuedInput(record, timestamp, number, packed, suspension.seq, suspension=suspension)

    # -- commits ----------------------------------------------------------------------

    def committing(self, ended: EndedRun, actor: KeyActor, timers: Timers, out: Emission) -> None:
        """Store a run that was suspended, or remove the stored form of one that has finished."""
        suspension = ended.suspension
        if suspension is None:
            self._finish(ended, actor)
            return
        self._open_waits.suspended(actor.key_text, suspension.seq, suspension.waits)
        if not ended.frees_key:
            self._suspend(ended, suspension, actor.head, timers)

    def _suspend(self, ended: EndedRun, suspension: Suspension, head: Head, timers: Timers) -> None:
        """Store an actor's last run. Its inputs stay in state, and wait for its end."""
        # Entry, mailbox and head change in one call of Flink, so a crash leaves all or none.
        self._state.pending.suspend(suspension)
        due = suspension.due
        now = self._clock()
        head.suspended = suspension.number, suspension.seq, 0 if ended.resumes else due
        if due is not None:
            # Never in the past: Flink would fire it in the same loop.
            timers.register_processing_time_timer(max(due, now + 1))
        ended.resumes |= self.input_has_ended or (due is not None and due <= now)

    def _finish(self, ended: EndedRun, actor: KeyActor) -> None:
        """Remove the stored form of a run that is committed now."""
        if ended.run.waits is None and not ended.resumed:
            return
        head = actor.head
        if head.suspended is not None and head.suspended[0] == ended.number:
            self._state.pending.end_suspension(head.suspended[0])
            head.suspended = None
            self._observed.pop(actor.key_text, None)
        self._open_waits.resumed(actor.key_text, ended.run.sequence_number)

    def after_commit(self, actor: KeyActor, last: EndedRun | None, timers: Timers) -> None:
        """Release an actor whose last run was suspended, and resume that run if it can be."""
        head = actor.head
        key_text = actor.key_text
        operator = self.operator
        if last is None:
            return
        resumes = last.resumes
        if head.ends and self.wake_marked(head, key_text):
            # It was suspended at the moment when a user wanted it to end.
            self._state.head.update(head.pack())
            resumes = True
        # Later inputs stay in state. The next actor reads them again.
        operator.waits.loop.withdraw(actor.runs)
        operator.feeder.drop(actor)
        operator.waits.loop.suspender.forget(actor.runs)
        del operator.actors[key_text]
        # As in `AgentProcessor.release`: a recovery refers to its actor.
        actor.runs.recovery = None
        # The timer at the end of a bounded input stays: it resumes the run.
        if resumes:
            operator.make_actor(head, key_text, True, timers)
            return
        operator.cache.keep(key_text, head, {}, False, searched=False)
        if head.has_pending:
            operator.blocked(key_text, head)

    # -- what wakes suspended runs ----------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Resume the suspended runs of the current key whose time has come."""
        operator = self.operator
        head = operator.head_of(key_text) if at < START else None
        if head is None:
            return
        actor = operator.actors.get(key_text)
        if self.released is not None and head.released:
            self.released.wake_due(head, key_text, actor, at, timers)
        if head.suspended is None or actor is not None:
            return
        if head.is_due(self._clock()):
            operator.waits.check_failure()
            operator.make_actor(head, key_text, True, timers)
        elif (due := head.suspended[2]) is not None and due <= at:
            # The timer came before its time, by this clock.
            timers.register_processing_time_timer(max(self._clock(), at) + 1)

    def wake_marked(self, head: Head, key_text: str) -> bool:
        """Wake the runs of a key that a user wants to end; returns True if there are any."""
        has_woken = self.released is not None and self.released.wake_marked(head, key_text)
        if head.suspended is not None and head.suspended[1] in head.ends:
            has_woken = head.resume_now()
        return has_woken

    def resume_woken(self, head: Head, key_text: str, actor: KeyActor | None, timers: Timers) -> None:
        """Resume the runs of the current key that a signal or a request has woken."""
        operator = self.operator
        released = self.released
        if actor is not None:
            if (
                released is not None
                and actor.runs.suspended is None
                and released.has_woken(head, actor.woken)
            ):
                operator.feed(actor, timers)
            return
        has_turn = head.suspended is None and released is not None and released.has_woken(head)
        if has_turn or head.is_due(self._clock()):
            operator.waits.check_failure()
            operator.make_actor(head, key_text, True, timers)

    # -- the end of a bounded input ---------------------------------------------------

    def input_ended(self) -> bool:
        """Resume suspended runs, and end their waits for signals; return True the first time."""
        first = not self.input_has_ended
        self.input_has_ended = True
        if first:
            self.operator.waits.loop.suspender.end_of_input()
        return first

    # -- state ------------------------------------------------------------------------

    def _stored(self, number: int) -> Suspension:
        suspension = self._state.pending.suspension(number)
        assert suspension is not None
        return suspension
