"""Interleaved runs in keyed state.

A suspended run is *interleaved* if the agent lets other inputs of its key run meanwhile. Its entry contains
its input, and the head of the key lists it. A timer or a signal *wakes* it: a wake-up is added to
``pending``, and has its turn like an input. Each run has at most one wake-up until it is suspended again or
committed. The bytes of a wake-up depend only on the number of the run and of its part, so a replay finds the
records after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.queued_input import QueuedInput
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.pending import read_input
from flink_agents.runtime.state.suspended import ReleasedRun, StoredSignalWait, Suspension

_WAKE_UP = "wake-up"


class InterleavedRuns:
    """Stores the interleaved runs of the current key.

    Only for Flink's task thread. The caller writes the head.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        low: The low watermark; None if outputs need no timestamps.
    """

    def __init__(
        self, shared: RunEnvironment, state: KeyedState, clock: Callable[[], int], low: LowWatermark | None
    ) -> None:
        self._codec = shared.codec
        self._submission = shared.submission
        self._state = state
        self._clock = clock
        self._low = low
        self._most = shared.settings.max_suspended_per_key
        # Keys with such runs whose records of earlier attempts were read.
        self._searched: set[str] = set()

    # -- runs -------------------------------------------------------------------------

    def keep(self, suspension: Suspension, key_text: str, head: Head, timers: Timers) -> None:
        """Store an interleaved run."""
        # Records of earlier attempts were read when the key got its actor.
        self._searched.add(key_text)
        self._state.pending.suspend(suspension)
        due = suspension.due
        names = [wait.name for wait in suspension.waits if isinstance(wait, StoredSignalWait)]
        stored = ReleasedRun(suspension.number, suspension.seq, len(suspension.parts), due, None, names)
        released = list(head.released)
        places = [place for place, run in enumerate(released) if run.seq == suspension.seq]
        for place in places:
            released[place] = stored
        head.released = released if places else [*released, stored]
        if due is not None:
            timers.register_processing_time_timer(max(due, self._clock() + 1))

    def end(self, head: Head, key_text: str, number: int) -> None:
        """Remove the stored form of the run that wake-up ``number`` resumed, because it is committed now."""
        remaining_runs: list[ReleasedRun] = []
        for run in head.released:
            if run.woken == number:
                self._state.pending.end_suspension(run.number)
            else:
                remaining_runs.append(run)
        head.released = remaining_runs
        if not remaining_runs:
            self._searched.discard(key_text)

    def is_full(self, head: Head) -> bool:
        """Return True if the number of interleaved runs is at its limit, so that inputs must wait."""
        return len(head.released) >= self._most

    def has_turn(self, head: Head) -> bool:
        """Return True if anything of a key may run now: an input, or a wake-up."""
        return head.has_pending and (not self.is_full(head) or bool(self.woken(head)))

    def woken(self, head: Head) -> Sequence[int]:
        """Return the numbers of the wake-ups of a key."""
        return [run.woken for run in head.released if run.woken is not None]

    # -- wake-ups ---------------------------------------------------------------------

    def wake(self, head: Head, key_text: str, wanted: Callable[[ReleasedRun], bool]) -> bool:
        """Wake runs of the current key; returns True if there is a new wake-up."""
        released = list(head.released)
        has_wake_up = False
        for place, run in enumerate(released):
            if run.woken is not None or not wanted(run):
                continue
            number = head.next_pending
            # In `pending`, so that the run has its turn among inputs, also after a restart.
            self._state.pending.put_wake_up(number, wake_up(self._codec, run))
            head.next_pending += 1
            released[place] = run._replace(woken=number)
            has_wake_up = True
            if self._low is not None:
                # Outputs of the run may be late. The low watermark has to know it.
                self._low.woken(key_text, number)
        if has_wake_up:
            head.released = released
        return has_wake_up

    def wake_due(self, head: Head, key_text: str) -> bool:
        """Wake the runs whose time has come; returns True if there are any."""
        if not head.released:
            return False
        now = self._clock()
        return self.wake(head, key_text, lambda run: run.due is not None and run.due <= now)

    def wake_searched(self, head: Head, key_text: str, may_have: Callable[[], bool]) -> bool:
        """Wake all runs, once for each key whose records of earlier attempts may be in the store."""
        if not head.released or key_text in self._searched or not may_have():
            return False
        self._searched.add(key_text)
        return self.wake(head, key_text, lambda run: True)

    def wake_others(self, head: Head, key_text: str) -> bool:
        """Wake the runs that another submission of the job has suspended: its code may differ.

        Returns True if there are any.
        """
        return self.wake(head, key_text, lambda run: self.suspension(run).submission != self._submission)

    def look_again(self, head: Head, fired: int, timers: Timers) -> None:
        """Register another timer if this one fired too early, by this clock."""
        now = self._clock()
        if any(run.woken is None and run.due is not None and now < run.due <= fired for run in head.released):
            timers.register_processing_time_timer(max(now, fired) + 1)

    def resumed(self, head: Head, number: int, packed: bytes, seq: int) -> QueuedInput | None:
        """Return the run that wake-up ``number`` resumes; None if ``number`` is that of an input.

        Args:
            head: The head of the current key.
            number: Number of an entry that waits in ``pending``.
            packed: The bytes of that entry. The run's own input is in its stored form.
            seq: Sequence number of the next part of the run.
        """
        woken = next((run for run in head.released if run.woken == number), None)
        if woken is None:
            return None
        suspension = self.suspension(woken)
        assert suspension.input is not None
        record, timestamp = read_input(self._codec, suspension.input)
        return QueuedInput(record, timestamp, number, packed, seq, suspension=suspension)

    def suspension(self, run: ReleasedRun) -> Suspension:
        """Return the stored form of a run."""
        suspension = self._state.pending.suspension(run.number)
        assert suspension is not None
        return suspension


def wake_up(codec: ValueCodec, run: ReleasedRun) -> bytes:
    """Return the bytes of a wake-up. An input is a list of two, so it never looks the same."""
    return codec.encode([_WAKE_UP, run.seq, run.part])
