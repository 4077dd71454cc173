"""Marks keys whose records are to be pruned, so that a restored attempt finds those that never come again.

What is to be pruned is known to the attempt that committed it. When that one dies, each key that comes again
tells the next attempt. A key that does not come again would keep its records for ever. So each key with
commits that are not pruned has a mark in a keyed state of its own, written in the call of Flink that commits:
a checkpoint has both or neither. Flink lists the keys of that state without looking at any other one, and the
mark goes when the store has pruned the key. So a restore costs what was not pruned, however many keys there
are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from flink_agents.api.action_state import JournalKey
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys

MOST_MARKED = 500_000
"""How many keys of a subtask have a mark. Records of others are pruned while the attempt lives, or when they
come again."""

MOST_FOUND = 200
"""How many restored keys are looked at in one beat."""

MOST_CLEARED = 200
"""How many marks are removed in one beat."""

_VERSION = b"\x01"


class UnprunedKeys:
    """Keeps the marks of a subtask. Only Flink's thread uses it, and any key may be current afterwards.

    Args:
        state: Keyed state.
        keys: The keys of the subtask.
        pruner: Prunes their records.
        job_id: Identity of the job. The journals of a former job are pruned when their keys come.
        journal_of: The journal of a key, given the identity of the job that its runs belong to.
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
        # Of each key with a mark, by its text: the key, and the last run that was committed.
        self._marked: dict[str, tuple[Any, int]] = {}
        self._found: deque[Any] = deque()
        self._touched: set[str] = set()

    def open(self) -> Any:
        """Find the restored keys whose records are not all pruned. Return the first, or None."""
        self._found.extend(self._keys.unpruned())
        return self._found[0] if self._found else None

    @property
    def is_looking(self) -> bool:
        """True if some of the restored keys were not reported to the pruner yet."""
        return bool(self._found)

    def touch(self, key_text: str) -> None:
        """Note that a run of a key was committed, whether or not it recorded anything.

        The head of the key is no longer that of the checkpoint which the attempt has begun from.
        """
        if self._found:
            self._touched.add(key_text)

    def committed(self, head: Head, key_text: str, marker: bytes | None) -> None:
        """Mark the current key: runs of it were committed that have records.

        Args:
            head: The key's head, as state has it now.
            key_text: The key.
            marker: Where the records of those runs begin; None where nobody knows.
        """
        marked = self._marked.get(key_text)
        if marked is not None:
            self._marked[key_text] = marked[0], head.next_seq - 1
        elif len(self._marked) < MOST_MARKED:
            unpruned = self._state.unpruned
            # The mark of an earlier attempt lies before that of this one.
            if not self._found or unpruned.value() is None:
                unpruned.update(_VERSION + (marker or b""))
            self._mark(self._keys.current_key(), head, key_text)

    def look(self, most: int = MOST_FOUND) -> None:
        """Have the pruner know of some of the restored keys."""
        while self._found and most:
            most -= 1
            key = self._found.popleft()
            self._keys.switch(key)
            self._report(key, self._keys.text())
        if not self._found:
            self._touched.clear()

    def clear(self, most: int = MOST_CLEARED) -> None:
        """Remove marks of keys of which all that was committed is pruned."""
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
        packed, data = self._state.unpruned.value(), self._state.head.value()
        if packed is None or packed[:1] != _VERSION:
            return
        marker = packed[1:] or None
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
            journal = self._mark(key, head, key_text)
            self._pruner.found(journal, head.settled_through, marker, key_text not in self._touched)

    def _mark(self, key: Any, head: Head, key_text: str) -> JournalKey:
        journal = self._journal_of(head.journal_id, key_text)
        self._marked[key_text] = key, head.next_seq - 1
        self._watched.journals.add(journal)
        return journal
