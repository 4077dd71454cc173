"""One timer for all keys: each heartbeat commits the runs that have finished, key by key.

A timer per key would cost Flink more than the commit itself. The operator can make any key current
(:class:`Keys`), so one processing-time timer serves all of them. The event loop lists the actors with
finished runs. A heartbeat makes the key of each actor current, commits its runs, and emits their outputs,
before it continues with the next. All of it is one call of Flink, so no checkpoint sees half of it.

No timer shows which keys have inputs that wait. The operator finds the keys of a restored state when it
opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from flink_agents.api.agents.observers import Phase
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.metrics.run_metrics import clock as seconds
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.services.service import FIRST_AGENT, START, Emission, EndTimes
from flink_agents.runtime.state.keyed_state import Keys, Timers

MOST_COMMITS = 1000
"""The most actors of one heartbeat, so that inputs and checkpoints have their turn."""

MOST_WOKEN = 200
"""The most restored keys that get their actors in one heartbeat."""

SOON_MS = 2
"""A heartbeat within this time is soon enough for new work."""

AWAITED_MS = 100
"""The interval of heartbeats if the end of the input waits for delayed events only."""

MAX_DELAY_MS = 500
"""The longest interval of heartbeats while runs are open."""

FEW_KEYS = 64
"""Up to this number of busy keys, each is considered for the time of the next heartbeat."""

HEARTBEAT_OF_MANY_MS = 5
"""The shortest interval of heartbeats if more keys are busy."""

AGE_FRACTION = 16
"""A run that takes longer than expected is checked again after this fraction of its age: 1/16."""


class Heartbeat:
    """Commits with one timer for all keys. Only for Flink's task thread, except :attr:`rests`.

    Args:
        operator: The operator.
        clock: Returns the wall-clock time in milliseconds.
        keys: The keys of the subtask.
        emit: Emits the outputs of a commit. Called while the key is current.
        end: The times of the timers that fire at the end of a bounded input.

    Attributes:
        at: The time of the next heartbeat in milliseconds since the epoch; None if none is scheduled.
        rests: True if no work is left that the end of the input would wait for. For any thread.
    """

    def __init__(
        self,
        operator: AgentProcessor,
        clock: Callable[[], int],
        keys: Keys,
        emit: Callable[[Emission], None],
        end: EndTimes = FIRST_AGENT,
    ) -> None:
        self._operator = operator
        self._features = operator.features
        self._pruning_marks = operator.features.pruning_marks
        self._actors = operator.actors
        self._ended_actors = operator.to_look_at
        self._clock = clock
        self._keys = keys
        self._emit = emit
        self._suspensions = operator.features.suspensions
        self._delays = operator.features.delayed
        self._unchecked = self._delays.unchecked
        # Only Flink's thread touches these: the keys are objects of Java.
        self._key_of: dict[str, Any] = {}
        self._restored: deque[tuple[str, Any]] = deque()
        self.at: int | None = None
        self._fired = 0
        self._waits_for_end = False
        self._end = end
        self._has_ended = False
        self.rests = True

    @property
    def is_behind(self) -> bool:
        """True if runs have ended that are not committed yet."""
        return bool(self._ended_actors)

    def open(self, timers: Timers | None) -> None:
        """Find the restored keys with inputs in state, and the keys that services list.

        Args:
            timers: Timers of the current key; None if there is no restored state.
        """
        waiting = self._keys.waiting()
        # There may be millions of keys. Each heartbeat wakes some of them.
        self._restored.extend(waiting)
        if waiting and timers is not None:
            self._keys.switch(waiting[0][1])
            self.see_the_end(timers)
            self.arm(timers)
        names = [key_text for key_text, _ in waiting]
        for hook in self._features.hooks.restored:
            if hook(self._keys, names, timers) and timers is not None:
                self.arm(timers)

    def fire(self, timestamp: int, timers: Timers) -> None:
        """Commit all runs that have finished, of all keys, and do the other work of the fired timer.

        Args:
            timestamp: The time of the timer in milliseconds; from ``START`` on, the input has ended.
            timers: Timers of the current key, to which the timer belongs.
        """
        # A savepoint may have timers of another agent of the job.
        if timestamp >= START and not self._begins_end(timestamp, timers):
            return
        if timestamp < START:
            if timestamp == self.at or timestamp <= self._clock():
                # A timer in event time may be far ahead, so it does not count here.
                self._fired = max(self._fired, timestamp)
                if self.at is not None and self.at <= timestamp:
                    self.at = None
        # Before commits: an expired signal or a due wait may resume a run of this key.
        if self._operator.has_key_timers:
            self._tell_fired(timestamp, timers)
        if timestamp >= START:
            self._end_input(timestamp, timers)
        # After the key's own work, because this may change the current key.
        if self._pruning_marks is not None:
            self._pruning_marks.clear_marks()
        if timestamp == self._end.drain:
            self._drain_all(timers)
            self.arm(timers)
        elif self._actors or self._has_work():
            if timestamp == self._end.start:
                self._begin_the_end(timers)
            else:
                self._check_actors(timers)
            self.arm(timers)
        if self._has_ended:
            self.rests = not (self._actors or self._restored or self._awaits_keys())

    def _begins_end(self, timestamp: int, timers: Timers) -> bool:
        """Return True if a timer at the end of the input is this agent's; else register one that is."""
        if self._end.is_foreign(timestamp):
            self.see_the_end(timers)
            return False
        if timestamp == self._end.start:
            self._waits_for_end = False
            self._has_ended = True
        return True

    def _tell_fired(self, timestamp: int, timers: Timers) -> None:
        """Call the hook ``fired`` of the services for the current key, and emit their outputs."""
        emission = Emission()
        key_text = self._keys.text()
        for hook in self._features.hooks.fired:
            hook(key_text, timestamp, timers, emission)
        if emission.outputs or emission.side_outputs:
            self._emit(emission)

    def _check_actors(self, timers: Timers) -> None:
        """Commit the runs that have finished, and wake some restored keys.

        Raises:
            BaseException: The loop has failed. Then nothing is committed.
        """
        loop = self._operator.loop_access.running_loop
        # After a failure, nothing may be committed: the attempt ends.
        if loop is not None and loop.failure is not None:
            raise loop.failure
        # Restored keys come first: their inputs are the oldest.
        if self._restored:
            self._wake_restored(MOST_WOKEN, timers)
        if self._ended_actors:
            self._commit_finished(timers)
        # Restored keys have their actors by now: work of this moment comes before that of a later time.
        if self._unchecked and not self._restored:
            self._delays.check_restored()
        self._continue_work(timers)

    def _continue_work(self, timers: Timers) -> None:
        """Let pruning and delayed events continue the work that they do for many keys, a part at a time."""
        if self._pruning_marks is not None:
            self._pruning_marks.report_restored()
        if self._delays.awaited is not None:
            self._delays.deliver_awaited(timers)

    def _end_input(self, timestamp: int, timers: Timers) -> None:
        """Find the keys whose suspended runs or delayed events the end of the input starts, or waits for."""
        if self._suspensions.end_input():
            self._restored.extend(self._keys.waiting())
        self._delays.end_keys(self._keys, timestamp == self._end.start, timers)

    # -- actors -------------------------------------------------------------------------

    def added(self, actor: KeyActor, timers: Timers) -> None:
        """Remember the current key as that of a new actor, and schedule a heartbeat."""
        self._key_of[actor.key_text] = self._keys.current_key()
        if not self._waits_for_end:
            self.see_the_end(timers)
        self.arm(timers, actor)

    def released(self, actor: KeyActor) -> None:
        """Forget the key of an actor that is gone."""
        del self._key_of[actor.key_text]

    def _wake_restored(self, most: int, timers: Timers) -> None:
        """Create the actors of up to ``most`` restored keys with inputs in state: they may have no timer."""
        while self._restored and most:
            key_text, key = self._restored.popleft()
            most -= 1
            self._keys.switch(key)
            actor = self._actors.get(key_text)
            if actor is None:
                self._operator.actor_of(key_text, timers)
                continue
            # A new input came first. Runs that it did not wake replay like those of all restored keys.
            self._suspensions.replay_changed(actor, timers)
            # If inputs waited, its actor has found them; if only signals or suspended runs did, the low
            # watermark still expects the key, and would wait for it forever.
            if (low_watermark := self._features.low_watermark) is not None:
                low_watermark.note_restored_inputs(None, key_text)

    def _commit_finished(self, timers: Timers) -> None:
        """Commit the ended runs of up to ``MOST_COMMITS`` keys that the loop has listed, in order."""
        for _ in range(min(len(self._ended_actors), MOST_COMMITS)):
            actor = self._ended_actors.popleft()
            # Several runs of the actor may have ended, and it may be gone.
            if self._actors.get(actor.key_text) is actor and (actor.ended or actor.backlog):
                self._commit_key(actor, timers)

    def _commit_key(self, actor: KeyActor, timers: Timers) -> None:
        """Commit and emit the ended runs of a key; feed its actor, or release it if no inputs wait."""
        key_text = actor.key_text
        operator = self._operator
        key = self._key_of[key_text]
        self._keys.switch(key)
        emission = Emission()
        operator.commit(actor, emission, timers)
        if emission.outputs or emission.side_outputs:
            self._emit(emission)
        if self._delays.awaited is not None:
            self._delays.note_committed(key_text, key, actor.head)
        present = self._actors.get(key_text)
        if present is not actor:
            if present is None:
                del self._key_of[key_text]
        elif actor.head.first_pending != actor.head.next_pending:
            operator.feeder.feed(actor)
        else:
            operator.release(actor, timers)

    # -- the end of a bounded input -------------------------------------------------------

    def see_the_end(self, timers: Timers) -> None:
        """Register the timer that fires when a bounded input ends, unless any key has it."""
        if not self._waits_for_end:
            self._waits_for_end = True
            self.rests = False
            timers.register_event_time_timer(self._end.start)

    def _begin_the_end(self, timers: Timers) -> None:
        """Start the work of all keys when the input has ended, and register the timer that waits for it."""
        self._wake_restored(len(self._restored), timers)
        self._operator.loop_access.loop.end_of_input()
        timers.register_event_time_timer(self._end.drain)

    def _drain_all(self, timers: Timers) -> None:
        """Block until all runs of all keys are committed, or for as long as one call of Flink may take."""
        loop_access = self._operator.loop_access
        self._wake_restored(len(self._restored), timers)
        # Flink's task thread may not wait longer in one call, or downstream streams count as idle.
        until = loop_access.next_sign()
        while self._actors or self._awaits_keys():
            # Read before the commits: progress from now on ends the wait below.
            seen = loop_access.loop.progress
            self._commit_finished(timers)
            self._continue_work(timers)
            has_open_work = bool(self._actors or self._awaits_keys())
            # Continue in another call of Flink, so that checkpoints have their turn.
            if has_open_work and seconds() >= until:
                timers.register_event_time_timer(self._end.drain)
                return
            if has_open_work and not self._ended_actors:
                loop_access.wait_for_progress(seen)
        if self._suspensions.may_have_waits:
            self._emit_signals(timers)

    def _emit_signals(self, timers: Timers) -> None:
        """Emit the signals that are left in state as unmatched: the input and all runs have ended."""
        for key_text, key in self._keys.waiting():
            self._keys.switch(key)
            emission = Emission()
            self._features.signals.end_signals(key_text, timers, emission)
            if emission.outputs or emission.side_outputs:
                self._emit(emission)

    def _awaits_keys(self) -> bool:
        """Return True if the end of the input waits for delayed events."""
        return self._delays.awaited is not None and bool(self._delays.awaited)

    def _has_work(self) -> bool:
        """Return True if a heartbeat has something to do besides the commits of actors."""
        if self._restored or self._unchecked:
            return True
        marks = self._pruning_marks
        return (marks is not None and marks.has_unreported) or self._awaits_keys()

    # -- the timer ------------------------------------------------------------------------

    def arm(self, timers: Timers, new: KeyActor | None = None) -> None:
        """Register a timer for the time at which the next run may have ended. Any key may be current.

        Args:
            timers: Timers of the current key.
            new: The only actor with new work since the last call, if there is one.
        """
        if not (self._actors or self._has_work()):
            return
        now = self._clock()
        # Each timer costs Flink a call. The next one comes soon enough.
        if self.at is not None and self.at - now <= SOON_MS:
            return
        if (
            self._restored
            or self._ended_actors
            or self._unchecked
            or not (self._actors or self._awaits_keys())
        ):
            at = now
        elif not self._actors:
            at = now + AWAITED_MS
        else:
            actors = self._actors.values() if new is None or self.at is None else (new,)
            at = next_heartbeat(now, self._operator.loop_access.loop, len(self._actors), actors)
        # If the new timer were not later, Flink would fire it in the same loop and never get to inputs.
        at = max(at, self._fired + 1)
        # A timer that is no longer needed still fires. With half the distance each time, there are few.
        if self.at is None or at - now < (self.at - now) // 2:
            self.at = at
            timers.register_processing_time_timer(at)


def next_heartbeat(now: int, loop: AgentLoop, busy_keys: int, actors: Iterable[KeyActor]) -> int:
    """Return the time at which the next run is expected to end, in milliseconds since the epoch.

    A run that takes longer than expected is checked again after a sixteenth of its age.

    Args:
        now: The present time, in the same unit.
        loop: The event loop that executes the runs.
        busy_keys: The number of actors.
        actors: The actors that may finish first; not needed if there are many.
    """
    expected = 1000 * loop.expected
    if busy_keys >= FEW_KEYS:
        # With many keys, runs end at this average distance.
        delay = int(min(MAX_DELAY_MS, expected / max(1, loop.in_flight)))
        return -(-(now + delay) // HEARTBEAT_OF_MANY_MS) * HEARTBEAT_OF_MANY_MS
    shortest: float = MAX_DELAY_MS
    for actor in actors:
        state = actor.state
        if state is None or state.phase is not Phase.INPUT:
            age = loop.age(actor) * 1000 if actor.running else 0.0
            shortest = min(shortest, expected - age if age < expected else age / AGE_FRACTION)
    return now + int(shortest)
