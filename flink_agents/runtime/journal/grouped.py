"""A store for one attempt that owns the journals of its job, and those of the jobs that it succeeds.

A store has one owner, who may append as long as no newer owner has its group. So the journals of each former
job have a separate store object. It is opened as an owner of the former job's group when the first key of
that job comes. From then on, the former job cannot append. While it is still running, or another successor
is, the claim of this job is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import CoroutineType
from typing import Any

from typing_extensions import override

from flink_agents.api.action_state import (
    ActionStateStore,
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    RecordKind,
    StoreStats,
    closed_error,
)

GUARD = "\x00guard"
"""Id of a journal that is only written to check that its writer still owns its group. No job has this id."""


class ForwardingStore(ActionStateStore):
    """Forwards each call to another store; plans go through :meth:`append` and :meth:`read`.

    Args:
        store: The store that gets the calls.
    """

    def __init__(self, store: ActionStateStore) -> None:
        self._own = store

    def _of(self, journal: JournalKey) -> ActionStateStore:
        """Return the store that gets the calls about a journal."""
        return self._own

    @property
    @override
    def store_id(self) -> str:
        return self._own.store_id

    @property
    @override
    def max_record_bytes(self) -> int:
        return self._own.max_record_bytes

    @override
    async def open(self, owner: Owner | None) -> None:
        await self._own.open(owner)

    @override
    async def close(self) -> None:
        await self._own.close()

    # -- writing ----------------------------------------------------------------------

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await self._of(journal).append(journal, records)

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await self._of(journal).prune(journal, through_seq)

    @override
    async def forget(self, journal_id: str) -> None:
        await self._own.forget(journal_id)

    # -- reading ----------------------------------------------------------------------

    @override
    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        return await self._of(journal).read(journal, seq)

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        return await self._of(journal).scan(journal, from_seq, to_seq)

    @override
    async def pruned_through(self, journal: JournalKey) -> int:
        return await self._of(journal).pruned_through(journal)

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        return self._of(journal).may_have(journal, marker, pending)

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        store = self._own if journal is None else self._of(journal)
        await store.rebuild(journal, marker, pending)

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        return self._of(journal).recovery_marker(journal)

    @override
    def position(self) -> bytes:
        return self._own.position()

    @override
    async def check_position(self, position: bytes) -> None:
        await self._own.check_position(position)

    @override
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        return await self._own.journals(journal_id, after, limit)

    @override
    async def stats(self) -> StoreStats:
        return await self._own.stats()


class GroupedStore(ForwardingStore):
    """Opens one store for each job whose journals the attempt owns, and routes each call to the right one.

    Args:
        store: The store of the job's own journals, and of everything that belongs to no job; not open yet.
        make: Creates another store like it.
    """

    def __init__(self, store: ActionStateStore, make: Callable[[], ActionStateStore]) -> None:
        super().__init__(store)
        self._make = make
        self._owner: Owner | None = None
        self._group: str | None = None
        self._others: dict[str, ActionStateStore] = {}
        self._claiming = asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None
        self._guarded = 0
        self._closed = False

    @override
    async def open(self, owner: Owner | None) -> None:
        await super().open(owner)
        self._owner = owner
        self._group = None if owner is None else owner.group

    @override
    async def close(self) -> None:
        self._closed = True
        stores = [*self._others.values(), self._own]
        ended = await asyncio.gather(*(store.close() for store in stores), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def claim(self, group: str) -> None:
        """Become the owner of the journals of a former job, unless this attempt is already.

        Raises:
            JobIdentifierInUseError: That job is running, or another successor of it.
        """
        if not self._is_foreign(group) or group in self._others:
            return
        async with self._claiming:
            if group not in self._others:
                self._others[group] = await self._opened(group)

    async def _opened(self, group: str) -> ActionStateStore:
        owner = self._owner
        if owner is None or self._closed:
            raise closed_error("the store was opened without an owner, or is closed")
        store = self._make()
        try:
            await store.open(Owner.create(owner.job_id, group, owner.subtask, owner.parallelism))
            if self._closed:
                raise closed_error()
        except BaseException:
            await store.close()
            raise
        return store

    def _is_foreign(self, journal_id: str) -> bool:
        owner = self._owner
        return owner is not None and journal_id != owner.group and not journal_id.startswith("\x00")

    @override
    def _of(self, journal: JournalKey) -> ActionStateStore:
        """Return the store to read a journal from: that of its former job, or else of this job."""
        return self._others.get(journal.journal_id, self._own)

    async def _owned(self, journal: JournalKey) -> ActionStateStore:
        """Return the store to write a journal to."""
        await self.claim(journal.journal_id)
        return self._of(journal)

    # -- writing ----------------------------------------------------------------------

    @override
    def append(self, journal: JournalKey, records: Sequence[Record]) -> CoroutineType[Any, Any, None]:
        # Almost all journals are the job's own. Their appends go to its store directly.
        if journal.journal_id == self._group or not self._is_foreign(journal.journal_id):
            return self._own.append(journal, records)
        return self._append_owned(journal, records)

    async def _append_owned(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await (await self._owned(journal)).append(journal, records)

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        """Prune. For the journal of a former job, check first that no later attempt of this job has started.

        A later attempt claims the journals of its own job at its start, and those of former jobs when it
        needs them. So until then, these journals do not show that this attempt's knowledge of checkpoints is
        stale.
        """
        store = await self._owned(journal)
        if store is not self._own:
            await self._see_that_own()
        await store.prune(journal, through_seq)

    async def _see_that_own(self) -> None:
        """Write a record that the store rejects if a later attempt has started."""
        former = self._guard
        if former is not None and not former.done():
            # That write may have succeeded before the caller learned of its checkpoint, so it proves nothing.
            await asyncio.wait([former])
        if self._guard is None or self._guard is former:
            self._guard = asyncio.create_task(self._write_guard())
        await asyncio.shield(self._guard)

    async def _write_guard(self) -> None:
        owner = self._owner
        assert owner is not None
        journal = JournalKey(GUARD, f"{owner.group}\x00{owner.subtask}")
        self._guarded = max(self._guarded, await self._own.pruned_through(journal) + 1)
        await self._own.append(journal, [Record(RecordKind.RUN, self._guarded, "", 0, b"")])
        await self._own.prune(journal, self._guarded)

    # -- reading ----------------------------------------------------------------------

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        if journal.journal_id == self._group or not self._is_foreign(journal.journal_id):
            return self._own.may_have(journal, marker, pending)
        other_store = self._others.get(journal.journal_id)
        return other_store is None or other_store.may_have(journal, marker, pending)

    @override
    async def remember_plan(self, fingerprint: str, data: bytes) -> None:
        await self._own.remember_plan(fingerprint, data)

    @override
    async def recall_plan(self, fingerprint: str) -> bytes | None:
        return await self._own.recall_plan(fingerprint)

    @override
    async def plans(self) -> dict[str, bytes]:
        return await self._own.plans()

    @override
    def metrics(self) -> Mapping[str, int]:
        return self._own.metrics()
