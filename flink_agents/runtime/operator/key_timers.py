"""A processor with a timer for each key: all that PyFlink's public API allows.

Flink makes the key of a timer current, and no other, so that each busy key has a timer of its own that looks
at its actor. ``operator.harvest`` guesses when that is worth while.
"""

from __future__ import annotations

from collections.abc import Callable

from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.metrics.run_metrics import clock as seconds
from flink_agents.runtime.operator.emission import NOTHING, Emission
from flink_agents.runtime.operator.harvest import FIRST_AGENT, START, EndTimes, next_look
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.waits.delaying import DelayingProcessor
from flink_agents.runtime.operator.waits.pending_work import PendingWork
from flink_agents.runtime.state.keyed_state import KeyedState, Keys, Timers


class TimerProcessor(DelayingProcessor):
    """Commits the runs of a key when a timer of that key fires. Each call returns what leaves.

    Args:
        shared: What all runs share.
        state: Keyed state.
        job_id: Identity that new keys get as their journal id.
        clock: The wall-clock time in milliseconds.
        check_cancelled: Called while Flink's thread waits; raises if the task was cancelled.
        low: The low watermark; None where outputs need no timestamps.
        keys: The keys of the subtask; None where nobody can go through them.
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
        keys: Keys | None,
        end: EndTimes = FIRST_AGENT,
    ) -> None:
        super().__init__(shared, state, job_id, clock, check_cancelled, low, None, None)
        self._keys = keys
        self._end_times = end
        # Keys whose delayed events have come in since the input has ended.
        self._skipped: set[str] = set()

    def open(self, timers: Timers | None = None) -> None:
        """Open the store, and see that keys go on of which a heartbeat took the savepoint."""
        super().open(timers)
        if self._keys is None or timers is None:
            return
        # Such a savepoint has no timers of these keys.
        waiting = self._keys.waiting()
        for _, key in waiting:
            self._keys.switch(key)
            timers.register_processing_time_timer(self._clock())
            timers.register_event_time_timer(self._end_times.start)
        if self._low is not None:
            self._low.restored([key_text for key_text, _ in waiting])
        pending_work = PendingWork(self._shared, self._state)
        if pending_work.needed:
            for key in (*self._keys.delaying(), *(key for _, key in waiting)):
                self._keys.switch(key)
                key_text = self._keys.text()
                if (head := self._heads.read(key_text)) is not None:
                    pending_work.check(head, key_text)

    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Commit what the current key's actor has finished, and see that it goes on."""
        if self._end_times.is_foreign(timestamp):
            self._see_the_end(timers)
            return NOTHING
        if self._low is not None and timestamp < START:
            self._low.look(timestamp, timers, self._is_held_back)
        emission = self._tend(key_text, timestamp, timers)
        # Behind runs that go on at the same time, as where these events wait with other inputs.
        self._deliver(key_text, timestamp, timers)
        if timestamp >= START:
            self._end(key_text, timestamp, timers)
        actor = self._actor(key_text, timers)
        if timestamp == self._end_times.drain and (actor is not None or self._awaits_delays(key_text)):
            self._drain_key(key_text, emission, timers)
            return emission
        if actor is None:
            if timestamp >= START:
                self._end_signals(key_text, emission, timers)
            self._forget(key_text, timestamp, timers)
            return emission
        if timestamp == self._end_times.start:
            self._waits.loop.end_of_input()
            timers.register_event_time_timer(self._end_times.drain)
        elif not (actor.finished or actor.parked or actor.suspended):
            self._look_again(actor, timestamp, timers)
            return emission
        self._commit(actor, emission, timers)
        if self._actors.get(key_text) is actor:
            self._feed(actor)
        present = self._actors.get(key_text)
        if present is not None:
            self._go_on(present, timestamp, timers)
        return emission

    def _drain_key(self, key_text: str, emission: Emission, timers: Timers) -> None:
        """Wait for all runs and delayed events of the current key, or for another timer that does."""
        if not self._drain(key_text, emission, timers):
            timers.register_event_time_timer(self._end_times.drain)
        present = self._actors.get(key_text)
        if present is not None:
            self._go_on(present, self._end_times.drain, timers)
        if key_text not in self._actors:
            self._end_signals(key_text, emission, timers)

    def _end(self, key_text: str, timestamp: int, timers: Timers) -> None:
        """Let what waits of the current key go on, or come in: the input has ended."""
        if self._shared.may_wait:
            self._end_input()
        self._delays.leaves = self._delays.skips
        if timestamp != self._end_times.start or key_text in self._skipped:
            return
        if self._delays.skips:
            # The actors that are made now have this timer fire again.
            self._skipped.add(key_text)
        if self._come_in_at_end(key_text, timers) is not None:
            timers.register_event_time_timer(self._end_times.drain)

    def _awaits_delays(self, key_text: str) -> bool:
        """Whether the end of the input waits for delayed events of the current key."""
        head = self._head_of(key_text)
        return head is not None and head.delayed_due is not None and not self._delays.skips

    def _see_the_end(self, timers: Timers) -> None:
        timers.register_event_time_timer(self._end_times.start)

    def _ignore_the_end(self, timers: Timers) -> None:
        timers.delete_event_time_timer(self._end_times.start)

    def _made(self, actor: KeyActor, timers: Timers) -> None:
        self._see_the_end(timers)
        self._look_again(actor, None, timers)

    def _fed(self, actor: KeyActor, timers: Timers) -> None:
        if actor.far and not actor.idle:
            self._look_again(actor, actor.timer, timers)

    def _let_go(self, actor: KeyActor, timers: Timers) -> None:
        super()._let_go(actor, timers)
        head = actor.head
        delayed = head.delayed_due is not None and not self._delays.leaves
        if head.mail_expires is None and not (delayed or head.aside):
            self._ignore_the_end(timers)

    def _drain(self, key_text: str, emission: Emission, timers: Timers) -> bool:
        """Wait for all runs of the key; whether they have ended before a stream behind needs a sign."""
        until = self._waits.next_sign()
        while True:
            seen = self._waits.loop.progress
            if (actor := self._actors.get(key_text)) is not None:
                self._commit(actor, emission, timers)
            # Where its run was suspended just before the end of the input, another one lets it go on.
            awaited = None if self._delays.skips else self._come_in_at_end(key_text, timers)
            actor = self._actors.get(key_text)
            if awaited is None and not (actor is not None and actor.head.has_pending):
                return True
            if actor is not None:
                self._feed(actor)
            if seconds() >= until:
                return False
            self._waits.wait(seen)

    def _go_on(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """Have somebody look at the actor again, or let go of it."""
        if actor.head.has_pending:
            self._look_again(actor, fired, timers)
        else:
            self._let_go(actor, timers)

    def _look_again(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """Keep one timer for the actor."""
        if actor.timer is None or actor.timer == fired:
            rest = self._waits.loop.replays.rest(actor) if actor.idle else None
            actor.far = rest is not None
            if rest is not None:
                actor.timer = self._clock() + int(rest * 1000) + 1
            else:
                actor.timer = next_look(self._clock(), self._waits.loop, actor, len(self._actors))
            timers.register_processing_time_timer(actor.timer)
