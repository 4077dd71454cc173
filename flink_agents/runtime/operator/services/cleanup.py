"""Removes heads of idle keys, and marks keys whose records must be pruned.

**Heads.** ``IdleKeyExpiry`` removes the heads of keys without work, see the option ``state.idle-key-ttl``.

For a key without memory whose inputs are committed, a head is all that Flink's state has. It has the next
sequence number, from which idempotency keys, ids of events, UUIDs and random numbers of the next run derive.
If a key comes again without a head, it starts a new *generation*: its numbers start with the present second,
so far apart that no other generation reaches them.

Until its first run is committed, a new head is *fresh*: an attempt that died may have started the generation
before, with other numbers. All records that the store still has of such a key are from that attempt, and the
numbers continue with those: a head is removed only when the store has no records of its runs. So a restore
finds the same identities, with the head or without it.

**Marks.** ``UnprunedKeys`` marks keys whose records must be pruned. So a restored attempt also finds those
that never come again.

The attempt that committed runs knows which records to prune. If it dies, the next attempt learns that for
each key that comes again. A key that does not come again would keep its records forever. So each key with
unpruned commits has a mark in a separate keyed state. Flink commits mark and runs together, so a checkpoint
has both or neither. Flink lists the keys of that state without reading any other key. The mark is removed
when the store has pruned the key. So a restore costs time for unpruned keys only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from flink_agents.api.action_state import JournalKey
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.services.service import START, Emission, KeyService
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers

RUNS_PER_SECOND = 2**20
"""More runs than a key can have in a second. Numbers for each second stay below 2**63."""

SLOTS = 8
"""The TTL consists of this number of slots. A key that comes often has at most one timer in each slot."""

ANSWER_MS = 1000
"""The interval, in milliseconds, of checks if the store has answered whether it has records."""


class IdleKeyExpiry(KeyService):
    """Removes heads of keys that had no work for the option's time. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
    """

    has_key_timers = True

    def __init__(self, shared: RunEnvironment, state: KeyedState, clock: Callable[[], int]) -> None:
        ttl = shared.config.get(AgentOptions.IDLE_KEY_TTL)
        assert ttl is not None
        self._ttl_ms = int(ttl.total_seconds() * 1000)
        self._slot_ms = max(1, self._ttl_ms // SLOTS)
        self._journals = shared.journals
        self._memory_expires = shared.memory_expires
        self._metrics = shared.telemetry.run_metrics
        self._state = state
        self._clock = clock
        self._asked: dict[str, Future[bool]] = {}

    def new_head(self, journal_id: str) -> Head:
        """Return the head of a key without one, whose numbers begin with the present second."""
        head = Head.fresh_one(journal_id, self._clock() // 1000 * RUNS_PER_SECOND)
        if self._memory_expires:
            head.nodes = None
        return head

    def note_idle(self, head: Head, timers: Timers) -> None:
        """Note in the head that all inputs of the current key are committed, if they are.

        The caller writes the head.
        """
        if head.has_pending:
            return
        slot = self._clock() // self._slot_ms
        if head.idle_since != slot:
            head.idle_since = slot
            self._schedule_check((slot + 1) * self._slot_ms + self._ttl_ms, timers)

    def note_work(self, actor: KeyActor) -> None:
        """Note that a key has work again, so that an answer of the store about it no longer counts."""
        self._asked.pop(actor.key_text, None)

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Check the head of the current key, if the key has no actor."""
        # A key with an actor has work.
        if at >= START or key_text in self.operator.actors:
            return
        # The head may be removed below.
        self.operator.cache.remove_key(key_text)
        head = self.operator.heads.read(key_text)
        if head is not None:
            self.look_at(head, key_text, timers)

    def look_at(self, head: Head, key_text: str, timers: Timers) -> None:
        """Remove the head of the current key if nothing needs it, or else schedule another check.

        Args:
            head: The head of the key, which has no actor.
            key_text: The key.
            timers: Timers of the key.
        """
        now = self._clock()
        if head.has_pending or head.skipped or head.suspended or head.idle_since is None:
            return
        if head.delayed_due is not None:
            return  # the commit of its run registers a timer
        if now < (head.idle_since + 1) * self._slot_ms + self._ttl_ms:
            return  # a later timer looks
        if head.signals_expire is not None:
            self._schedule_check(max(now, head.signals_expire) + 1, timers)
            return
        # A key with memory keeps its head, so that the numbers of its runs continue.
        if self._state.read_memory(head):
            if self._memory_expires:
                self._schedule_check(now + self._ttl_ms, timers)
            return
        has_records = head.store is not None and self._keeps_records(head, key_text)
        if has_records is None:
            self._schedule_check(now + ANSWER_MS, timers)
        elif has_records:
            self._schedule_check(now + self._ttl_ms, timers)
        else:
            self._state.remove(head)
            # A map whose entries have all expired is empty, and Flink's heap would keep it for ever.
            self._state.memory.clear()
            if self._journals is not None:
                # There is nothing to replay: without this, each key would leave a note.
                self._journals.unmark_replayed(self._journals.key(head.journal_id, key_text))
            self._metrics.count("keys_forgotten")

    def _keeps_records(self, head: Head, key_text: str) -> bool | None:
        """Return True if the store has, or may have, records of the key; None until it has answered."""
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

    def _schedule_check(self, at: int, timers: Timers) -> None:
        timers.register_processing_time_timer(at)


MOST_MARKED = 500_000
"""The most keys of a subtask with a mark.

Records of other keys are pruned while the attempt is running, or when the keys come again.
"""

MOST_FOUND = 200
"""The most restored keys that one heartbeat examines."""

MOST_CLEARED = 200
"""The most marks that one heartbeat removes."""

_VERSION = b"\x01"


class UnprunedKeys(KeyService):
    """Marks the keys of a subtask whose records must be pruned, and finds them after a restore.

    Only Flink's task thread uses it. Its methods may change Flink's current key.

    Args:
        state: Keyed state.
        keys: The keys of the subtask.
        pruner: Prunes their records.
        job_id: Identity of the job. The journals of a former job are pruned when their keys come.
        journal_of: Returns the journal of a key, given the identity of the job that its runs belong to.
    """

    def __init__(
        self,
        state: KeyedState,
        keys: Keys,
        pruner: Pruner,
        job_id: str,
        journal_of: Callable[[str, str], JournalKey],
    ) -> None:
        self._state = state
        self._keys = keys
        self._pruner = pruner
        self._progress = pruner.progress
        self._job_id = job_id
        self._journal_of = journal_of
        # Keys with a mark, by their text: the key, and the number of the last run that was committed.
        self._marked: dict[str, tuple[Any, int]] = {}
        self._unreported: deque[Any] = deque()
        self._touched: set[str] = set()

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """List the restored keys with marks, for later heartbeats; return True if there are any."""
        # Flink lists these keys without reading any other key.
        self._unreported.extend(self._keys.unpruned())
        if not self._unreported or timers is None:
            return False
        keys.switch(self._unreported[0])
        return True

    @property
    def has_unreported(self) -> bool:
        """True if restored keys with marks are left that the pruner does not know yet."""
        return bool(self._unreported)

    def mark(self, head: Head, key_text: str, runs: int, marker: bytes | None) -> None:
        """Mark the current key if runs with records in the store were committed.

        Args:
            head: The key's head, as state has it now.
            key_text: The key.
            runs: The number of runs with records that were committed since the last time.
            marker: The position before the records of those runs; None if it is unknown.
        """
        if self._unreported:
            # The head is no longer that of the checkpoint which the attempt started from.
            self._touched.add(key_text)
        if not runs:
            return
        marked = self._marked.get(key_text)
        if marked is not None:
            self._marked[key_text] = marked[0], head.next_seq - 1
        elif len(self._marked) < MOST_MARKED:
            unpruned = self._state.unpruned
            # The mark of an earlier attempt has an earlier position, so it stays.
            if not self._unreported or unpruned.value() is None:
                unpruned.update(_VERSION + (marker or b""))
            self._watch(self._keys.current_key(), head, key_text)

    def report_restored(self, most: int = MOST_FOUND) -> None:
        """Report up to ``most`` of the restored keys with marks to the pruner."""
        while self._unreported and most:
            most -= 1
            key = self._unreported.popleft()
            self._keys.switch(key)
            self._report(key, self._keys.text())
        if not self._unreported:
            self._touched.clear()

    def clear_marks(self, most: int = MOST_CLEARED) -> None:
        """Remove the marks of keys whose committed runs are all pruned; look at up to ``most`` journals."""
        pruned = self._progress.pruned
        while pruned and most:
            most -= 1
            journal, through = pruned.popleft()
            key, last = self._marked.get(journal.key, (None, through + 1))
            if last <= through:
                self._keys.switch(key)
                self._state.unpruned.clear()
                del self._marked[journal.key]
                self._progress.journals.discard(journal)

    def _report(self, key: Any, key_text: str) -> None:
        """Report the current key, which was restored with a mark, to the pruner.

        It may have had inputs since the restore.
        """
        packed = self._state.unpruned.value()
        head = self._state.read()
        # No mark, or one of a later version, which must stay.
        if packed is None or packed[:1] != _VERSION:
            return
        marker = packed[1:] or None
        # The head is gone, so the key has no records left.
        if head is None:
            self._state.unpruned.clear()
            return
        if key_text in self._marked:
            # A commit since the restore has reported it. Its older records begin at the marker.
            if marker is not None:
                self._progress.markers[self._journal_of(head.journal_id, key_text)] = marker
        elif head.journal_id == self._job_id and not head.fresh:
            # The numbers of a fresh head belong to a generation whose journal may be another one.
            journal = self._watch(key, head, key_text)
            self._pruner.note_unpruned(journal, head.committed_through, marker, key_text not in self._touched)

    def _watch(self, key: Any, head: Head, key_text: str) -> JournalKey:
        """Note that a key has a mark, and let the pruner report when its journal was pruned."""
        journal = self._journal_of(head.journal_id, key_text)
        self._marked[key_text] = key, head.next_seq - 1
        self._progress.journals.add(journal)
        return journal
