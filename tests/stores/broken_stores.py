"""Stores with one defect each, which the conformance suite has to find."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Sequence
from typing import Any

from flink_agents.api.action_state import (
    ActionStateStore,
    JournalKey,
    Record,
    RecordKind,
)
from flink_agents.api.errors import AppendOutcomeUnknownError, RecordTooLargeError, StoreError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore

BROKEN: list[type[MemoryStore]] = []


def kill_in_memory(store: ActionStateStore) -> None:
    """What is left when the process of a store in memory is gone: an owner whose store is dead."""
    assert isinstance(store, MemoryStore)
    owner = store._owner
    assert owner is not None
    dead: Any = lambda: None  # noqa: E731
    store._place.owners[owner.token] = owner, dead
    store._opened = False
    store._owner = None


class Broken(MemoryStore):
    """Base of all; it has no defect itself."""

    def __init_subclass__(cls) -> None:
        if not cls.__name__.startswith("_"):
            BROKEN.append(cls)

    def _runs(self, journal: JournalKey) -> dict[int, list[Record]]:
        stored_journal = self._place.journals.get(journal)
        return {} if stored_journal is None else stored_journal.runs


# -- names ------------------------------------------------------------------------------


class _RenamesJournals(Broken):
    def rename(self, journal: JournalKey) -> JournalKey:
        raise NotImplementedError

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(self.rename(journal), records)

    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        return await super().scan(self.rename(journal), from_seq, to_seq)


class FoldsCase(_RenamesJournals):
    def rename(self, journal: JournalKey) -> JournalKey:
        return JournalKey(journal.journal_id.lower(), journal.key.lower())


class CutsLongKeys(_RenamesJournals):
    def rename(self, journal: JournalKey) -> JournalKey:
        return JournalKey(journal.journal_id, journal.key[:8000])


class JoinsNames(_RenamesJournals):
    def rename(self, journal: JournalKey) -> JournalKey:
        return JournalKey("", "\x00".join(journal))


class Normalizes(_RenamesJournals):
    def rename(self, journal: JournalKey) -> JournalKey:
        return JournalKey(*(unicodedata.normalize("NFC", text) for text in journal))


class ForgetsTheTypeOfKeys(_RenamesJournals):
    def rename(self, journal: JournalKey) -> JournalKey:
        return JournalKey(journal.journal_id, journal.key[1:])


class CannotEncodeSurrogates(_RenamesJournals):
    def rename(self, journal: JournalKey) -> JournalKey:
        return JournalKey(*(text.encode().decode() for text in journal))


# -- records ----------------------------------------------------------------------------


class _ChangesRecords(Broken):
    def change(self, records: list[Record]) -> list[Record]:
        raise NotImplementedError

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(journal, self.change(list(records)))


class ForgetsTheLast(_ChangesRecords):
    def change(self, records: list[Record]) -> list[Record]:
        return records[:-1] if len(records) > 1 else records


class ForgetsSteps(_ChangesRecords):
    def change(self, records: list[Record]) -> list[Record]:
        return [record._replace(step="") for record in records]


class SortsByIndex(_ChangesRecords):
    def change(self, records: list[Record]) -> list[Record]:
        return sorted(records, key=lambda record: record.index)


class KnowsNoKinds(_ChangesRecords):
    def change(self, records: list[Record]) -> list[Record]:
        return [record._replace(kind=int(record.kind)) for record in records]  # pyright: ignore[reportArgumentType]


class RoundsSequenceNumbers(_ChangesRecords):
    def change(self, records: list[Record]) -> list[Record]:
        return [record._replace(seq=int(float(record.seq))) for record in records]


class CutsData(_ChangesRecords):
    def change(self, records: list[Record]) -> list[Record]:
        return [record._replace(data=record.data[: 2**20]) for record in records]


class RefusesTheLimit(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        if any(len(record.data) == self.max_record_bytes for record in records):
            raise RecordTooLargeError("too large")
        await super().append(journal, records)


class HasNoLimit(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        limit = self._max_record_bytes
        self._max_record_bytes = 2**40
        try:
            await super().append(journal, records)
        finally:
            self._max_record_bytes = limit


class HidesSizes(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        try:
            await super().append(journal, records)
        except RecordTooLargeError:
            raise RecordTooLargeError("too large") from None


class TakesAnyNumber(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        try:
            await super().append(journal, records)
        except ValueError:
            await super().append(journal, records[:1])


class StoresUpToTheRefusal(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        for record in records:
            await super().append(journal, [record])


class FailsNeighbours(Broken):
    failed = False

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        try:
            await super().append(journal, records)
        except RecordTooLargeError:
            self.failed = True
            raise
        if self.failed:
            self.failed = False
            raise StoreError("the batch failed")


class KnowsTheEmptyAppend(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(journal, records)
        if not records:
            await super().append(journal, [Record(RecordKind.RUN, 0, "", 0, b"")])


class LooksAtTheListLater(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await super().append(journal, records)


class SharesItsLists(Broken):
    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        await super().read(journal, seq)
        return self._runs(journal).get(seq, [])


class Reorders(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        for _ in range(sum(record.index % 3 for record in records)):
            await asyncio.sleep(0)
        await super().append(journal, records)


class AnswersTooEarly(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        self.task = asyncio.ensure_future(self._later(journal, records))

    async def _later(self, journal: JournalKey, records: Sequence[Record]) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super().append(journal, records)


class AcknowledgesWhatIsOnlyInTheProcess(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        self.buffered = [*getattr(self, "buffered", ()), (journal, records)]

    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        await self.flush()
        return await super().scan(journal, from_seq, to_seq)

    async def close(self) -> None:
        await self.flush()
        await super().close()

    async def flush(self) -> None:
        buffered = getattr(self, "buffered", ())
        self.buffered = []
        for journal, records in buffered:
            await super().append(journal, records)


class IsTorn(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        for record in records:
            await super().append(journal, [record])
            await asyncio.sleep(0)


class LosesCancelledAppends(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        await super().append(journal, records)


class StoresTwice(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(journal, records)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await super().append(journal, records)
            raise


class TellsAllThatOneWasCancelled(Broken):
    cancelled = False

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(journal, records)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.cancelled:
            raise StoreError("another append was cancelled")


class NeverAnswers(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        if not self._opened and self._owner is not None:
            await asyncio.Event().wait()
        await super().append(journal, records)


class DoesNotKnow(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        if not self._opened:
            raise AppendOutcomeUnknownError("closed")
        await super().append(journal, records)


class LimitsWhatIsOnItsWay(Broken):
    bytes = 0

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        self.bytes += sum(len(record.data) for record in records)
        try:
            if self.bytes > 2 * self.max_record_bytes:
                raise StoreError("full")
            await asyncio.sleep(0)
            await super().append(journal, records)
        finally:
            self.bytes -= sum(len(record.data) for record in records)


# -- reading ----------------------------------------------------------------------------


class ScansInAnyOrder(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        records = await super().scan(journal, from_seq, to_seq)
        order = list(self._runs(journal))
        return sorted(records, key=lambda record: order.index(record.seq))


class ReversesRuns(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        records = await super().scan(journal, from_seq, to_seq)
        return sorted(reversed(records), key=lambda record: record.seq)


class LeavesOutTheFirst(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        records = await super().scan(journal, from_seq, to_seq)
        return records if from_seq == to_seq else [record for record in records if record.seq != from_seq]


class LeavesOutTheEnd(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        records = await super().scan(journal, from_seq, to_seq)
        return records if from_seq == to_seq else [record for record in records if record.seq != to_seq]


class ReadsTheNextRun(Broken):
    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        return await super().read(journal, seq) or await super().read(journal, seq + 1)


class ReadsOnlyItsOwn(Broken):
    def __init__(self, place: MemoryPlace) -> None:
        super().__init__(place)
        self._own: set[JournalKey] = set()

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        self._own.add(journal)
        await super().append(journal, records)

    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        records = await super().scan(journal, from_seq, to_seq)
        return records if journal in self._own else []
