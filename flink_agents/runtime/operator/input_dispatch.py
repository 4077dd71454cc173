"""Hands inputs that wait in state to their actors, as far as there is room. Only for Flink's task thread.

State has all inputs, so their number does not matter. Each is read once when it runs. If recorded runs are
left, each is also read once before that, to compute its digest.
"""

from __future__ import annotations

from dataclasses import replace

from flink_agents.api.errors import StateFormatError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.journal.records import input_digest
from flink_agents.runtime.loop.actor import KeyActor, KeyRecovery, QueuedInput
from flink_agents.runtime.operator.loop_access import LoopAccess
from flink_agents.runtime.operator.services.suspension import SuspendedRuns
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head, KeyedState
from flink_agents.runtime.state.pending import read_input


class InputDispatcher:
    """Hands inputs from state to actors, as far as the loop has room.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        suspended_runs: The suspended runs in state, which resume among the inputs.
        access: Creates the agent loop, and knows its limits.
    """

    def __init__(
        self, shared: RunEnvironment, state: KeyedState, suspended_runs: SuspendedRuns, access: LoopAccess
    ) -> None:
        self._access = access
        self._suspended_runs = suspended_runs
        self._codec = shared.codec
        self._state = state
        self._queue_per_key = shared.config.get(AgentOptions.QUEUE_PER_KEY)
        self._cached = 0

    def feed(self, actor: KeyActor) -> None:
        """Pass inputs of the current key from state to its actor, as far as queue and loop have room.

        While recorded runs are left to replay, the records choose the next input.
        """
        recovery = actor.recovery
        if recovery is not None and recovery.order is None:
            with recovery.lock:
                # Again, with the lock: the loop may have read the records meanwhile.
                if recovery.order is None:
                    self._cache(actor, recovery)
                    return
        while recovery is not None and actor.recovery is not None:
            if self._is_full(actor):
                return
            with recovery.lock:
                if not self._choose(actor):
                    # Nothing of the key runs, so only an input that has not come can be the reason.
                    if actor.idle:
                        self._access.loop.replays.hold(actor)
                    break
        # Not `else`: the last recorded run may have been chosen just now.
        if actor.recovery is None:
            self._feed_as_they_came(actor)

    def resume_blocking(self, actor: KeyActor) -> None:
        """Resume the suspended run that blocks the key of a new actor, before all inputs; if there is one."""
        blocking = actor.head.blocking
        if blocking is None:
            return
        packed = self._state.input(actor.head, blocking.number)
        assert packed is not None
        resumed = self._resume(actor, blocking.number, packed, actor.next_seq)
        assert resumed is not None
        recovery = actor.recovery
        if recovery is not None and recovery.order is None:
            # When the records were read, it goes before those.
            recovery.resumes = resumed
            return
        actor.next_seq = max(actor.next_seq, resumed.seq + 1)
        self._access.loop.submit(actor, resumed)

    def forget_cached(self, actor: KeyActor) -> None:
        """Drop the inputs that were read for an actor and not chosen yet. They are still in state."""
        if (recovery := actor.recovery) is not None:
            self._cached -= len(recovery.cached)
            recovery.cached.clear()

    def load(self, number: int, actor: KeyActor) -> bytes | None:
        """Return the bytes of an input from state; None if it is committed, or chosen already."""
        # The run that it resumes was chosen already.
        if number in actor.woken:
            return None
        packed = self._state.input(actor.head, number)
        if packed is None:
            actor.gone += 1
            # More inputs are missing than were committed early, so state is damaged.
            if actor.gone > actor.ahead:
                raise StateFormatError(
                    "state lacks an input that waits for its turn",
                    expected=f"inputs {actor.head.first_pending} to {actor.head.next_pending - 1}",
                    found=f"no input {number} of key {decode_key(actor.key_text)!r}",
                    fix="restore from another checkpoint, and report this: state is never written so",
                )
        return packed

    def _is_held(self, actor: KeyActor) -> bool:
        """Return True if inputs of a key wait until one of its suspended runs ends."""
        return self._suspended_runs.hold_inputs(actor.head, actor.woken)

    def _is_full(self, actor: KeyActor) -> bool:
        """Return True if the actor gets no more inputs. An actor with an empty queue always gets one."""
        queue = actor.inbox
        if len(queue) >= self._queue_per_key:
            return True
        return bool(queue) and self._access.loop.load + self._in_cache() >= self._access.most_load

    def _feed_as_they_came(self, actor: KeyActor) -> None:
        """Pass woken runs, then inputs in the order of arrival, to an actor without recorded runs."""
        head = actor.head
        # Resumed runs do not queue behind inputs that have not started.
        for number in self._suspended_runs.woken(head) if head.suspended else ():
            if number not in actor.woken and not self._is_full(actor):
                self._submit(actor, number)
        while actor.loaded < head.next_pending and not self._is_full(actor):
            if head.suspended and self._is_held(actor):
                return
            actor.loaded += 1
            self._submit(actor, actor.loaded - 1)

    def _submit(self, actor: KeyActor, number: int) -> None:
        """Let the loop run entry ``number`` of ``pending``: an input, or the run that a wake-up resumes."""
        packed = self.load(number, actor)
        if packed is None:
            return
        waiting = self._resume(actor, number, packed, actor.next_seq)
        if waiting is None:
            record, timestamp = read_input(self._codec, packed)
            waiting = QueuedInput(record, timestamp, number, packed, actor.next_seq)
        self._access.loop.submit(actor, waiting)
        actor.next_seq += 1

    def _resume(self, actor: KeyActor, number: int, packed: bytes, seq: int) -> QueuedInput | None:
        """Return the suspended run that entry ``number`` of ``pending`` resumes; None for an input."""
        if not actor.head.suspended:
            return None
        waiting = self._suspended_runs.resume(actor.head, number, packed, seq)
        if waiting is not None:
            actor.woken.add(number)
        return waiting

    # -- as long as recorded runs are left -------------------------------------------------

    def _choose(self, actor: KeyActor) -> bool:
        """Submit the input that the records choose, or examine one more; return False if none is left."""
        recovery = actor.recovery
        if recovery is None or (order := recovery.order) is None:
            return False
        cached = recovery.cached
        previous_count = len(cached)
        chosen = self._access.loop.replays.choose(
            actor, lambda number: self._load_examined(number, actor.head, recovery)
        )
        if chosen is not None:
            self._cached -= previous_count - len(cached)
            resumed = self._resume(actor, chosen.number, chosen.packed, chosen.seq)
            if resumed is not None:
                chosen = replace(
                    chosen,
                    record=resumed.record,
                    timestamp=resumed.timestamp,
                    suspension=resumed.suspension,
                )
            self._access.loop.submit(actor, chosen)
            if cached and len(cached) + len(actor.inbox) > self._queue_per_key:
                # The queue counts against the same limit. The input is still in state.
                cached.popitem()
                self._cached -= 1
            return True
        if order.looked == actor.head.next_pending:
            return False
        number = order.looked
        packed = self.load(number, actor)
        # Also if it is gone: numbers are examined in order, each once, and the order knows how far.
        order.examine_input(None if packed is None else input_digest(packed))
        # Only this thread knows the entry of a suspended run, and so chooses its wake-up.
        is_input = not actor.head.suspended or number not in self._suspended_runs.woken(actor.head)
        if packed is not None and is_input and self._may_cache(actor, recovery):
            self._cache_input(recovery, number, packed)
        self._access.loop.replays.end_if_drained(actor, recovery)
        return True

    def _load_examined(self, number: int, head: Head, recovery: KeyRecovery) -> bytes:
        """Return the bytes of an input that was examined before, from memory or state."""
        packed = recovery.cached.get(number) or self._state.input(head, number)
        assert packed is not None
        return packed

    def _cache(self, actor: KeyActor, recovery: KeyRecovery) -> None:
        """Read the first inputs into memory while the loop reads the records that choose among them."""
        if actor.head.suspended and (self._suspended_runs.woken(actor.head) or self._is_held(actor)):
            # A wake-up goes first, so these inputs may have to wait. Records decide the order, if any.
            return
        while actor.loaded < actor.head.next_pending and self._may_cache(actor, recovery):
            packed = self.load(actor.loaded, actor)
            if packed is not None:
                self._cache_input(recovery, actor.loaded, packed)
            actor.loaded += 1

    def _may_cache(self, actor: KeyActor, recovery: KeyRecovery) -> bool:
        """Return True if one more input that is not chosen yet may be in memory.

        Half of the loop's room is for chosen inputs.
        """
        if len(recovery.cached) + len(actor.inbox) >= self._queue_per_key:
            return False
        cached = self._in_cache()
        return (
            2 * cached < self._access.most_load and self._access.loop.load + cached < self._access.most_load
        )

    def _in_cache(self) -> int:
        """Return the number of inputs of all keys that are in memory and not chosen yet."""
        return self._cached - self._access.loop.replays.uncached

    def _cache_input(self, recovery: KeyRecovery, number: int, packed: bytes) -> None:
        recovery.cached[number] = packed
        self._cached += 1
