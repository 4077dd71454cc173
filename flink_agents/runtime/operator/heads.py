"""Reads the heads of keys that have no actor, and says where records of a key can lie.

An actor has the head of its key. The heads of all other keys are in state, and a head says whether runs of
the key may have been recorded, and where.

:class:`KeyCache` keeps what state has of the latest keys in memory as well, since a call of Flink's state
costs as much as a short action. Only this operator changes the state of a key, and a restore makes a new
operator with an empty cache. So the cache holds what a read would return. Each change is still written to
state: nothing is in memory alone. A key is cached while it has no actor: an actor takes over head and
memory, and returns them when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flink_agents.api.errors import PlanChangedError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.journal.journals import check_store
from flink_agents.runtime.journal.other_jobs import OtherJobs
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head, KeyedState

MOST_BYTES = 4 * 1024 * 1024
"""When so much was kept, what was not used since then goes. So there is twice as much at most."""

KEY_BYTES = 700
"""What a key takes without the values of its memory, about."""

NODE_BYTES = 150
"""What a node of memory takes without its value, about."""

MOST_NODES = 50
"""Of a key with more nodes in memory than these, the head is kept alone: to count them takes longer."""


class Heads:
    """Reads heads of keys without actors, and marks where their records can lie. Only Flink's thread uses it.

    Args:
        shared: What all runs share.
        state: Keyed state.
        job_id: Identity that new keys get as their journal id.
        new_head: Makes the head of a key that has none, given the journal id.

    Attributes:
        on_released: Called when a head lists released runs; None if there is nothing to prepare.
    """

    def __init__(
        self, shared: RunEnvironment, state: KeyedState, job_id: str, new_head: Callable[[str], Head]
    ) -> None:
        self._state = state
        self._may_wait = shared.may_wait
        self._job_id = job_id
        self._journals = shared.journals
        self._new_head = new_head
        self._other_jobs = OtherJobs(shared.config, job_id)
        self.on_released: Callable[[], None] | None = None

    def read(self, key_text: str) -> Head | None:
        """The head of the current key; None where it has none.

        Raises:
            JobIdentifierMismatchError: It is of another job, and nobody says what is meant.
            PlanChangedError: A run is suspended, and this agent suspends none.
            StoreMismatchError: Runs of the key were recorded in another store.
        """
        packed = self._state.head.value()
        if packed is None:
            return None
        head = Head.unpack(packed)
        journals = self._journals
        if journals is not None:
            if head.marker is not None and head.store != journals.store_id:
                journals.adopt(head)
            self._other_jobs.admit(head, key_text, journals.store_id)
        if head.store is not None:
            check_store(journals, head.store)
        if not self._may_wait and (head.suspended is not None or head.released):
            raise _waits_no_more(key_text)
        if head.released and self.on_released is not None:
            self.on_released()
        return head

    def of(self, key_text: str) -> Head:
        """The head of the current key, or a new one.

        Raises:
            Error: As :meth:`read` does.
        """
        found = self.read(key_text)
        return self._new_head(self._job_id) if found is None else found

    def may_have_records(self, head: Head, key_text: str, pending: bool) -> bool:
        """Whether runs of a key may have been recorded by an earlier attempt.

        Args:
            head: The key's head.
            key_text: The key.
            pending: Whether inputs of it wait in state.
        """
        journals = self._journals
        if journals is None:
            return False
        known = bool(head.overtaken or head.origins)
        return known or journals.may_have(head.journal_id, key_text, head.marker, pending)

    def mark(self, head: Head, key_text: str, unread: bool = True) -> None:
        """Keep in the head where records of a key can lie, before its first run that may make some.

        Args:
            head: The key's head, whose bytes the caller writes.
            key_text: The key.
            unread: Whether it is not known yet that an earlier attempt recorded nothing of the key.
        """
        journals = self._journals
        if journals is None or head.marker is not None or head.has_pending:
            return
        if not (unread and self.may_have_records(head, key_text, False)):
            head.marker = journals.marker(head.journal_id, key_text)


def _waits_no_more(key_text: str) -> PlanChangedError:
    return PlanChangedError(
        "a run is suspended, and no action of this agent waits",
        expected="an agent that calls ctx.sleep or ctx.wait_for_signal, as the one that wrote the state",
        found=f"a suspended run of key {decode_key(key_text)!r}",
        fix=f"set {AgentOptions.MAY_SUSPEND.key} to true: this code then resumes the run when its wait ends",
    )


class CachedKey(NamedTuple):
    """What state has of a key.

    Attributes:
        head: Its head.
        memory: Nodes of its short-term memory by path; None for one that is not there.
        whole: Whether these are all nodes.
        searched: Whether nothing that an earlier attempt recorded of the key is left to be run.
    """

    head: Head
    memory: dict[str, bytes | None]
    whole: bool
    searched: bool


class KeyCache:
    """Keeps heads and memory of the latest keys. Only Flink's thread uses it.

    Args:
        expires: Whether memory expires in state, so that nothing is kept.
        most_bytes: How much is kept until what was not used goes.
    """

    def __init__(self, expires: bool, most_bytes: int = MOST_BYTES) -> None:
        self._most = 0 if expires else most_bytes
        self._latest: dict[str, CachedKey] = {}
        self._before: dict[str, CachedKey] = {}
        self._bytes = 0

    def get(self, key_text: str) -> CachedKey | None:
        """What is kept of a key, if it is."""
        return self._latest.get(key_text) or self._before.get(key_text)

    def keep(
        self, key_text: str, head: Head, memory: dict[str, bytes | None], whole: bool, searched: bool
    ) -> None:
        """Keep what state has of a key from now on.

        What it takes is counted each time, so that all of them take less than what is counted.
        """
        if not self._most:
            return
        if len(memory) > MOST_NODES:
            memory, whole = {}, False
        self._latest[key_text] = CachedKey(head, memory, whole, searched)
        self._bytes += KEY_BYTES
        for data in memory.values():
            self._bytes += NODE_BYTES + (len(data) if data is not None else 0)
        if self._bytes > self._most:
            self._before, self._latest, self._bytes = self._latest, {}, 0

    def drop(self, key_text: str) -> None:
        """Keep nothing of a key: somebody else changes it now."""
        self._latest.pop(key_text, None)
        self._before.pop(key_text, None)
