"""The suspended runs of a key in its state: one list, in the head of the key.

A run is suspended in one of two ways. If it *blocks* its key, its input stays in ``pending``, and no other
run of the key starts before it has ended. If it *frees* its key, other inputs run meanwhile: then its entry
contains its input, and each continuation is a part of the run with a number of its own.

A timer, a signal or a request *wakes* a run. One that blocks its key resumes with its input. For one that
frees its key, a wake-up is added to ``pending``, and has its turn like an input. Each run has at most one
wake-up until it is suspended again or committed. The bytes of a wake-up depend only on the number of the run
and of its part, so a replay finds the records after it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import QueuedInput
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.pending import read_input
from flink_agents.runtime.state.suspended import ListedRun, Suspension

_WAKE_UP = "wake-up"


class SuspendedRuns:
    """Lists the suspended runs of the current key, wakes them, and reads them to be resumed.

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
        self._most = shared.config.get(AgentOptions.MAX_SUSPENDED_PER_KEY)
        # Keys with runs that free them whose records of earlier attempts were read.
        self._searched: set[str] = set()

    # -- the list ---------------------------------------------------------------------

    def add(self, suspension: Suspension, key_text: str, head: Head, timers: Timers) -> None:
        """Store a run that is suspended now, and list it."""
        # Entry and head change in one call of Flink, so a crash leaves both or none.
        self._state.pending.suspend(suspension)
        if suspension.frees_key:
            # Records of earlier attempts were read when the key got its actor.
            self._searched.add(key_text)
        stored = ListedRun.from_suspension(suspension)
        runs = list(head.suspended)
        # A run must be listed once, or its end would leave an entry behind. It may have blocked its key.
        places = [place for place, run in enumerate(runs) if run.seq == suspension.seq]
        for place in places:
            runs[place] = stored
        head.suspended = runs if places else [*runs, stored]
        if suspension.due is not None:
            # Never in the past: Flink would fire it in the same loop.
            timers.register_processing_time_timer(max(suspension.due, self._clock() + 1))

    def remove(self, head: Head, key_text: str, number: int) -> None:
        """Remove the run that entry ``number`` of ``pending`` has resumed, because it is committed now."""
        remaining_runs: list[ListedRun] = []
        for run in head.suspended:
            if run.woken == number:
                self._state.pending.end_suspension(run.number)
            else:
                remaining_runs.append(run)
        head.suspended = remaining_runs
        if not remaining_runs:
            self._searched.discard(key_text)

    def suspension(self, run: ListedRun) -> Suspension:
        """Return the stored form of a run."""
        suspension = self._state.pending.suspension(run.number)
        assert suspension is not None
        return suspension

    # -- turns ------------------------------------------------------------------------

    def hold_inputs(self, head: Head, resumed: Container[int] = ()) -> bool:
        """Return True if the inputs of a key have to wait for its suspended runs.

        Args:
            head: The head of the key.
            resumed: Numbers of the entries with which runs have resumed.
        """
        blocking = head.blocking
        if blocking is None:
            return len(head.suspended) >= self._most
        return blocking.number not in resumed or len(head.suspended) > self._most

    def has_turn(self, head: Head) -> bool:
        """Return True if anything of a key without an actor may run now: an input, or a woken run."""
        return head.has_pending and (self.has_woken(head) or not self.hold_inputs(head))

    def has_woken(self, head: Head, resumed: Container[int] = ()) -> bool:
        """Return True if a run is awake that has not resumed, and that no other one blocks."""
        blocking = head.blocking
        if blocking is not None and blocking.number not in resumed:
            return blocking.woken is not None
        return any(number not in resumed for number in self.woken(head))

    def woken(self, head: Head) -> Sequence[int]:
        """Return the numbers of the wake-ups of a key, which queue with its inputs."""
        return [run.woken for run in head.suspended if run.woken is not None and not run.blocks]

    def resume(self, head: Head, number: int, packed: bytes, seq: int) -> QueuedInput | None:
        """Return the run that entry ``number`` of ``pending`` resumes; None if that is another input.

        Args:
            head: The head of the current key.
            number: Number of the entry.
            packed: The bytes of that entry.
            seq: Sequence number of the next part of the run, if it does not block its key.
        """
        woken = next((run for run in head.suspended if run.woken == number), None)
        if woken is None:
            return None
        suspension = self.suspension(woken)
        record, timestamp = read_input(self._codec, suspension.input or packed)
        part_seq = suspension.seq if woken.blocks else seq
        return QueuedInput(record, timestamp, number, packed, part_seq, suspension=suspension)

    # -- what wakes runs --------------------------------------------------------------

    def wake(self, head: Head, key_text: str, is_wanted: Callable[[ListedRun], bool]) -> bool:
        """Wake runs of the current key; returns True if one was asleep."""
        runs = list(head.suspended)
        has_woken = False
        for place, run in enumerate(runs):
            if run.woken is not None or not is_wanted(run):
                continue
            has_woken = True
            if run.blocks:
                runs[place] = run._replace(woken=run.number)
                continue
            number = head.next_pending
            # In `pending`, so that the run has its turn among inputs, also after a restart.
            self._state.pending.put_wake_up(number, wake_up(self._codec, run))
            head.next_pending += 1
            runs[place] = run._replace(woken=number)
            if self._low is not None:
                # Outputs of the run may be late. The low watermark has to know it.
                self._low.woken(key_text, number)
        if has_woken:
            head.suspended = runs
        return has_woken

    def wake_run(self, head: Head, key_text: str, seq: int) -> None:
        """Wake the run with sequence number ``seq``."""
        self.wake(head, key_text, lambda run: run.seq == seq)

    def wake_all(self, head: Head, key_text: str) -> bool:
        """Wake all runs, so that the records of the key are read; returns True if one was asleep."""
        return self.wake(head, key_text, lambda run: True)

    def wake_blocking(self, head: Head, key_text: str) -> bool:
        """Wake the run that blocks the key, if there is one; returns True if it was asleep."""
        return self.wake(head, key_text, lambda run: run.blocks)

    def wake_due(self, head: Head, key_text: str) -> bool:
        """Wake the runs whose time has come; returns True if there are any."""
        if not head.suspended:
            return False
        now = self._clock()
        return self.wake(head, key_text, lambda run: run.is_due(now))

    def wake_searched(self, head: Head, key_text: str, may_have: Callable[[], bool]) -> bool:
        """Wake the runs that free the key, once for each key whose earlier records may be in the store."""
        frees_key = any(not run.blocks for run in head.suspended)
        if not frees_key or key_text in self._searched or not may_have():
            return False
        self._searched.add(key_text)
        return self.wake(head, key_text, lambda run: not run.blocks)

    def wake_of_other_code(self, head: Head, key_text: str) -> bool:
        """Wake the runs that another submission of the job has suspended: its code may differ.

        Returns True if there are any.
        """
        return self.wake(head, key_text, lambda run: self.suspension(run).submission != self._submission)

    def register_again(self, head: Head, fired: int, timers: Timers) -> None:
        """Register another timer if this one fired too early, by this clock."""
        now = self._clock()
        asleep = [run for run in head.suspended if run.woken is None]
        if any(run.due is not None and now < run.due <= fired for run in asleep):
            timers.register_processing_time_timer(max(now, fired) + 1)


def wake_up(codec: ValueCodec, run: ListedRun) -> bytes:
    """Return the bytes of a wake-up. An input is a list of two, so it never looks the same."""
    return codec.encode([_WAKE_UP, run.seq, run.part])
