"""The timers that a harness fires before their time: those of runs in flight.

It does not visit all keys at each step, so a test with a hundred thousand sleeping keys takes linear time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import lru_cache

from flink_agents.runtime.operator.heartbeat import MAX_DELAY_MS
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing.fakes.state import LEAST_TIMERS, FakeBackend, KeyState
from flink_agents.testing.fakes.waits import delayed_times, suspension_of

SOON_MS = 5000
"""Timers of runs in flight are nearer than this. A later timer belongs to a wait that is over."""

_head_of = lru_cache(maxsize=8)(Head.unpack)
"""A key is asked several times before it changes. The harness itself changes no head."""


class KeyTimes:
    """A time for each of some keys, ordered so that the first one is found quickly."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._queue: list[tuple[int, str]] = []

    def set_time(self, key: str, time: int | None) -> None:
        """Set the time of a key; None removes the key."""
        if self._times.get(key) == time:
            return
        if time is None:
            del self._times[key]
            return
        self._times[key] = time
        heapq.heappush(self._queue, (time, key))
        if len(self._queue) > LEAST_TIMERS + 2 * len(self._times):
            # Times may change for a whole test before the first one comes.
            self._queue = sorted((time, key) for key, time in self._times.items())

    def first_time(self) -> tuple[int, str] | None:
        """Return the first time, and its key; None if no key has one."""
        while self._queue:
            time, key = self._queue[0]
            if self._times.get(key) == time:
                return time, key
            heapq.heappop(self._queue)
        return None


class DueTimers:
    """Finds the keys of a subtask whose timers fire before their time.

    A key is checked again only if its state was touched, or the clock reached a time that matters to it.

    Args:
        backend: The fake of Flink's state and timers.
        clock: Returns milliseconds since the epoch.
        suspended_per_key: Value of the option ``run.max-suspended-per-key``.
        holds: True if the agent holds event time.
        keeps_timers: True if timers wait for their time even if there is nothing else to do.
        next_heartbeat: Returns the time of the subtask's next heartbeat; None if there is none.
    """

    def __init__(
        self,
        backend: FakeBackend,
        clock: Callable[[], int],
        suspended_per_key: int,
        holds: bool,
        keeps_timers: bool,
        next_heartbeat: Callable[[], int | None],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._suspended_per_key = suspended_per_key
        self._holds = holds
        self._keeps_timers = keeps_timers
        self._next_heartbeat = next_heartbeat
        self._working: set[str] = set()
        self._with_timers: set[str] = set()
        self._later = KeyTimes()
        self._delays = KeyTimes()

    def keys(self) -> list[str]:
        """Return the keys whose timers fire now, in the order in which the subtask first saw them."""
        self._update_keys()
        # A timer may serve all keys, whichever key has it.
        fires_all = not self._keeps_timers or (self._holds and bool(self._working))
        due_keys = self._with_timers if fires_all else self._with_timers & self._working
        if self._working and not due_keys:
            until = self._clock() + MAX_DELAY_MS
            keys = self._backend.keys
            due_keys = {key for key in self._with_timers if min(keys[key].processing_timers) <= until}
        return sorted(due_keys, key=self._backend.key_number)

    def first_delayed(self, after: int) -> int | None:
        """Return the first time after ``after`` at which a key has a delayed event; None if there is none."""
        self._update_keys()
        while (first := self._delays.first_time()) is not None and first[0] <= after:
            # It is delivered at this time, and its key is touched.
            self._delays.set_time(first[1], None)
        return None if first is None else first[0]

    def timers_of(self, state: KeyState) -> set[int]:
        """Return the timers of a key, except those for suspended runs, signals and delayed events."""
        timers = state.processing_timers
        if state.head is None or not timers:
            return timers
        head = _head_of(state.head)
        if not head.suspended and head.signals_expire is None and head.delayed_due is None:
            return timers
        now = self._clock()
        soon = {at for at in timers if at <= now + SOON_MS}
        # A wait may end at the very time of the heartbeat.
        heartbeat = self._next_heartbeat()
        return soon - awaited_among({at for at in soon if at > now and at != heartbeat}, state, head)

    def _update_keys(self) -> None:
        """Check the keys again that were touched, or whose next time has come."""
        now = self._clock()
        while (first := self._later.first_time()) is not None and first[0] <= now:
            self._later.set_time(first[1], None)
            self._backend.touched.add(first[1])
        touched = self._backend.touched
        while touched:
            key = touched.pop()
            state = self._backend.keys.get(key)
            has_timers = state is not None and bool(self.timers_of(state))
            works = state and self._has_work(state)
            (self._with_timers.add if has_timers else self._with_timers.discard)(key)
            (self._working.add if works else self._working.discard)(key)
            self._note_times(key, state or KeyState(), now)

    def _note_times(self, key: str, state: KeyState, now: int) -> None:
        """Store the next time at which a key has to be checked again, although its state is untouched."""
        times = set(state.processing_timers)
        head = None if state.head is None else _head_of(state.head)
        if head is not None:
            times |= _dues_of(head)
        changes = (at - early for at in times for early in (SOON_MS, 0))
        following = min((at for at in changes if at > now), default=None)
        self._later.set_time(key, following)
        self._delays.set_time(key, None if head is None else head.delayed_due)

    def _has_work(self, state: KeyState) -> bool:
        """Return True if the state of a key has something to execute now."""
        head = None if state.head is None else _head_of(state.head)
        now = self._clock()
        if head is not None and head.delayed_due is not None and head.delayed_due <= now:
            return True
        if head is None:
            return False
        blocking = head.blocking
        if blocking is not None:
            return blocking.is_due(now)
        is_full = len(head.suspended) >= self._suspended_per_key
        if head.has_pending and not (is_full and all(run.woken is None for run in head.suspended)):
            return True
        return any(run.due is not None and run.due <= now for run in head.suspended)


def awaited_among(times: set[int], state: KeyState, head: Head) -> set[int]:
    """Return those of ``times`` at which waits of suspended runs, signals or delayed events of a key end."""
    awaited = times & _dues_of(head)
    if len(awaited) < len(times):
        for run in head.suspended:
            awaited |= times & _deadlines_of(state.pending.get(-1 - run.number))
    if len(awaited) < len(times) and head.delayed_due is not None:
        awaited |= times & set(delayed_times(state, max(times)))
    return awaited


def _dues_of(head: Head) -> set[int]:
    """Return the times at which the first wait, the first signal and the first delayed event of a key end."""
    dues = (head.signals_expire, head.delayed_due, *(run.due for run in head.suspended))
    return {due for due in dues if due is not None}


@lru_cache(maxsize=8)
def _deadlines_of(entry: bytes | None) -> frozenset[int]:
    """Return the times at which the waits of a packed suspended run end.

    Cached: a key is checked several times.
    """
    run = None if entry is None else suspension_of(entry)
    return frozenset() if run is None else frozenset(w.deadline for w in run.waits if w.deadline is not None)
