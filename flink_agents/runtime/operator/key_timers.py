"""A processor with a timer for each key: all that PyFlink's public API allows.

Flink makes the key of a timer current, and no other, so that each busy key has a timer of its own that looks
at its actor. Nothing can wake Flink's thread, so the timer has to guess when a run ends: first after the time
that a run usually takes, then after a fraction of its age. The times lie on a grid that becomes coarser the
more keys are busy, so that the timers of many keys fire together.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.metrics.run_metrics import clock as seconds
from flink_agents.runtime.operator.emission import NOTHING, Emission
from flink_agents.runtime.operator.end_times import FIRST_AGENT, START, EndTimes
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.schedule import Schedule
from flink_agents.runtime.state.keyed_state import Keys, Timers

MAX_DELAY_MS = 500
MANY_KEYS = 1024
"""With so many busy keys, looks in vain cost more than results that wait."""

MAX_DELAY_OF_MANY_MS = 2000
"""The longest delay among many busy keys if all runs take about the same time."""


class KeyTimers(Schedule):
    """Commits the runs of a key when a timer of that key fires. Each call returns what leaves.

    Args:
        operator: Whose keys they are.
        clock: The wall-clock time in milliseconds.
        keys: The keys of the subtask; None where nobody can go through them.
        end: When the timers at the end of the input fire.
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
        """See that keys go on of which a heartbeat took the savepoint."""
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
        """Commit what the current key's actor has finished, and see that it goes on."""
        end, operator = self._end_times, self._operator
        if end.is_foreign(timestamp):
            self.see_the_end(timers)
            return NOTHING
        emission = Emission()
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
        elif not (actor.finished or actor.parked or actor.suspended):
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
        """Wait for all that the current key has to do, or for another timer that does."""
        if not self._drain(key_text, emission, timers):
            timers.register_event_time_timer(self._end_times.drain)
        present = self._operator.actors.get(key_text)
        if present is not None:
            self._go_on(present, self._end_times.drain, timers)
        if key_text not in self._operator.actors:
            self._clean_up(key_text, emission, timers)

    def _end(self, key_text: str, timestamp: int, timers: Timers) -> None:
        """Let what waits of the current key go on, or come in: the input has ended."""
        for hook in self._hooks.input_ended:
            hook()
        if self._let_begin(key_text, timestamp == self._end_times.start, timers):
            timers.register_event_time_timer(self._end_times.drain)

    def _let_begin(self, key_text: str, first: bool, timers: Timers) -> bool:
        """Let what waits of the current key come in; return True if the end waits for more of it."""
        awaits = False
        for hook in self._hooks.end_key:
            awaits = hook(key_text, first, timers) or awaits
        return awaits

    def _awaits(self, key_text: str) -> bool:
        """Return True if the end of the input waits for something of the current key."""
        return any(hook(key_text) for hook in self._hooks.awaits_key)

    def _clean_up(self, key_text: str, emission: Emission, timers: Timers) -> None:
        for hook in self._hooks.drained:
            hook(key_text, timers, emission)

    def see_the_end(self, timers: Timers) -> None:
        """Have a timer of the current key fire at the end of the input."""
        timers.register_event_time_timer(self._end_times.start)

    def ignore_the_end(self, timers: Timers) -> None:
        """Delete that timer."""
        timers.delete_event_time_timer(self._end_times.start)

    def made(self, actor: KeyActor, timers: Timers) -> None:
        """Have timers fire for a new actor."""
        self.see_the_end(timers)
        self._look_again(actor, None, timers)

    def fed(self, actor: KeyActor, timers: Timers) -> None:
        """Have a timer fire sooner if the present one is far off."""
        if actor.far and not actor.idle:
            self._look_again(actor, actor.timer, timers)

    def released(self, actor: KeyActor, timers: Timers) -> None:
        """Delete the timer at the end, unless something of the key is left for it."""
        if not any(hook(actor.head) for hook in self._hooks.keeps_end):
            self.ignore_the_end(timers)

    def _drain(self, key_text: str, emission: Emission, timers: Timers) -> bool:
        """Wait for all runs of the key; whether they have ended before a stream behind needs a sign."""
        operator = self._operator
        until = operator.waits.next_sign()
        while True:
            seen = operator.waits.loop.progress
            if (actor := operator.actors.get(key_text)) is not None:
                operator.commit(actor, emission, timers)
            # Where its run was suspended just before the end of the input, another one lets it go on.
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
        """Have somebody look at the actor again, or let go of it."""
        if actor.head.has_pending:
            self._look_again(actor, fired, timers)
        else:
            self._operator.release(actor, timers)

    def _look_again(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """Keep one timer for the actor."""
        if actor.timer is None or actor.timer == fired:
            loop = self._operator.waits.loop
            rest = loop.replays.rest(actor) if actor.idle else None
            actor.far = rest is not None
            if rest is not None:
                actor.timer = self._clock() + int(rest * 1000) + 1
            else:
                actor.timer = next_look(self._clock(), loop, actor, len(self._operator.actors))
            timers.register_processing_time_timer(actor.timer)


def next_look(now: int, loop: AgentLoop, actor: KeyActor, busy_keys: int) -> int:
    """When to look at the actor, in milliseconds since the epoch."""
    grid = grid_ms(busy_keys)
    many = busy_keys >= MANY_KEYS
    alike = loop.deviation <= loop.expected / 8
    # A look in vain costs more than a result that waits until the next point of the grid.
    expected = 1000 * (loop.expected if grid == 1 else loop.expected + 2 * loop.deviation)
    age = loop.age(actor) * 1000 if actor.running else 0.0
    delay = expected - age if age < expected else age / (4 if many else 16)
    longest = MAX_DELAY_OF_MANY_MS if many and alike and age < expected else MAX_DELAY_MS
    return (now + min(longest, int(delay)) + grid) // grid * grid


def grid_ms(busy_keys: int) -> int:
    """Distance of the points of the grid."""
    return 1 if busy_keys < 64 else 5 if busy_keys < MANY_KEYS else 20
