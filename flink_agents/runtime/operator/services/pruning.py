"""Marks keys whose records must be pruned, so that a restored attempt also finds those that never come again.

The attempt that committed runs knows which records to prune. If it dies, the next attempt learns that for
each key that comes again. A key that does not come again would keep its records forever. So each key with
unpruned commits has a mark in a separate keyed state. Flink commits mark and runs together, so a checkpoint
has both or neither. Flink lists the keys of that state without reading any other key. The mark is removed
when the store has pruned the key. So a restore costs time for unpruned keys only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from flink_agents.api.action_state import JournalKey
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers

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
        self._watched = pruner.watched
        self._job_id = job_id
        self._journal_of = journal_of
        # Keys with a mark, by their text: the key, and the last run that was committed.
        self._marked: dict[str, tuple[Any, int]] = {}
        self._found: deque[Any] = deque()
        self._touched: set[str] = set()

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find the restored keys with marks."""
        # Flink lists these keys without reading any other key.
        self._found.extend(self._keys.unpruned())
        if not self._found or timers is None:
            return False
        keys.switch(self._found[0])
        return True

    @property
    def has_unreported(self) -> bool:
        """True if some of the restored keys were not reported to the pruner yet."""
        return bool(self._found)

    def mark(self, head: Head, key_text: str, runs: int, marker: bytes | None) -> None:
        """Mark the current key if runs with records were committed.

        Args:
            head: The key's head, as state has it now.
            key_text: The key.
            runs: The number of runs with records that were committed since the last time.
            marker: The position before the records of those runs; None if it is unknown.
        """
        if self._found:
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
            if not self._found or unpruned.value() is None:
                unpruned.update(_VERSION + (marker or b""))
            self._watch(self._keys.current_key(), head, key_text)

    def report_restored(self, most: int = MOST_FOUND) -> None:
        """Report some of the restored keys to the pruner."""
        while self._found and most:
            most -= 1
            key = self._found.popleft()
            self._keys.switch(key)
            self._report(key, self._keys.text())
        if not self._found:
            self._touched.clear()

    def clear_marks(self, most: int = MOST_CLEARED) -> None:
        """Remove the marks of keys whose committed runs are all pruned; look at up to ``most`` journals."""
        pruned = self._watched.pruned
        while pruned and most:
            most -= 1
            journal, through = pruned.popleft()
            key, last = self._marked.get(journal.key, (None, through + 1))
            if last <= through:
                self._keys.switch(key)
                self._state.unpruned.clear()
                del self._marked[journal.key]
                self._watched.journals.discard(journal)

    def _report(self, key: Any, key_text: str) -> None:
        """Report the current restored key to the pruner. It may have had inputs since the restore."""
        packed = self._state.unpruned.value()
        data = self._state.head.value()
        # No mark, or one of a later version, which must stay.
        if packed is None or packed[:1] != _VERSION:
            return
        marker = packed[1:] or None
        # The head is gone, so the key has no records left.
        if data is None:
            self._state.unpruned.clear()
            return
        head = Head.unpack(data)
        if key_text in self._marked:
            # A commit since the restore has reported it. Its older records begin at the marker.
            if marker is not None:
                self._watched.markers[self._journal_of(head.journal_id, key_text)] = marker
        elif head.journal_id == self._job_id and not head.fresh:
            # The numbers of a fresh head belong to a generation whose journal may be another one.
            journal = self._watch(key, head, key_text)
            self._pruner.note_unpruned(journal, head.committed_through, marker, key_text not in self._touched)

    def _watch(self, key: Any, head: Head, key_text: str) -> JournalKey:
        journal = self._journal_of(head.journal_id, key_text)
        self._marked[key_text] = key, head.next_seq - 1
        self._watched.journals.add(journal)
        return journal
