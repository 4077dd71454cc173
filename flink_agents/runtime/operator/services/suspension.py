"""The suspended runs of a key in its state: one list, in the head of the key.

When a run waits for something that outlasts its execution, it is *suspended*: in one update of its key, its
stored form is put into state, the signals that it took are removed, and its outputs leave. From then on,
nothing of it is in the process. A run is suspended in one of two ways. If it *blocks* its key, its input
stays in ``pending``, and no other run of the key starts before it has ended. If it *frees* its key, other
inputs run meanwhile: then its entry contains its input, and each continuation is a part of the run with a
number of its own.

A timer, a signal or a request *wakes* a run. One that blocks its key resumes with its input. For one that
frees its key, a wake-up is added to ``pending``, and has its turn like an input. Each run has at most one
wake-up until it is suspended again or committed. The bytes of a wake-up depend only on the number of the run
and of its part, so a replay finds the records after it.

A run that is awake gets an actor, which replays its records up to the open waits, which end there. The entry
in state stays unchanged until the run is suspended again or committed, again in one update. So whatever ended
a wait, a crash leaves both the open wait and the timer or signal that ends it, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor, QueuedInput, RunEnd
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.services.service import START, Emission, KeyService
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers
from flink_agents.runtime.state.pending import read_input
from flink_agents.runtime.state.suspended import ListedRun, Suspension

MOST_AT_ONCE = 1000
"""The most waiting inputs that the observer is told of when a run is suspended."""

_WAKE_UP = "wake-up"


class SuspendedRuns(KeyService):
    """The suspended runs of the current key: stores, wakes and resumes them. Only for Flink's task thread.

    A run *sleeps* in state, is *woken* when it may continue, and *resumes* when an actor executes it.

    If a method does not say that it writes the head, the caller does.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        low: The low watermark; None if outputs need no timestamps.

    Attributes:
        input_has_ended: True if the input has ended.
        may_have_waits: True if any key may have suspended runs or signals. Most agents never wait.
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
        self._open_waits = shared.telemetry.run_metrics.open_waits
        shared.telemetry.run_metrics.add_gauges("waits", self._open_waits.read)
        self._observe = shared.telemetry.observers.input_blocked
        self.input_has_ended = False
        self.may_have_waits = False
        # The last input of a key that the observer was told of.
        self._observed: dict[str, int] = {}
        # Keys with runs that free them whose records of earlier attempts were read.
        self._searched: set[str] = set()

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find out if keys may have suspended runs or signals, which are stored with waiting inputs."""
        if waiting:
            self.expect_waits()
        return False

    def expect_waits(self) -> None:
        """Note that a key may have suspended runs or signals from now on, and timers for them."""
        self.may_have_waits = self.operator.has_key_timers = True

    # -- the list ---------------------------------------------------------------------

    def add(self, suspension: Suspension, key_text: str, head: Head, timers: Timers) -> None:
        """Store a run that is suspended now, list it in the head, and register a timer for its first wait."""
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
        # Entry and list change in the call of Flink that commits the run: a restore finds both or neither.
        head.suspended = remaining_runs
        self._observed.pop(key_text, None)
        if not remaining_runs:
            self._searched.discard(key_text)

    def suspension(self, run: ListedRun) -> Suspension:
        """Return the stored form of a run that the head lists."""
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
        """Return True if a woken run has not resumed, and no other run blocks the key.

        Args:
            head: The head of the key.
            resumed: Numbers of the entries with which runs have resumed.
        """
        blocking = head.blocking
        if blocking is not None and blocking.number not in resumed:
            return blocking.woken is not None
        return any(number not in resumed for number in self.woken(head))

    def woken(self, head: Head) -> Sequence[int]:
        """Return the numbers of the wake-ups in ``pending``, which queue with the inputs of the key."""
        return [run.woken for run in head.suspended if run.woken is not None and not run.blocks]

    def resume(self, head: Head, number: int, packed: bytes, seq: int) -> QueuedInput | None:
        """Return the run that entry ``number`` of ``pending`` resumes; None if the entry is an input.

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

    # -- keys without actors ----------------------------------------------------------

    def blocks(self, head: Head) -> bool:
        """Return True if the inputs of a key without an actor wait until a suspended run ends."""
        return head.blocking is not None or (self.hold_inputs(head) and not self.has_woken(head))

    def blocked(self, key_text: str, head: Head) -> None:
        """Tell the observer which runs wait for the one that blocks the key, each once."""
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
        """Return True if nothing of a restored key can run now. Wakes runs that are due, or of other code."""
        if self.input_has_ended:
            self.wake_unread(head, key_text)
        blocking = head.blocking
        if blocking is not None and blocking.is_due(self._clock()):
            self.wake_blocking(head, key_text)
        # Replay them: new code may have another timeout, or may not wait any more.
        if self._wake_of_other_code(head, key_text):
            self._state.write(head)
        if self.has_turn(head):
            return False
        for run in head.suspended:
            # It is from an earlier attempt. Its wait is counted again.
            suspension = self.suspension(run)
            since = suspension.started_at / 1000
            self._open_waits.suspended(key_text, suspension.seq, suspension.waits, since)
        return True

    def note_resumed(self, head: Head, key_text: str) -> None:
        """Stop counting the wait of the run that blocks the key: it resumes with the key's new actor."""
        if (blocking := head.blocking) is not None:
            self._open_waits.resumed(key_text, blocking.seq)

    # -- commits ----------------------------------------------------------------------

    def take_over(self, ended: RunEnd, actor: KeyActor, timers: Timers) -> None:
        """List a run that was suspended, or remove one that has finished."""
        head = actor.head
        key_text = actor.key_text
        suspension = ended.suspension
        if suspension is None:
            self._open_waits.resumed(key_text, ended.run.sequence_number)
            if head.suspended and ended.number is not None:
                self.remove(head, key_text, ended.number)
            return
        self.expect_waits()
        self._open_waits.suspended(key_text, suspension.seq, suspension.waits)
        self.add(suspension, key_text, head, timers)
        if self.input_has_ended:
            self.wake_all(head, key_text)
        # If records say that the part ends here, the next part may have records as well.
        if ended.replayed:
            self.wake_run(head, key_text, suspension.seq)
        self.wake_due(head, key_text)

    def continue_key(self, actor: KeyActor, was_suspended: bool, timers: Timers) -> None:
        """Remove an actor whose last run was suspended, and create another one if anything can run."""
        head = actor.head
        key_text = actor.key_text
        operator = self.operator
        if self.input_has_ended and head.suspended:
            self.wake_unread(head, key_text)
        if not was_suspended:
            return
        # It was suspended at the moment when a user wanted it to end.
        if head.ends and self.wake_marked(head, key_text):
            self._state.write(head)
        # First: the next actor reads all inputs from state, also those that this one had chosen.
        operator.withdraw(actor)
        if self.has_turn(head):
            operator.make_actor(head, key_text, True, timers)
            return
        operator.cache.store_key(key_text, head, {}, False, searched=False)
        if head.has_pending:
            operator.blocked(key_text, head)

    # -- what wakes runs --------------------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Wake the suspended runs of the current key whose time has come, and resume them."""
        head = self.operator.head_of(key_text) if at < START else None
        if head is None or not head.suspended:
            return
        # Before an actor exists, which writes the head at its first commit: a checkpoint until then must not
        # have a wake-up that no head lists.
        if self.wake_due(head, key_text):
            self._state.write(head)
        self._register_again(head, at, timers)
        self.resume_woken(head, key_text, self.operator.actors.get(key_text), timers)

    def _register_again(self, head: Head, fired: int, timers: Timers) -> None:
        """Register another timer if the one that fired came before a wait's end, by this clock."""
        now = self._clock()
        asleep = [run for run in head.suspended if run.woken is None]
        if any(run.due is not None and now < run.due <= fired for run in asleep):
            timers.register_processing_time_timer(max(now, fired) + 1)

    def wake(self, head: Head, key_text: str, is_wanted: Callable[[ListedRun], bool]) -> bool:
        """Wake the sleeping runs of the current key that ``is_wanted`` selects; return True for any."""
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
        """Wake all runs, so that the records of the key are read; return True if one slept."""
        return self.wake(head, key_text, lambda run: True)

    def wake_blocking(self, head: Head, key_text: str) -> bool:
        """Wake the run that blocks the key, if there is one; return True if it slept."""
        return self.wake(head, key_text, lambda run: run.blocks)

    def wake_due(self, head: Head, key_text: str) -> bool:
        """Wake the sleeping runs whose first wait has ended by its time; return True if there are any."""
        if not head.suspended:
            return False
        now = self._clock()
        return self.wake(head, key_text, lambda run: run.is_due(now))

    def wake_marked(self, head: Head, key_text: str) -> bool:
        """Wake the sleeping runs that a user wants to end; return True if there are any."""
        return self.wake(head, key_text, lambda run: run.seq in head.ends)

    def wake_first(self, head: Head, key_text: str) -> None:
        """Wake the runs that a new actor of the key has to resume, beginning with one that blocks the key."""
        self.wake_blocking(head, key_text)
        self.wake_unread(head, key_text)

    def wake_unread(self, head: Head, key_text: str) -> None:
        """Wake the runs of which an earlier attempt may have recorded more; all if the input has ended.

        Writes the head if it wakes one.
        """
        if self.input_has_ended:
            has_woken = self.wake_all(head, key_text)
        else:
            has_woken = self._wake_searched(head, key_text)
        # The new wake-ups are in the head, so both are written in one call of Flink.
        if has_woken:
            self._state.write(head)

    def _wake_searched(self, head: Head, key_text: str) -> bool:
        """Wake the runs that free the key, once for each key whose earlier records may be in the store."""
        frees_key = any(not run.blocks for run in head.suspended)
        if not frees_key or key_text in self._searched:
            return False
        if not self.operator.heads.may_have_records(head, key_text, True):
            return False
        self._searched.add(key_text)
        return self.wake(head, key_text, lambda run: not run.blocks)

    def _wake_of_other_code(self, head: Head, key_text: str) -> bool:
        """Wake the runs that another submission of the job has suspended; return True if there are any.

        The code may differ since then.
        """
        return self.wake(head, key_text, lambda run: self.suspension(run).submission != self._submission)

    def replay_changed(self, actor: KeyActor, timers: Timers) -> None:
        """Resume the runs of a key with an actor that another submission of the job has suspended."""
        head = actor.head
        if self._wake_of_other_code(head, actor.key_text):
            self._state.write(head)
            self.resume_woken(head, actor.key_text, actor, timers)

    def resume_woken(self, head: Head, key_text: str, actor: KeyActor | None, timers: Timers) -> None:
        """Resume the woken runs of the current key; create its actor if it has none."""
        operator = self.operator
        if actor is None:
            if self.has_woken(head):
                operator.loop_access.check_failure()
                operator.make_actor(head, key_text, True, timers)
        elif actor.suspended is None and self.has_woken(head, actor.woken):
            operator.feed(actor, timers)

    # -- the end of a bounded input ---------------------------------------------------

    def end_input(self) -> bool:
        """Note that the input has ended, which ends all waits for signals.

        Returns:
            True, once, if keys may have suspended runs that are still to be found.
        """
        first = not self.input_has_ended
        # Before the loop knows it: a run that is suspended from now on is woken at once.
        self.input_has_ended = True
        if first:
            self.operator.loop_access.end_of_input()
        return first and self.may_have_waits


def wake_up(codec: ValueCodec, run: ListedRun) -> bytes:
    """Return the bytes of the wake-up of a run: a list of three. Those of an input are a list of two."""
    return codec.encode([_WAKE_UP, run.seq, run.part])
