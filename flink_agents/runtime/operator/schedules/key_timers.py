"""Commits with a timer for each key, which is all that PyFlink's public API allows.

Flink makes the key of a timer current, and no other key. So each busy key has its own timer that checks
its actor. Nothing can wake Flink's task thread. So the timer has to guess when a run ends: first after the
usual duration of a run, then after a fraction of its age. The times are on a grid that becomes coarser with
more busy keys, so that the timers of many keys fire together.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.runtime.loop.actor import KeyActor, KeyRuns
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.metrics.run_metrics import clock as seconds
from flink_agents.runtime.operator.emission import NOTHING, Emission
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.schedules.end_times import FIRST_AGENT, START, EndTimes
from flink_agents.runtime.operator.schedules.schedule import Schedule
from flink_agents.runtime.state.keyed_state import Keys, Timers

MAX_DELAY_MS = 500
MANY_KEYS = 1024
"""From this number of busy keys on, unnecessary checks cost more than results that wait."""

MAX_DELAY_OF_MANY_MS = 2000
"""The longest delay with many busy keys if all runs take about the same time."""


class KeyTimers(Schedule):
    """Commits the runs of a key when a timer of that key fires. Each call returns the outputs.

    Args:
        operator: The operator.
        clock: Returns the wall-clock time in milliseconds.
        keys: The keys of the subtask; None if the host cannot list them.
        end: The times of the timers at the end of the input.
    """

    def __init__(
        self,
        operator: AgentProcessor,
        clock: Callable[[], int],
        keys: Keys | None,
        end: EndTimes = FIRST_AGENT,
    ) -> None:
        self._operator = operator
        self._hooks = operator.hooks
        self._clock = clock
        self._keys = keys
        self._end_times = end

    def open(self, timers: Timers | None) -> None:
        """Register timers for the keys of a savepoint that a heartbeat has written."""
        keys = self._keys
        if keys is None or timers is None:
            return
        # Such a savepoint has no timers of these keys.
        waiting = keys.waiting()
        for _, key in waiting:
            keys.switch(key)
            timers.register_processing_time_timer(self._clock())
            timers.register_event_time_timer(self._end_times.start)
        for hook in self._hooks.restored:
            hook(keys, [key_text for key_text, _ in waiting], timers)
        for unchecked in self._hooks.unchecked:
            for key in unchecked(keys, [key for _, key in waiting]):
                keys.switch(key)
                self._operator.check(keys.text())

    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Commit the finished runs of the current key's actor, and hand it more inputs."""
        end = self._end_times
        operator = self._operator
        # A savepoint may have timers of another agent of the job.
        if end.is_foreign(timestamp):
            self.see_the_end(timers)
            return NOTHING
        emission = Emission()
        # Before the commit: an expired signal or a due wait may resume a run.
        for hook in self._hooks.fired:
            hook(key_text, timestamp, timers, emission)
        if timestamp >= START:
            self._end(key_text, timestamp, timers)
        actor = operator.actor_of(key_text, timers)
        if timestamp == end.drain and (actor is not None or self._awaits(key_text)):
            self._drain_key(key_text, emission, timers)
            return emission
        if actor is None:
            if timestamp >= START:
                self._clean_up(key_text, emission, timers)
            return emission
        if timestamp == end.start:
            operator.waits.loop.end_of_input()
            timers.register_event_time_timer(end.drain)
        elif not (actor.runs.finished or actor.backlog or actor.runs.suspended):
            self._look_again(actor, timestamp, timers)
            return emission
        operator.commit(actor, emission, timers)
        if operator.actors.get(key_text) is actor:
            operator.feeder.feed(actor, operator.waits.loop)
        present = operator.actors.get(key_text)
        if present is not None:
            self._go_on(present, timestamp, timers)
        return emission

    def _drain_key(self, key_text: str, emission: Emission, timers: Timers) -> None:
        """Wait for all work of the current key, or register another timer that continues to wait."""
        if not self._drain(key_text, emission, timers):
            timers.register_event_time_timer(self._end_times.drain)
        present = self._operator.actors.get(key_text)
        if present is not None:
            self._go_on(present, self._end_times.drain, timers)
        if key_text not in self._operator.actors:
            self._clean_up(key_text, emission, timers)

    def _end(self, key_text: str, timestamp: int, timers: Timers) -> None:
        """Start the waiting work of the current key: the input has ended."""
        for hook in self._hooks.input_ended:
            hook()
        if self._let_begin(key_text, timestamp == self._end_times.start, timers):
            timers.register_event_time_timer(self._end_times.drain)

    def _let_begin(self, key_text: str, first: bool, timers: Timers) -> bool:
        """Start the waiting work of the current key; returns True if the end of the input waits for more."""
        awaits = False
        for hook in self._hooks.end_key:
            awaits = hook(key_text, first, timers) or awaits
        return awaits

    def _awaits(self, key_text: str) -> bool:
        """Return True if the end of the input waits for the current key."""
        return any(hook(key_text) for hook in self._hooks.awaits_key)

    def _clean_up(self, key_text: str, emission: Emission, timers: Timers) -> None:
        for hook in self._hooks.drained:
            hook(key_text, timers, emission)

    def see_the_end(self, timers: Timers) -> None:
        """Register a timer of the current key at the end of the input."""
        timers.register_event_time_timer(self._end_times.start)

    def ignore_the_end(self, timers: Timers) -> None:
        """Delete that timer."""
        timers.delete_event_time_timer(self._end_times.start)

    def added(self, actor: KeyActor, timers: Timers) -> None:
        """Register timers for a new actor."""
        self.see_the_end(timers)
        self._look_again(actor, None, timers)

    def fed(self, actor: KeyActor, timers: Timers) -> None:
        """Register an earlier timer if the present one is far away."""
        if actor.far and not actor.idle:
            self._look_again(actor, actor.timer, timers)

    def actor_released(self, actor: KeyActor, timers: Timers) -> None:
        """Delete the timer at the end, unless the key still needs it."""
        if not any(hook(actor.head) for hook in self._hooks.keeps_end):
            self.ignore_the_end(timers)

    def _drain(self, key_text: str, emission: Emission, timers: Timers) -> bool:
        """Wait for all runs of the key; returns False if a downstream stream needs a sign before they end."""
        operator = self._operator
        until = operator.waits.next_sign()
        while True:
            # Read before the commit: progress from now on ends the wait below.
            seen = operator.waits.loop.progress
            if (actor := operator.actors.get(key_text)) is not None:
                operator.commit(actor, emission, timers)
            # If its run was suspended just before the end of the input, this resumes it.
            awaits = self._let_begin(key_text, True, timers)
            actor = operator.actors.get(key_text)
            if not awaits and not (actor is not None and actor.head.has_pending):
                return True
            if actor is not None:
                operator.feeder.feed(actor, operator.waits.loop)
            if seconds() >= until:
                return False
            operator.waits.wait(seen)

    def _go_on(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """Register the next timer for the actor, or release it."""
        if actor.head.has_pending:
            self._look_again(actor, fired, timers)
        else:
            self._operator.release(actor, timers)

    def _look_again(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """Register one timer for the actor."""
        if actor.timer is None or actor.timer == fired:
            loop = self._operator.waits.loop
            hold_seconds = loop.replays.rest(actor.runs) if actor.idle else None
            actor.far = hold_seconds is not None
            if hold_seconds is not None:
                actor.timer = self._clock() + int(hold_seconds * 1000) + 1
            else:
                actor.timer = next_look(self._clock(), loop, actor.runs, len(self._operator.actors))
            timers.register_processing_time_timer(actor.timer)


def next_look(now: int, loop: AgentLoop, runs: KeyRuns, busy_keys: int) -> int:
    """Return the time of the next check of a key, in milliseconds since the epoch."""
    grid = grid_ms(busy_keys)
    many = busy_keys >= MANY_KEYS
    alike = loop.deviation <= loop.expected / 8
    # An unnecessary check costs more than a result that waits until the next point of the grid.
    expected = 1000 * (loop.expected if grid == 1 else loop.expected + 2 * loop.deviation)
    age = loop.age(runs) * 1000 if runs.running else 0.0
    delay = expected - age if age < expected else age / (4 if many else 16)
    longest = MAX_DELAY_OF_MANY_MS if many and alike and age < expected else MAX_DELAY_MS
    return (now + min(longest, int(delay)) + grid) // grid * grid


def grid_ms(busy_keys: int) -> int:
    """Return the distance of the points of the grid."""
    return 1 if busy_keys < 64 else 5 if busy_keys < MANY_KEYS else 20
