"""One timer for all keys: a beat commits whatever has finished, key by key.

A timer per key costs Flink more than the commit itself. Where the operator may make any key current
(:class:`Keys`), one processing-time timer does for all: the agent loop says which actors have to be looked
at, and the beat makes the key of each current, commits, and lets what was put out leave, before it goes on to
the next one. All of it is one call of Flink, so that no checkpoint sees half of it.

No timer says which keys have inputs that wait. Keys of a restored state are found when the operator opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from flink_agents.api.agents.observers import Phase
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.metrics.run_metrics import clock as seconds
from flink_agents.runtime.operator.emission import NOTHING, Emission
from flink_agents.runtime.operator.end_times import FIRST_AGENT, START, EndTimes
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.schedule import Schedule
from flink_agents.runtime.state.keyed_state import Keys, Timers

MOST_COMMITS = 1000
"""After so many actors a beat ends, so that inputs and checkpoints have their turn."""

MOST_WOKEN = 200
"""How many restored keys get their actors in one beat."""

SOON_MS = 2
"""A beat that comes within this time is soon enough for whatever is new."""

AWAITED_MS = 100
"""How often to look for what is due, if the end of the input waits for nothing else."""

MAX_DELAY_MS = 500
"""The longest time until a beat while runs are open."""

FEW_KEYS = 64
"""With at most so many busy keys, each of them is considered for the time of a beat."""

BEAT_OF_MANY_MS = 5
"""The least distance of two beats among more busy keys."""


class Heartbeat(Schedule):
    """Commits with one timer for all keys. What leaves in a beat goes to ``leave``, while its key is current.

    Args:
        operator: Whose keys they are.
        clock: The wall-clock time in milliseconds.
        keys: The keys of the subtask.
        leave: Takes what leaves the operator after a commit.
        end: When the timers at the end of the input fire.
    """

    def __init__(
        self,
        operator: AgentProcessor,
        clock: Callable[[], int],
        keys: Keys,
        leave: Callable[[Emission], None],
        end: EndTimes = FIRST_AGENT,
    ) -> None:
        assert operator.to_look_at is not None
        self._operator = operator
        self._hooks = operator.hooks
        self._actors = operator.actors
        self._done = operator.to_look_at
        self._clock = clock
        self._keys = keys
        self._leave = leave
        # Only Flink's thread touches these: the keys are objects of Java.
        self._key_of: dict[str, Any] = {}
        self._restored: deque[tuple[str, Any]] = deque()
        self._unchecked: deque[Any] = deque()
        self._at: int | None = None
        self._fired = 0
        self._waits_for_end = False
        self._end = end
        self._has_ended = False
        self._rests = True

    @property
    def is_behind(self) -> bool:
        """Return True if runs have ended that this thread is to look at by its next beat."""
        return bool(self._done)

    @property
    def rests(self) -> bool:
        """Return True if the end of the input, once it is there, has nothing to wait for."""
        return self._rests

    def open(self, timers: Timers | None) -> None:
        """Find the keys that have inputs in state, and those of which services know."""
        waiting = self._keys.waiting()
        self._restored.extend(waiting)
        if waiting and timers is not None:
            self._keys.switch(waiting[0][1])
            self.see_the_end(timers)
            self._arm(timers)
        names = [key_text for key_text, _ in waiting]
        for hook in self._hooks.restored:
            if hook(self._keys, names, timers) and timers is not None:
                self._arm(timers)
        if timers is not None:
            for hook in self._hooks.unchecked:
                self._unchecked.extend(hook(self._keys, [key for _, key in waiting]))
            if self._unchecked:
                self._keys.switch(self._unchecked[0])
                self._arm(timers)

    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Beat. The timer may be of an older savepoint, and of any key."""
        self.beat(timestamp, timers)
        return NOTHING

    def beat(self, timestamp: int, timers: Timers) -> None:
        """Commit what has finished, of all keys."""
        if timestamp >= START and not self._begins_end(timestamp, timers):
            return
        hooks = self._hooks
        if timestamp < START:
            if timestamp == self._at or timestamp <= self._clock():
                # A timer in event time may be far ahead, and says nothing of beats.
                self._fired = max(self._fired, timestamp)
                if self._at is not None and self._at <= timestamp:
                    self._at = None
        if hooks.fired:
            self._tell_fired(timestamp, timers)
        if timestamp >= START:
            self._end_input(timestamp, timers)
        for hook in hooks.beat:
            hook()
        if timestamp == self._end.drain:
            self._drain_all(timers)
            self._arm(timers)
        elif self._actors or self._has_work():
            if timestamp == self._end.start:
                self._begin_the_end(timers)
            else:
                self._look_at_all(timers)
            self._arm(timers)
        if self._has_ended:
            self._note_rest()

    def _note_rest(self) -> None:
        """Note whether the end of the input has something to wait for."""
        self._rests = not (self._actors or self._restored or self._awaits_keys())

    def _begins_end(self, timestamp: int, timers: Timers) -> bool:
        """Return True if a timer at the end of the input is one of this agent, not of a savepoint."""
        if self._end.is_foreign(timestamp):
            self.see_the_end(timers)
            return False
        if timestamp == self._end.start:
            self._waits_for_end, self._has_ended = False, True
        return True

    def _tell_fired(self, timestamp: int, timers: Timers) -> None:
        """Let services do what is due for the key whose timer has fired."""
        emission, key_text = Emission(), self._keys.text()
        for hook in self._hooks.fired:
            hook(key_text, timestamp, timers, emission)
        if emission.outputs or emission.side_outputs:
            self._leave(emission)

    def _look_at_all(self, timers: Timers) -> None:
        """Commit what has finished, and do what else waits for a beat, if anything does."""
        made = self._operator.waits.made
        if made is not None and made.failure is not None:
            raise made.failure
        if self._restored:
            self._wake_restored(MOST_WOKEN, timers)
        if self._done:
            self._commit_finished(timers)
        if self._unchecked:
            self._check_restored(MOST_WOKEN)
        for hook in self._hooks.look:
            hook(timers)

    def _end_input(self, timestamp: int, timers: Timers) -> None:
        """Find the keys with work that the end of the input lets begin, or waits for."""
        for ended in self._hooks.input_ended:
            if ended():
                self._restored.extend(self._keys.waiting())
        for hook in self._hooks.end_keys:
            hook(self._keys, timestamp == self._end.start, timers)

    # -- actors -------------------------------------------------------------------------

    def made(self, actor: KeyActor, timers: Timers) -> None:
        """Note the key of a new actor, and beat in time."""
        self._key_of[actor.key_text] = self._keys.current_key()
        if not self._waits_for_end:
            self.see_the_end(timers)
        self._arm(timers, actor)

    def fed(self, actor: KeyActor, timers: Timers) -> None:
        """Beat in time for an actor that has one more input."""
        self._arm(timers, actor)

    def released(self, actor: KeyActor, timers: Timers) -> None:
        """Forget the key of an actor."""
        del self._key_of[actor.key_text]

    def _wake_restored(self, most: int, timers: Timers) -> None:
        """Let restored keys go on, which no timer may have woken."""
        while self._restored and most:
            key_text, key = self._restored.popleft()
            most -= 1
            if key_text not in self._actors:
                self._keys.switch(key)
                self._operator.actor_of(key_text, timers)

    def _check_restored(self, most: int) -> None:
        """Check whether the code can continue what waits in restored keys, once those have their actors."""
        while self._unchecked and most and not self._restored:
            most -= 1
            self._keys.switch(self._unchecked.popleft())
            self._operator.check(self._keys.text())

    def _commit_finished(self, timers: Timers) -> None:
        """Look at the actors of which the loop says so."""
        for _ in range(min(len(self._done), MOST_COMMITS)):
            actor = self._done.popleft()
            # Several runs of it may have ended, and it may be gone.
            has_news = actor.finished or actor.suspended or actor.parked
            if has_news and self._actors.get(actor.key_text) is actor:
                self._look(actor, timers)

    def _look(self, actor: KeyActor, timers: Timers) -> None:
        key_text, operator = actor.key_text, self._operator
        key = self._key_of[key_text]
        self._keys.switch(key)
        emission = Emission()
        operator.commit(actor, emission, timers)
        if emission.outputs or emission.side_outputs:
            self._leave(emission)
        for hook in self._hooks.looked:
            hook(key_text, key, actor.head)
        present = self._actors.get(key_text)
        if present is not actor:
            if present is None:
                del self._key_of[key_text]
        elif actor.head.first_pending != actor.head.next_pending:
            operator.feeder.feed(actor, operator.waits.loop)
        else:
            operator.release(actor, timers)

    # -- the end of a bounded input -------------------------------------------------------

    def see_the_end(self, timers: Timers) -> None:
        """Keep a timer at the end of the input; whichever key has it."""
        if not self._waits_for_end:
            self._waits_for_end, self._rests = True, False
            timers.register_event_time_timer(self._end.start)

    def ignore_the_end(self, timers: Timers) -> None:
        """The timer is there for all keys, and stays."""

    def _begin_the_end(self, timers: Timers) -> None:
        self._wake_restored(len(self._restored), timers)
        self._operator.waits.loop.end_of_input()
        timers.register_event_time_timer(self._end.drain)

    def _drain_all(self, timers: Timers) -> None:
        """Wait for all runs of all keys; each leaves as it ends."""
        waits = self._operator.waits
        self._wake_restored(len(self._restored), timers)
        until = waits.next_sign()
        while self._actors or self._awaits_keys():
            seen = waits.loop.progress
            self._commit_finished(timers)
            for hook in self._hooks.look:
                hook(timers)
            goes_on = bool(self._actors or self._awaits_keys())
            if goes_on and seconds() >= until:
                timers.register_event_time_timer(self._end.drain)
                return
            if goes_on and not self._done:
                waits.wait(seen)
        if self._hooks.drained:
            self._clean_up(timers)

    def _clean_up(self, timers: Timers) -> None:
        """Let services clean up the keys that have something in state still."""
        for key_text, key in self._keys.waiting():
            self._keys.switch(key)
            emission = Emission()
            for hook in self._hooks.drained:
                hook(key_text, timers, emission)
            if emission.outputs or emission.side_outputs:
                self._leave(emission)

    def _awaits_keys(self) -> bool:
        """Return True if the end of the input waits for something of a key without an actor."""
        hooks = self._hooks.awaits_keys
        return bool(hooks) and any(hook() for hook in hooks)

    def _has_work(self) -> bool:
        """Return True if a beat has something to do besides looking at actors."""
        if self._restored or self._unchecked:
            return True
        hooks = (*self._hooks.awaits_keys, *self._hooks.is_looking)
        return bool(hooks) and any(hook() for hook in hooks)

    # -- the timer ------------------------------------------------------------------------

    def _arm(self, timers: Timers, new: KeyActor | None = None) -> None:
        """Have a beat come when something may have finished. Any key may be current.

        Args:
            timers: Timers of the current key.
            new: The only actor that has something to do since this was called last, if there is one.
        """
        if not (self._actors or self._has_work()):
            return
        now = self._clock()
        if self._at is not None and self._at - now <= SOON_MS:
            return
        if self._restored or self._done or self._unchecked or not (self._actors or self._awaits_keys()):
            at = now
        elif not self._actors:
            at = now + AWAITED_MS
        else:
            actors = self._actors.values() if new is None or self._at is None else (new,)
            at = next_beat(now, self._operator.waits.loop, len(self._actors), actors)
        # Flink goes on with timers that are not behind the one at hand, and would not come to an end.
        at = max(at, self._fired + 1)
        # A timer that is not needed any more still fires; with half the distance each, there are few.
        if self._at is None or at - now < (self._at - now) // 2:
            self._at = at
            timers.register_processing_time_timer(at)


def next_beat(now: int, loop: AgentLoop, busy_keys: int, actors: Iterable[KeyActor]) -> int:
    """Return when to look at what has finished, of all actors, in milliseconds since the epoch.

    Flink fires a timer of the present time a millisecond later.

    Args:
        now: The present.
        loop: What executes their runs.
        busy_keys: How many actors there are.
        actors: Those of which one may finish first; not needed where there are many.
    """
    expected = 1000 * loop.expected
    if busy_keys >= FEW_KEYS:
        # Runs that began at any time end at so many in a second.
        delay = int(min(MAX_DELAY_MS, expected / max(1, loop.in_flight)))
        return -(-(now + delay) // BEAT_OF_MANY_MS) * BEAT_OF_MANY_MS
    shortest: float = MAX_DELAY_MS
    for actor in actors:
        state = actor.state
        if state is None or state.phase is not Phase.INPUT:
            age = loop.age(actor) * 1000 if actor.running else 0.0
            shortest = min(shortest, expected - age if age < expected else age / 16)
    return now + int(shortest)
