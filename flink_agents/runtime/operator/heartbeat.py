"""One timer for all keys: a beat commits whatever has finished, key by key.

A timer per key costs Flink more than the commit itself. Where the operator may make any key current
(:class:`Keys`), one processing-time timer does for all: the agent loop says which actors have to be looked
at, and the beat makes the key of each current, commits, and lets what was put out leave, before it goes on to
the next one. All of it is one call of Flink, so that no checkpoint sees half of it.

No timer says which keys have inputs that wait. Keys of a restored state are found when the operator opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.journal.unpruned import UnprunedKeys
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.operator.emission import NOTHING, Emission, is_something
from flink_agents.runtime.operator.harvest import FIRST_AGENT, START, EndTimes, next_beat
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.waits.delaying import AwaitedKeys, DelayingProcessor
from flink_agents.runtime.operator.waits.pending_work import PendingWork
from flink_agents.runtime.state.keyed_state import KeyedState, Keys, Timers

MOST_COMMITS = 1000
"""After so many actors a beat ends, so that inputs and checkpoints have their turn."""

MOST_WOKEN = 200
"""How many restored keys get their actors in one beat."""

SOON_MS = 2
"""A beat that comes within this time is soon enough for whatever is new."""

AWAITED_MS = 100
"""How often to look for delayed events that are due, if the end of the input waits for nothing else."""


class HeartbeatProcessor(DelayingProcessor):
    """Commits with one timer for all keys. What leaves in a beat goes to ``leave``, while its key is current.

    Args:
        shared: What all runs share.
        state: Keyed state.
        job_id: Identity that new keys get as their journal id.
        clock: The wall-clock time in milliseconds.
        check_cancelled: Called while Flink's thread waits; raises if the task was cancelled.
        low: The low watermark; None where outputs need no timestamps.
        keys: The keys of the subtask.
        leave: Takes what leaves the operator after a commit.
        unpruned: Marks keys whose records are to be pruned; None where nothing is.
        end: When the timers at the end of the input fire.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        job_id: str,
        clock: Callable[[], int],
        check_cancelled: Callable[[], None],
        low: LowWatermark | None,
        keys: Keys,
        leave: Callable[[Emission], None],
        unpruned: UnprunedKeys | None,
        end: EndTimes = FIRST_AGENT,
    ) -> None:
        self._done = deque[KeyActor]()
        super().__init__(shared, state, job_id, clock, check_cancelled, low, self._done, unpruned)
        self._unpruned = unpruned
        self._keys = keys
        self._leave = leave
        # Only Flink's thread touches these: the keys are objects of Java.
        self._key_of: dict[str, Any] = {}
        self._restored: deque[tuple[str, Any]] = deque()
        self._pending_work = PendingWork(shared, state)
        self._unchecked: deque[Any] = deque()
        self._at: int | None = None
        self._fired = 0
        self._waits_for_end = False
        self._awaited: AwaitedKeys | None = None
        self._end = end
        self._has_ended = False
        self._rests = True

    def open(self, timers: Timers | None = None) -> None:
        """Open the store, and find the keys that have inputs in state, or records that nobody has pruned."""
        super().open(timers)
        self._restored.extend(self._keys.waiting())
        if self._low is not None:
            self._low.restored([key_text for key_text, _ in self._restored])
        unpruned = self._unpruned.open() if self._unpruned is not None else None
        if self._restored and timers is not None:
            self._keys.switch(self._restored[0][1])
            self._see_the_end(timers)
            self._arm(timers)
            if self._low is not None:
                self._low.begin(timers)
        elif unpruned is not None and timers is not None:
            self._keys.switch(unpruned)
            self._arm(timers)
        delaying = self._keys.delaying(None if self._pending_work.needed else 1) if timers is not None else ()
        if self._pending_work.needed:
            self._unchecked.extend(delaying)
            if self._shared.may_wait:
                self._unchecked.extend(key for _, key in self._restored)
        if delaying and timers is not None:
            # Their own timers come with the state.
            self._delays.active = True
            self._keys.switch(delaying[0])
            self._see_the_end(timers)
            self._arm(timers)

    @property
    @override
    def is_behind(self) -> bool:
        """Whether runs have ended that this thread is to look at by its next beat."""
        return bool(self._done)

    @property
    def rests(self) -> bool:
        """True if the end of the input, once it is there, has nothing to wait for. Any thread may ask."""
        return self._rests

    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Beat. The timer may be of an older savepoint, and of any key."""
        self.beat(timestamp, timers)
        return NOTHING

    def beat(self, timestamp: int, timers: Timers) -> None:
        """Commit what has finished, of all keys."""
        if timestamp >= START and self._end.is_foreign(timestamp):
            self._see_the_end(timers)
            return
        self._beat(timestamp, timers)
        if self._has_ended:
            self._rests = not (self._actors or self._restored or self._awaited)

    def _beat(self, timestamp: int, timers: Timers) -> None:
        self._note_time(timestamp, timers)
        # These are about the key whose timer has fired.
        if self._shared.may_wait:
            self._tend_current(timestamp, timers)
        if self._delays.active:
            # Behind runs that go on at the same time, as where these events wait with other inputs.
            self._deliver(self._keys.text(), timestamp, timers)
        if self._forgetting is not None:
            self._forget_current(timestamp, timers)
        if timestamp >= START:
            self._end_waits()
            self._end_delays(timestamp, timers)
        if self._unpruned is not None:
            self._unpruned.clear()
        if timestamp == self._end.drain:
            self._drain_all(timers)
        elif not (self._actors or self._has_work):
            return
        elif timestamp == self._end.start:
            self._begin_the_end(timers)
        else:
            self._look_at_all(timers)
        self._arm(timers)

    def _look_at_all(self, timers: Timers) -> None:
        """Commit what has finished, and do what else waits for a beat, if anything does."""
        self._waits.check_failure()
        if self._restored:
            self._wake_restored(MOST_WOKEN, timers)
        self._commit_finished(timers)
        if self._unchecked:
            self._check_restored(MOST_WOKEN)
        if self._awaited is not None:
            self._come_in_awaited(timers)
        if self._unpruned is not None:
            self._unpruned.look()

    def _note_time(self, timestamp: int, timers: Timers) -> None:
        """Note which timer has fired."""
        if timestamp < START:
            if timestamp == self._at or timestamp <= self._clock():
                # A timer in event time may be far ahead, and says nothing of beats.
                self._fired = max(self._fired, timestamp)
                if self._at is not None and self._at <= timestamp:
                    self._at = None
            if self._low is not None:
                self._low.look(timestamp, timers, self._is_held_back)
        elif timestamp == self._end.start:
            self._waits_for_end, self._has_ended = False, True

    def _forget_current(self, timestamp: int, timers: Timers) -> None:
        """Forget the key whose timer has fired, if nothing needs it any more."""
        key_text = self._keys.text()
        if key_text not in self._actors:
            self._forget(key_text, timestamp, timers)

    def _end_waits(self) -> None:
        """Find the keys with suspended runs, which go on at the end of the input."""
        if self._shared.may_wait and not self._ending:
            self._end_input()
            self._restored.extend(self._keys.waiting())

    def _end_delays(self, timestamp: int, timers: Timers) -> None:
        """Find the keys with delayed events: the end of the input waits for these, or lets them come in."""
        if self._awaited is not None or not self._delays.active:
            return
        self._awaited = AwaitedKeys()
        if self._delays.skips and timestamp != self._end.start:
            # All that was pending has come in before a restart.
            self._delays.leaves = True
            return
        for key in self._keys.delaying():
            self._keys.switch(key)
            key_text = self._keys.text()
            self._awaited.note(key_text, key, self._come_in_at_end(key_text, timers))
        self._delays.leaves = self._delays.skips

    def _come_in_awaited(self, timers: Timers) -> None:
        """Let delayed events come in that the end of the input has waited for."""
        while self._awaited is not None and (key := self._awaited.take(self._clock())) is not None:
            self._keys.switch(key)
            key_text = self._keys.text()
            self._awaited.note(key_text, key, self._come_in_at_end(key_text, timers))

    def _tend_current(self, timestamp: int, timers: Timers) -> None:
        """See to suspended runs and signals of the key whose timer has fired."""
        emission = self._tend(self._keys.text(), timestamp, timers)
        if is_something(emission):
            self._leave(emission)

    # -- actors -------------------------------------------------------------------------

    def _made(self, actor: KeyActor, timers: Timers) -> None:
        self._key_of[actor.key_text] = self._keys.current_key()
        self._see_the_end(timers)
        self._arm(timers, actor)

    def _fed(self, actor: KeyActor, timers: Timers) -> None:
        self._arm(timers, actor)

    def _let_go(self, actor: KeyActor, timers: Timers) -> None:
        super()._let_go(actor, timers)
        del self._key_of[actor.key_text]

    def _wake_restored(self, most: int, timers: Timers) -> None:
        """Let restored keys go on, which no timer may have woken."""
        while self._restored and most:
            key_text, key = self._restored.popleft()
            most -= 1
            if key_text not in self._actors:
                self._keys.switch(key)
                self._actor(key_text, timers)

    def _check_restored(self, most: int) -> None:
        """Check whether the code can continue what waits in restored keys, once those have their actors."""
        while self._unchecked and most and not self._restored:
            most -= 1
            self._keys.switch(self._unchecked.popleft())
            key_text = self._keys.text()
            head = self._head_of(key_text)
            if head is not None:
                self._pending_work.check(head, key_text)

    def _commit_finished(self, timers: Timers) -> None:
        """Look at the actors of which the loop says so."""
        for _ in range(min(len(self._done), MOST_COMMITS)):
            actor = self._done.popleft()
            # Several runs of it may have ended, and it may be gone.
            has_news = actor.finished or actor.parked or actor.suspended
            if has_news and self._actors.get(actor.key_text) is actor:
                self._look(actor, timers)

    def _look(self, actor: KeyActor, timers: Timers) -> None:
        key_text = actor.key_text
        self._keys.switch(self._key_of[key_text])
        emission = Emission()
        self._commit(actor, emission, timers)
        if is_something(emission):
            self._leave(emission)
        if self._awaited is not None and not self._delays.leaves:
            self._awaited.note(key_text, self._key_of[key_text], actor.head.delayed_due)
        present = self._actors.get(key_text)
        if present is not actor:
            if present is None:
                del self._key_of[key_text]
        elif actor.head.has_pending:
            self._feed(actor)
        else:
            self._let_go(actor, timers)

    # -- the end of a bounded input -------------------------------------------------------

    def _see_the_end(self, timers: Timers) -> None:
        """Keep a timer at the end of the input; whichever key has it."""
        if not self._waits_for_end:
            self._waits_for_end, self._rests = True, False
            timers.register_event_time_timer(self._end.start)

    def _ignore_the_end(self, timers: Timers) -> None:
        """The timer is there for all keys, and stays."""

    def _begin_the_end(self, timers: Timers) -> None:
        self._wake_restored(len(self._restored), timers)
        self._waits.loop.end_of_input()
        timers.register_event_time_timer(self._end.drain)

    def _drain_all(self, timers: Timers) -> None:
        """Wait for all runs of all keys; each leaves as it ends."""
        self._wake_restored(len(self._restored), timers)
        until = self._waits.next_sign()
        while self._actors or self._awaited:
            seen = self._waits.loop.progress
            self._commit_finished(timers)
            self._come_in_awaited(timers)
            goes_on = bool(self._actors or self._awaited)
            if goes_on and clock() >= until:
                timers.register_event_time_timer(self._end.drain)
                return
            if goes_on and not self._done:
                self._waits.wait(seen)
        if self._shared.may_wait:
            self._end_all_signals(timers)

    def _end_all_signals(self, timers: Timers) -> None:
        """Let signals of all keys leave that nobody has taken."""
        for key_text, key in self._keys.waiting():
            self._keys.switch(key)
            emission = Emission()
            self._end_signals(key_text, emission, timers)
            if is_something(emission):
                self._leave(emission)

    @property
    def _has_work(self) -> bool:
        """Whether a beat has something to do."""
        unpruned = self._unpruned
        has_keys = bool(self._actors or self._restored or self._awaited or self._unchecked)
        return has_keys or (unpruned is not None and unpruned.is_looking)

    # -- the timer ------------------------------------------------------------------------

    def _arm(self, timers: Timers, new: KeyActor | None = None) -> None:
        """Have a beat come when something may have finished. Any key may be current.

        Args:
            timers: Timers of the current key.
            new: The only actor that has something to do since this was called last, if there is one.
        """
        if not (self._actors or self._has_work):
            return
        now = self._clock()
        if self._at is not None and self._at - now <= SOON_MS:
            return
        if self._restored or self._done or self._unchecked or not (self._actors or self._awaited):
            at = now
        elif not self._actors:
            at = now + AWAITED_MS
        else:
            actors = self._actors.values() if new is None or self._at is None else (new,)
            at = next_beat(now, self._waits.loop, len(self._actors), actors)
        # Flink goes on with timers that are not behind the one at hand, and would not come to an end.
        at = max(at, self._fired + 1)
        # A timer that is not needed any more still fires; with half the distance each, there are few.
        if self._at is None or at - now < (self._at - now) // 2:
            self._at = at
            timers.register_processing_time_timer(at)
