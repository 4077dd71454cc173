"""Suspended runs as a key service: suspends runs, and resumes each when its time, or a signal, has come.

When a run waits for something that outlasts its execution, it is *suspended*: in one update of its key, its
stored form is put into state, the signals that it took are removed, and its outputs leave. From then on,
nothing of it is in the process. A timer or a signal wakes it: an actor replays its records up to the open
waits, which end there. The entry in state stays unchanged until the run is suspended again or committed,
again in one update. So whatever ended a wait, a crash leaves both the open wait and the timer or signal that
ends it, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor, RunEnd
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.end_times import START
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.signal_store import SignalStore
from flink_agents.runtime.operator.waits.suspended_runs import SuspendedRuns
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers

MOST_AT_ONCE = 1000
"""The most waiting inputs that the observer is told of when a run is suspended."""


class SuspensionService(KeyService):
    """Suspends the runs of the current key, wakes them, and resumes them.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        runs: The suspended runs in state.
        signals: The signals in state, which runs take.

    Attributes:
        input_has_ended: True if the input has ended.
        may_have_waits: True if any key may have suspended runs or signals. Most agents never wait.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        runs: SuspendedRuns,
        signals: SignalStore,
    ) -> None:
        self._state = state
        self._clock = clock
        self._runs = runs
        self._signals = signals
        self._open_waits = shared.telemetry.run_metrics.open_waits
        self.input_has_ended = False
        shared.telemetry.run_metrics.add_gauges("waits", self._open_waits.read)
        self._observe = shared.telemetry.observers.input_blocked
        self.may_have_waits = False
        self._observed: dict[str, int] = {}

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find out if keys may have suspended runs or signals, which are stored with waiting inputs."""
        if waiting:
            self.expect_waits()
        return False

    def expect_waits(self) -> None:
        """Note that a key may have suspended runs or signals from now on, and timers for them."""
        self.may_have_waits = self.operator.has_key_timers = True

    # -- keys without actors ----------------------------------------------------------

    def blocks(self, head: Head) -> bool:
        """Return True if the inputs of a key without an actor wait for its suspended runs."""
        runs = self._runs
        return head.blocking is not None or (runs.hold_inputs(head) and not runs.has_woken(head))

    def blocked(self, key_text: str, head: Head) -> None:
        """Tell the observer which runs of a key will follow the one that blocks it, each once."""
        blocking = head.blocking
        if self._observe is None or blocking is None:
            return
        # The input of the suspended run still waits, and its run has the first of these numbers.
        first = blocking.seq
        last = first + head.waiting - 1
        start = max(first, self._observed.get(key_text, first)) + 1
        for sequence_number in range(start, min(last, start + MOST_AT_ONCE - 1) + 1):
            self._observe(head.journal_id, key_text, sequence_number)
        self._observed[key_text] = last

    def rests(self, head: Head, key_text: str) -> bool:
        """Return True if nothing of a restored key may run before its suspended runs are woken."""
        runs = self._runs
        if self.input_has_ended:
            self.wake_unread(head, key_text)
        blocking = head.blocking
        if blocking is not None and blocking.is_due(self._clock()):
            runs.wake_blocking(head, key_text)
        # Replay them: new code may have another timeout, or may not wait any more.
        if runs.wake_of_other_code(head, key_text):
            self._state.head.update(head.pack())
        if runs.has_turn(head):
            return False
        for run in head.suspended:
            # It is from an earlier attempt. Its wait is counted again.
            suspension = runs.suspension(run)
            since = suspension.started_at / 1000
            self._open_waits.suspended(key_text, suspension.seq, suspension.waits, since)
        return True

    # -- actors -----------------------------------------------------------------------

    def wake_first(self, head: Head, key_text: str) -> None:
        """Wake runs of a key that is about to get an actor: one that blocks the key resumes first."""
        self._runs.wake_blocking(head, key_text)
        self.wake_unread(head, key_text)

    def equip(self, actor: KeyActor) -> None:
        """Give an actor the signals of its key."""
        head = actor.head
        actor.mailbox = self._signals.active(head)
        if (blocking := head.blocking) is not None:
            self._open_waits.resumed(actor.key_text, blocking.seq)

    # -- commits ----------------------------------------------------------------------

    def take_over(self, ended: RunEnd, actor: KeyActor, timers: Timers, out: Emission) -> None:
        """List a run that was suspended, or remove one that has finished, and the signals that it took.

        The run is listed before signals decide which run gets those that are left.
        """
        head = actor.head
        key_text = actor.key_text
        suspension = ended.suspension
        if suspension is None:
            self._finish(ended, head, key_text)
        else:
            self.expect_waits()
            self._open_waits.suspended(key_text, suspension.seq, suspension.waits)
            self._runs.add(suspension, key_text, head, timers)
            if self.input_has_ended:
                self._runs.wake_all(head, key_text)
            # If records say that the part ends here, the next part may have records as well.
            if ended.replayed:
                self._runs.wake_run(head, key_text, suspension.seq)
            self._runs.wake_due(head, key_text)
        self._signals.remove_taken(ended, head, timers, out)

    def _finish(self, ended: RunEnd, head: Head, key_text: str) -> None:
        """Remove the stored form of a run that is committed now, if it was suspended before."""
        self._open_waits.resumed(key_text, ended.run.sequence_number)
        if head.suspended and ended.number is not None:
            self._runs.remove(head, key_text, ended.number)
            self._observed.pop(key_text, None)

    def continue_key(self, actor: KeyActor, was_suspended: bool, timers: Timers) -> None:
        """Release an actor whose last run was suspended, and resume what can run."""
        head = actor.head
        key_text = actor.key_text
        operator = self.operator
        if self.input_has_ended and head.suspended:
            self.wake_unread(head, key_text)
        if not was_suspended:
            return
        # It was suspended at the moment when a user wanted it to end.
        if head.ends and self.wake_marked(head, key_text):
            self._state.head.update(head.pack())
        operator.withdraw(actor)
        if self._runs.has_turn(head):
            operator.make_actor(head, key_text, True, timers)
            return
        operator.cache.store_key(key_text, head, {}, False, searched=False)
        if head.has_pending:
            operator.blocked(key_text, head)

    # -- what wakes suspended runs ----------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Wake the suspended runs of the current key whose time has come, and resume them."""
        head = self.operator.head_of(key_text) if at < START else None
        if head is None or not head.suspended:
            return
        if self._runs.wake_due(head, key_text):
            self._state.head.update(head.pack())
        self._runs.register_again(head, at, timers)
        self.resume_woken(head, key_text, self.operator.actors.get(key_text), timers)

    def wake_marked(self, head: Head, key_text: str) -> bool:
        """Wake the runs of a key that a user wants to end; returns True if there are any."""
        return self._runs.wake(head, key_text, lambda run: run.seq in head.ends)

    def wake_unread(self, head: Head, key_text: str) -> None:
        """Wake runs of a key if an earlier attempt may have recorded more of them; all if the input ended."""
        if self.input_has_ended:
            has_woken = self._runs.wake_all(head, key_text)
        else:
            may_have = self.operator.heads.may_have_records
            has_woken = self._runs.wake_searched(head, key_text, lambda: may_have(head, key_text, True))
        # The new wake-ups are in the head, so both are written in one call of Flink.
        if has_woken:
            self._state.head.update(head.pack())

    def replay_changed(self, actor: KeyActor, timers: Timers) -> None:
        """Replay the suspended runs of a restored key that has an actor, if their code may have changed."""
        head = actor.head
        if self._runs.wake_of_other_code(head, actor.key_text):
            self._state.head.update(head.pack())
            self.resume_woken(head, actor.key_text, actor, timers)

    def resume_woken(self, head: Head, key_text: str, actor: KeyActor | None, timers: Timers) -> None:
        """Resume the runs of the current key that are awake."""
        operator = self.operator
        if actor is None:
            if self._runs.has_woken(head):
                operator.loop_access.check_failure()
                operator.make_actor(head, key_text, True, timers)
        elif actor.suspended is None and self._runs.has_woken(head, actor.woken):
            operator.feed(actor, timers)

    # -- the end of a bounded input ---------------------------------------------------

    def end_input(self) -> bool:
        """Resume suspended runs, and end their waits for signals; return True if keys have to be found."""
        first = not self.input_has_ended
        self.input_has_ended = True
        if first:
            self.operator.loop_access.end_of_input()
        return first and self.may_have_waits
