"""The store ``memory``: nothing outlives the process. For tests, and for jobs that may lose their journal."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from flink_agents.api.action_state import (
    MAX_RECORD_BYTES,
    NOTHING_PRUNED,
    PLANS,
    REMOVALS,
    ActionStateStore,
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    StoreStats,
    check_records,
    closed_error,
    in_use_error,
    pruned_error,
    stale_error,
)
from flink_agents.api.errors import StoreMismatchError
from flink_agents.api.settings.stores import read_options
from flink_agents.connectors.action_state.journals import Journal, describe, totals


class MemoryPlace:
    """The records that several stores share; each access acquires ``lock``.

    Attributes:
        store_id: UUID of the place; see :attr:`ActionStateStore.store_id`.
        journals: All journals.
        removals: Fully pruned journals that are remembered, the oldest first; the values are None.
        owners: Each owner that may append, by token, with a weak reference to its store. The store holds its
            lease.
    """

    def __init__(self) -> None:
        self.store_id = str(uuid.uuid4())
        self.lock = threading.Lock()
        self.journals: dict[JournalKey, Journal] = {}
        self.removals: dict[JournalKey, None] = {}
        self.owners: dict[str, tuple[Owner, weakref.ref[MemoryStore]]] = {}

    def claim(self, owner: Owner, store: MemoryStore) -> None:
        """Make ``owner`` the one that may append.

        Raises:
            JobIdentifierInUseError: The store of another job has the group.
        """
        for other_owner, holder in self.owners.values():
            if owner.yields_to(other_owner) and holder() is not None:
                raise in_use_error(owner, other_owner.job_id)
        for token in [
            token for token, (earlier_owner, _) in self.owners.items() if owner.outranks(earlier_owner)
        ]:
            del self.owners[token]
        self.owners[owner.token] = owner, weakref.ref(store)

    def prune(self, journal: JournalKey, through: int, keep: int) -> None:
        """Remove the first runs of a journal.

        Args:
            journal: The journal.
            through: The last run to remove.
            keep: Number of fully pruned journals to remember.
        """
        stored = self.journals.get(journal)
        if stored is None or through <= stored.pruned_through:
            return
        stored.prune(through)
        self.removals.pop(journal, None)
        if not stored.runs:
            self.removals[journal] = None
        while len(self.removals) > keep:
            oldest = next(iter(self.removals))
            del self.removals[oldest]
            self.journals.pop(oldest, None)


_places: dict[str, MemoryPlace] = {}
_places_lock = threading.Lock()


def place_of(name: str) -> MemoryPlace:
    """Return the place with a name in this process; create it at the first call."""
    with _places_lock:
        return _places.setdefault(name, MemoryPlace())


class MemoryStore(ActionStateStore):
    """A store in the memory of this process.

    Args:
        place: The place whose records it shares. Default: a new one.
        max_record_bytes: Maximum size of a record's data in bytes.
        removals: Number of fully pruned journals to remember.
    """

    def __init__(
        self,
        place: MemoryPlace | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        removals: int = REMOVALS,
    ) -> None:
        self._place = place or MemoryPlace()
        self._max_record_bytes = max_record_bytes
        self._removals = removals
        self._owner: Owner | None = None
        self._opened = False
        self._known_journals: frozenset[JournalKey] | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> MemoryStore:
        """Return a store that shares the place named by the option ``place``."""
        return cls(place_of(read_options("memory", options)["place"]))

    @property
    @override
    def store_id(self) -> str:
        return self._opened_place().store_id

    @property
    @override
    def max_record_bytes(self) -> int:
        return self._max_record_bytes

    @override
    def position(self) -> bytes:
        """Return a byte once a run has a record, else nothing: until then, state fits any store in memory."""
        with self._place.lock:
            has_runs = any(journal.journal_id != PLANS for journal in self._place.journals)
        return b"\x00" if has_runs else b""

    @override
    async def open(self, owner: Owner | None) -> None:
        """Open the store. It never waits: a lease ends with the store that holds it."""
        with self._place.lock:
            if owner is not None:
                self._place.claim(owner, self)
                self._known_journals = frozenset(self._place.journals)
            self._owner = owner
            self._opened = True

    @override
    async def close(self) -> None:
        with self._place.lock:
            self._opened = False
            if self._owner is not None:
                self._place.owners.pop(self._owner.token, None)

    def _opened_place(self) -> MemoryPlace:
        if not self._opened:
            raise closed_error()
        return self._place

    def _check_owner(self) -> None:
        if self._owner is not None and self._owner.token not in self._place.owners:
            raise stale_error(self._owner)

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Append records without waiting, so a cancelled call has stored them."""
        place = self._opened_place()
        if self._owner is None:
            raise closed_error("the store was opened without an owner")
        records = list(records)
        check_records(records, self._max_record_bytes)
        with place.lock:
            self._check_owner()
            stored = place.journals.get(journal) or Journal()
            for record in records:
                if record.seq <= stored.pruned_through:
                    raise pruned_error(journal, record.seq, stored.pruned_through)
            for record in records:
                stored.runs.setdefault(record.seq, []).append(record)
                place.journals[journal] = stored
            if records:
                place.removals.pop(journal, None)

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        place = self._opened_place()
        with place.lock:
            stored = place.journals.get(journal)
            if stored is None:
                return []
            return stored.scan(journal, from_seq, to_seq)

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        place = self._opened_place()
        with place.lock:
            self._check_owner()
            place.prune(journal, through_seq, self._removals)

    @override
    async def forget(self, journal_id: str) -> None:
        place = self._opened_place()
        if self._owner is None:
            raise closed_error("the store was opened without an owner")
        with place.lock:
            self._check_owner()
            for journal in [journal for journal in place.journals if journal.journal_id == journal_id]:
                del place.journals[journal]
                place.removals.pop(journal, None)

    @override
    async def pruned_through(self, journal: JournalKey) -> int:
        place = self._opened_place()
        with place.lock:
            stored = place.journals.get(journal)
            return NOTHING_PRUNED if stored is None else stored.pruned_through

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        self._opened_place()
        return self._known_journals is None or journal in self._known_journals

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        """Check that a marker belongs to the place; its records need not be read.

        Raises:
            StoreMismatchError: The marker is of another place.
        """
        if marker not in (None, uuid.UUID(self._opened_place().store_id).bytes):
            raise StoreMismatchError(
                "state belongs to a store in memory that no longer exists",
                fix="use the store sqlite or kafka for jobs that are restored in another process",
            )

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        """Return the id of the place, whose records are always up to date."""
        return uuid.UUID(self._opened_place().store_id).bytes

    @override
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        place = self._opened_place()
        with place.lock:
            return describe(place.journals, journal_id, after, limit)

    @override
    async def stats(self) -> StoreStats:
        place = self._opened_place()
        with place.lock:
            journals, records, data_bytes = totals(place.journals)
            owners = tuple(owner for owner, _ in place.owners.values())
        return StoreStats(journals, records, data_bytes, None, owners)
