"""Stores with one defect each, in pruning, owners, life cycle or listings."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any

from broken_stores import Broken

from flink_agents.api.action_state import (
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    RecordKind,
    StoreStats,
)
from flink_agents.api.errors import JobIdentifierInUseError, RecordsPrunedError, StoreError
from flink_agents.connectors.action_state.memory.store import MemoryPlace

# -- pruning ----------------------------------------------------------------------------


class PrunesOneLess(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq - 1)


class PrunesOneMore(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq + 1)


class PrunesWhatBeginsAlike(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        for other_journal in list(self._place.journals):
            if other_journal.key.startswith(journal.key):
                await super().prune(other_journal, through_seq)


class ForgetsThatItPruned(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq)
        if journal in self._place.journals:
            self._place.journals[journal].pruned_through = -1


class ForgetsJournalsWithoutRecords(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq)
        if not self._runs(journal):
            self._place.journals.pop(journal, None)


class TakesPruningBack(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq)
        if journal in self._place.journals:
            self._place.journals[journal].pruned_through = through_seq


class PrunesAllBelowZero(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, 2**62 if through_seq == -1 else through_seq)


class RefusesToPruneTwice(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        if through_seq == await self.pruned_through(journal):
            raise StoreError("pruned already")
        await super().prune(journal, through_seq)


class RemembersUnknownJournals(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        if journal not in self._place.journals:
            await super().append(journal, [Record(RecordKind.RUN, 0, "", 0, b"")])
        await super().prune(journal, through_seq)


class PrunesLater(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super().prune(journal, through_seq)


class PrunesOneAtATime(Broken):
    pruning = False

    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        if not self.pruning:
            self.pruning = True
            await asyncio.sleep(0)
            self.pruning = False
            await super().prune(journal, through_seq)


class FindsNothingWherePruned(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        try:
            return await super().scan(journal, from_seq, to_seq)
        except RecordsPrunedError:
            return []


class ScansWhatIsLeft(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        try:
            return await super().scan(journal, from_seq, to_seq)
        except RecordsPrunedError:
            if from_seq == to_seq:
                raise
            return await super().scan(journal, None, to_seq)


class RefusesOpenScans(Broken):
    async def scan(self, journal: JournalKey, from_seq: Any = None, to_seq: Any = None) -> list[Record]:
        return await super().scan(journal, from_seq or 0, to_seq)


class AppendsToWhatWasPruned(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        stored_journal = self._place.journals.get(journal)
        if stored_journal is None:
            return await super().append(journal, records)
        through = stored_journal.pruned_through
        stored_journal.pruned_through = -1
        try:
            await super().append(journal, records)
        finally:
            stored_journal.pruned_through = through


# -- owners -----------------------------------------------------------------------------


class FencesNobody(Broken):
    def _check_owner(self) -> None:
        return None


class LetsOldOwnersPrune(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        check = self._check_owner
        self._check_owner = lambda: None
        await super().prune(journal, through_seq)
        self._check_owner = check


class FencesOnce(Broken):
    refused = False

    def _check_owner(self) -> None:
        if not self.refused:
            self.refused = True
            super()._check_owner()


class _Outranks(Broken):
    """Who outranks whom is another question here."""

    def keeps(self, new: Owner, old: Owner) -> bool:
        """Whether ``old`` may go on, though it should not."""
        return False

    def ends(self, new: Owner, old: Owner) -> bool:
        """Whether ``old`` may not go on, though it should."""
        return False

    async def open(self, owner: Owner | None) -> None:
        previous_owners = dict(self._place.owners)
        await super().open(owner)
        if owner is not None:
            for token, (old, holder) in previous_owners.items():
                if self.keeps(owner, old):
                    self._place.owners[token] = old, holder
                elif self.ends(owner, old):
                    self._place.owners.pop(token, None)


class ForgetsParallelism(_Outranks):
    def keeps(self, new: Owner, old: Owner) -> bool:
        return new.subtask != old.subtask and new.job_id == old.job_id


class ForgetsSubtasks(_Outranks):
    def keeps(self, new: Owner, old: Owner) -> bool:
        return new.parallelism == old.parallelism and new.job_id == old.job_id


class FencesAllSubtasks(_Outranks):
    def ends(self, new: Owner, old: Owner) -> bool:
        return new.group == old.group


class FencesAllGroups(_Outranks):
    def ends(self, new: Owner, old: Owner) -> bool:
        return True


class FencesWhoeverLooks(Broken):
    async def open(self, owner: Owner | None) -> None:
        await super().open(owner)
        if owner is None:
            self._place.owners.clear()


class LetsTwoJobsIn(Broken):
    async def open(self, owner: Owner | None) -> None:
        owners = dict(self._place.owners)
        self._place.owners.clear()
        await super().open(owner)
        self._place.owners.update({token: ownership for token, ownership in owners.items() if owner is None})


class LetsAttemptsWait(Broken):
    async def open(self, owner: Owner | None) -> None:
        for old, _ in self._place.owners.values():
            if owner is not None and owner.outranks(old) and owner.job_id == old.job_id:
                raise JobIdentifierInUseError("in use")
        await super().open(owner)


class LetsRescaledJobsIn(Broken):
    async def open(self, owner: Owner | None) -> None:
        for token, (old, _) in list(self._place.owners.items()):
            if owner is not None and owner.parallelism != old.parallelism:
                del self._place.owners[token]
        await super().open(owner)


class KeepsItsLease(Broken):
    async def close(self) -> None:
        self._opened = False


class GivesAllLeasesBack(Broken):
    async def close(self) -> None:
        await super().close()
        self._place.owners.clear()


class NeverTakesOver(Broken):
    async def open(self, owner: Owner | None) -> None:
        for old, holder in self._place.owners.values():
            if owner is not None and holder() is None:
                raise JobIdentifierInUseError(f"in use by {old.job_id}")
        await super().open(owner)


class DeletesWhatTheOldJobWrote(Broken):
    async def open(self, owner: Owner | None) -> None:
        other_owners = [old for old, _ in self._place.owners.values() if owner and old.job_id != owner.job_id]
        await super().open(owner)
        if other_owners or not self._place.owners:
            self._place.journals.clear()


# -- life -------------------------------------------------------------------------------


class SharesNothing(Broken):
    def __init__(self, place: MemoryPlace) -> None:
        super().__init__(MemoryPlace())


class HasANewIdEachTime(Broken):
    async def open(self, owner: Owner | None) -> None:
        await super().open(owner)
        self._place.store_id = str(uuid.uuid4())


class IsAlwaysOpen(Broken):
    def _opened_place(self) -> MemoryPlace:
        return self._place


class IsOpenAfterClose(Broken):
    async def close(self) -> None:
        await super().close()
        self._opened = self._owner is not None


class ClosesOnce(Broken):
    async def close(self) -> None:
        if not self._opened:
            raise RuntimeError("closed")
        await super().close()


class KnowsNothingOfBefore(Broken):
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        return super().may_have(journal) and self._known_journals is None


class ForgetsWhatWasPruned(Broken):
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        return super().may_have(journal) and (self._known_journals is None or bool(self._runs(journal)))


class HasLargeMarkers(Broken):
    def recovery_marker(self, journal: JournalKey) -> bytes:
        return super().recovery_marker(journal) * 13

    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        self._opened_place()


class SkipsWhatAMarkerNeeds(Broken):
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        await super().rebuild(journal, marker, pending)
        if marker is not None:
            for stored_journal in self._place.journals.values():
                stored_journal.runs.pop(1, None)


class SkipsAllWithoutMarkers(Broken):
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        await super().rebuild(journal, marker, pending)
        if marker is None:
            self._place.journals.clear()


class BelievesAllMarkers(Broken):
    """Takes a marker of one key for all others that state does not know."""

    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        await super().rebuild(journal, marker, pending)
        if marker is not None and not pending:
            for key, stored_journal in self._place.journals.items():
                if key != journal:
                    stored_journal.runs.clear()


# -- listings ---------------------------------------------------------------------------


class _Lists(Broken):
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        return self.listed(await super().journals(journal_id, after, limit), await super().journals())

    def listed(self, found: list[JournalInfo], every: list[JournalInfo]) -> list[JournalInfo]:
        raise NotImplementedError


class ListsBackwards(_Lists):
    def listed(self, found: list[JournalInfo], every: list[JournalInfo]) -> list[JournalInfo]:
        return found[::-1]


class ListsAll(_Lists):
    def listed(self, found: list[JournalInfo], every: list[JournalInfo]) -> list[JournalInfo]:
        return every


class CountsRunsAsRecords(_Lists):
    def listed(self, found: list[JournalInfo], every: list[JournalInfo]) -> list[JournalInfo]:
        return [dataclasses.replace(info, runs=info.records) for info in found]


class CountsWhatWasPruned(Broken):
    async def stats(self) -> StoreStats:
        return dataclasses.replace(await super().stats(), records=3)


class ForgetsOwners(Broken):
    async def stats(self) -> StoreStats:
        return dataclasses.replace(await super().stats(), owners=())
