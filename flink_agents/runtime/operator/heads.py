"""Reads the heads of keys that have no actor, and finds the positions of their records.

An actor has the head of its key. The heads of all other keys are in state. A head shows if runs of the key
may have been recorded, and where.

:class:`KeyCache` holds the state of recent keys in memory, because a call of Flink's state costs as much as a
short action. Only this operator changes the state of a key, and a restore creates a new operator with an
empty cache. So the cache equals what a read would return. Each change is still written to state: nothing is
in memory alone. A key is cached while it has no actor: an actor takes over head and memory, and returns them
when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.journal.journals import check_store
from flink_agents.runtime.state.keyed_state import Head, KeyedState

MOST_BYTES = 4 * 1024 * 1024
"""The size of one of the two generations of the cache, so the cache has at most twice as many bytes."""

KEY_BYTES = 700
"""The approximate size of a key without the values of its memory."""

NODE_BYTES = 150
"""The approximate size of a node of memory without its value."""

MOST_NODES = 50
"""If a key has more nodes of memory, only its head is cached: counting them takes longer."""


class Heads:
    """Reads the heads of keys without actors, and stores recovery markers. For Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        job_id: The journal id of new keys.
        new_head: Creates the head of a key that has none, given the journal id.
    """

    def __init__(
        self, shared: RunEnvironment, state: KeyedState, job_id: str, new_head: Callable[[str], Head]
    ) -> None:
        self._state = state
        self._job_id = job_id
        self._journals = shared.journals
        self._new_head = new_head

    def read(self, key_text: str) -> Head | None:
        """Return the head of the current key; None if it has none.

        Raises:
            StateFormatError: Its bytes are corrupt, or of an unknown version.
            JobIdentifierMismatchError: It is of another job, and no option allows that.
            StoreMismatchError: Runs of the key were recorded in another store.
        """
        head = self._state.read()
        if head is not None:
            self._check_store(head, key_text)
        return head

    def read_or_create(self, key_text: str) -> Head:
        """Return the head of the current key, or a new one; raises what :meth:`read` does."""
        head = self._state.read()
        if head is None:
            return self._new_head(self._job_id)
        self._check_store(head, key_text)
        return head

    def _check_store(self, head: Head, key_text: str) -> None:
        """Check that the store has the records that a head names; raises what :meth:`read` does."""
        journals = self._journals
        if journals is not None:
            # The store may be a copy of the one that the state names.
            if head.marker is not None and head.store != journals.store_id:
                journals.adopt(head)
            # Before the store is compared: another job may leave the one that the head names.
            journals.other_jobs.admit(head, key_text, journals.store_id)
        # Without this check, runs would make their calls again in an empty store.
        if head.store is not None:
            check_store(journals, head.store)

    def may_have_records(self, head: Head, key_text: str, pending: bool) -> bool:
        """Return True if an earlier attempt may have recorded runs of a key.

        Args:
            head: The key's head.
            key_text: The key.
            pending: True if inputs of it wait in state.
        """
        journals = self._journals
        if journals is None:
            return False
        has_unread = bool(head.skipped or head.origins)
        return has_unread or journals.may_have(head, key_text, pending)

    def mark(self, head: Head, key_text: str, unread: bool = True) -> None:
        """Put a recovery marker into a head: a position in the store before the key's first uncommitted run.

        After a restore, the store is read from there. A head with a marker, or with waiting inputs, keeps it.

        Args:
            head: The key's head. The caller writes it.
            key_text: The key.
            unread: True if an earlier attempt may have recorded something of the key, whose position is not
                known.
        """
        journals = self._journals
        # A marker stays until the runs after it are committed.
        if journals is None or head.marker is not None or head.first_pending != head.next_pending:
            return
        if not (unread and self.may_have_records(head, key_text, False)):
            store, journal = journals.of_key(head.journal_id, key_text)
            head.marker = store.recovery_marker(journal)


class CachedKey(NamedTuple):
    """The state of a key, as ``KeyCache`` has it.

    Attributes:
        head: The head of the key.
        memory: Encoded nodes of its short-term memory by path; None for a node that does not exist.
        whole: True if ``memory`` has all nodes of the key that exist.
        searched: True if the store was searched for recorded runs of the key, and none is left to replay.
    """

    head: Head
    memory: dict[str, bytes | None]
    whole: bool
    searched: bool


class KeyCache:
    """Caches heads and memory of recent keys. Only for Flink's task thread.

    Args:
        expires: True if memory expires in state. Then nothing is cached.
        most_bytes: The approximate size of a generation, see ``MOST_BYTES``.

    Attributes:
        latest: The generation of the keys that were used last.
        older: The generation before it.
    """

    def __init__(self, expires: bool, most_bytes: int = MOST_BYTES) -> None:
        self._most = 0 if expires else most_bytes
        self.latest: dict[str, CachedKey] = {}
        self.older: dict[str, CachedKey] = {}
        self._bytes = 0

    def get(self, key_text: str) -> CachedKey | None:
        """Return the cached head and memory of a key; None if they are not cached."""
        return self.latest.get(key_text) or self.older.get(key_text)

    def store_key(
        self, key_text: str, head: Head, memory: dict[str, bytes | None], whole: bool, searched: bool
    ) -> None:
        """Cache the state of a key, with the attributes of a ``CachedKey``.

        If the head has the memory of the key, it replaces ``memory``. The size is added each time, also if
        the key replaces an older entry. So the real size is below the counted one.
        """
        if not self._most:
            return
        if head.nodes is not None:
            memory = cast("dict[str, bytes | None]", head.nodes)
            whole = True
        elif len(memory) > MOST_NODES:
            # Only the head is cached then.
            memory = {}
            whole = False
        self.latest[key_text] = CachedKey(head, memory, whole, searched)
        self._bytes += KEY_BYTES
        for data in memory.values():
            self._bytes += NODE_BYTES + (len(data) if data is not None else 0)
        if self._bytes > self._most:
            # Two generations: entries that are used move to the newer one, and the older one is dropped
            # whole.
            self.older = self.latest
            self.latest = {}
            self._bytes = 0

    def remove_key(self, key_text: str) -> None:
        """Remove a key, because its state changes elsewhere now."""
        self.latest.pop(key_text, None)
        self.older.pop(key_text, None)
