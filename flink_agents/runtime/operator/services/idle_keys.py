"""Removes the heads of keys without work, see the option ``state.idle-key-ttl``.

For a key without memory whose inputs are committed, a head is all that Flink's state has. It has the next
sequence number, from which idempotency keys, ids of events, UUIDs and random numbers of the next run derive.
If a key comes again without a head, it starts a new *generation*: its numbers start with the present second,
so far apart that no other generation reaches them.

Until its first run is committed, a new head is *fresh*: an attempt that died may have started the generation
before, with other numbers. All records that the store still has of such a key are from that attempt, and the
numbers continue with those: a head is removed only when the store has no records of its runs. So a restore
finds the same identities, with the head or without it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.end_times import START
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers

RUNS_PER_SECOND = 2**20
"""More runs than a key can have in a second. Numbers for each second stay below 2**63."""

SLOTS = 8
"""The TTL is divided into this number of slots. A key that comes often has at most one timer in each."""

ANSWER_MS = 1000
"""The interval after which to check for the answer of the store."""


class IdleKeyExpiry(KeyService):
    """Removes heads of keys without work. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
    """

    has_key_timers = True

    def __init__(self, shared: RunEnvironment, state: KeyedState, clock: Callable[[], int]) -> None:
        after = shared.config.get(AgentOptions.IDLE_KEY_TTL)
        assert after is not None
        self._after = int(after.total_seconds() * 1000)
        self._slot = max(1, self._after // SLOTS)
        self._journals = shared.journals
        self._memory_expires = shared.memory_expires
        self._metrics = shared.telemetry.run_metrics
        self._state = state
        self._clock = clock
        self._asked: dict[str, Future[bool]] = {}

    def new_head(self, journal_id: str) -> Head:
        """Return the head of a key that comes for the first time, or again."""
        return Head.fresh_one(journal_id, self._clock() // 1000 * RUNS_PER_SECOND)

    def note_idle(self, head: Head, timers: Timers) -> None:
        """Note in the head that all inputs of the current key are committed, if they are.

        The caller writes the head.
        """
        if head.has_pending:
            return
        slot = self._clock() // self._slot
        if head.idle_since != slot:
            head.idle_since = slot
            self._look_at((slot + 1) * self._slot + self._after, timers)

    def note_work(self, actor: KeyActor) -> None:
        """Note that a key has inputs again."""
        self._asked.pop(actor.key_text, None)

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Remove the head of the current key if it has no actor, and the head is no longer needed."""
        # A key with an actor has work.
        if at >= START or key_text in self.operator.actors:
            return
        # The head may be removed below.
        self.operator.cache.remove_key(key_text)
        head = self.operator.heads.read(key_text)
        if head is not None:
            self.look_at(head, key_text, timers)

    def look_at(self, head: Head, key_text: str, timers: Timers) -> None:
        """Remove the head of the current key, which has no actor, if its time has come."""
        now = self._clock()
        if head.has_pending or head.skipped or head.suspended or head.idle_since is None:
            return
        if head.delayed_due is not None:
            return  # the commit of its run registers a timer
        if now < (head.idle_since + 1) * self._slot + self._after:
            return  # a later timer looks
        if head.signals_expire is not None:
            self._look_at(max(now, head.signals_expire) + 1, timers)
            return
        # A key with memory keeps its head, so that the numbers of its runs continue.
        if any(True for _ in self._state.memory.items()):
            if self._memory_expires:
                self._look_at(now + self._after, timers)
            return
        has_records = head.store is not None and self._keeps_records(head, key_text)
        if has_records is None:
            self._look_at(now + ANSWER_MS, timers)
        elif has_records:
            self._look_at(now + self._after, timers)
        else:
            self._state.head.clear()
            # A map whose entries have all expired is empty, and Flink's heap would keep it for ever.
            self._state.memory.clear()
            if self._journals is not None:
                # There is nothing to replay: without this, each key would leave a note.
                self._journals.unmark_replayed(self._journals.key(head.journal_id, key_text))
            self._metrics.count("keys_forgotten")

    def _keeps_records(self, head: Head, key_text: str) -> bool | None:
        """Return True if the store has records of the key; None if it has not answered yet."""
        if self._journals is None:
            return True
        answer = self._asked.get(key_text)
        if answer is None:
            self._asked[key_text] = self.operator.loop_access.loop.run_coroutine(
                self._journals.keeps_records(self._journals.key(head.journal_id, key_text))
            )
            return None
        if not answer.done():
            return None
        del self._asked[key_text]
        # If the store fails now, the next timer tries again.
        return answer.cancelled() or answer.exception() is not None or answer.result()

    def _look_at(self, at: int, timers: Timers) -> None:
        timers.register_processing_time_timer(at)
