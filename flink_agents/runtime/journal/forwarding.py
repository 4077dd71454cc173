"""A store that forwards each call to another one; the base of stores that change some of them."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from flink_agents.api.action_state import ActionStateStore, JournalInfo, JournalKey, Owner, Record, StoreStats


class ForwardingStore(ActionStateStore):
    """Forwards each call to another store; plans go through :meth:`append` and :meth:`read`.

    Args:
        store: The store that gets the calls.
    """

    def __init__(self, store: ActionStateStore) -> None:
        self._own = store

    def _store_of(self, journal: JournalKey) -> ActionStateStore:
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
        await self._store_of(journal).append(journal, records)

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await self._store_of(journal).prune(journal, through_seq)

    @override
    async def forget(self, journal_id: str) -> None:
        await self._own.forget(journal_id)

    # -- reading ----------------------------------------------------------------------

    @override
    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        return await self._store_of(journal).read(journal, seq)

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        return await self._store_of(journal).scan(journal, from_seq, to_seq)

    @override
    async def pruned_through(self, journal: JournalKey) -> int:
        return await self._store_of(journal).pruned_through(journal)

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        return self._store_of(journal).may_have(journal, marker, pending)

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        store = self._own if journal is None else self._store_of(journal)
        await store.rebuild(journal, marker, pending)

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        return self._store_of(journal).recovery_marker(journal)

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
