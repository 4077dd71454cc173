"""Stores that forget the journals of a job wrongly."""

from __future__ import annotations

from collections.abc import Sequence

from broken_stores import Broken

from flink_agents.api.action_state import JournalKey, Record
from flink_agents.connectors.action_state.journals import Journal


class ForgetsNothing(Broken):
    async def forget(self, journal_id: str) -> None:
        self._opened_place()


class _ForgetsOthers(Broken):
    def meant(self, journal: JournalKey, journal_id: str) -> bool:
        raise NotImplementedError

    async def forget(self, journal_id: str) -> None:
        for other_id in {journal.journal_id for journal in self._place.journals}:
            if self.meant(JournalKey(other_id, ""), journal_id):
                await super().forget(other_id)
        await super().forget(journal_id)


class ForgetsAllJobs(_ForgetsOthers):
    def meant(self, journal: JournalKey, journal_id: str) -> bool:
        return True


class ForgetsWhatBeginsAlike(_ForgetsOthers):
    def meant(self, journal: JournalKey, journal_id: str) -> bool:
        return journal.journal_id.startswith(journal_id)


class ForgetsRecordsOnly(Broken):
    """The journals are still listed."""

    async def forget(self, journal_id: str) -> None:
        journals = [journal for journal in self._opened_place().journals if journal.journal_id == journal_id]
        await super().forget(journal_id)
        for journal in journals:
            self._place.journals[journal] = Journal()


class PrunesInsteadOfForgetting(Broken):
    async def forget(self, journal_id: str) -> None:
        for journal in list(self._opened_place().journals):
            if journal.journal_id == journal_id:
                await self.prune(journal, 2**63 - 1)


class KeepsWhatWasPruned(Broken):
    async def forget(self, journal_id: str) -> None:
        pruned = {name: journal.pruned_through for name, journal in self._opened_place().journals.items()}
        await super().forget(journal_id)
        for name, through in pruned.items():
            if name.journal_id == journal_id and through >= 0:
                self._place.journals[name] = Journal()
                self._place.journals[name].pruned_through = through


class ForgetsOnePage(Broken):
    async def forget(self, journal_id: str) -> None:
        page = await self.journals(journal_id)
        remaining_journals = {
            name: journal
            for name, journal in self._place.journals.items()
            if name.journal_id == journal_id and name not in {info.journal for info in page}
        }
        await super().forget(journal_id)
        self._place.journals.update(remaining_journals)


class StaleOwnerForgets(Broken):
    def _check_owner(self) -> None:
        if not self._forgetting:
            super()._check_owner()

    async def forget(self, journal_id: str) -> None:
        self._forgetting = True
        try:
            await super().forget(journal_id)
        finally:
            self._forgetting = False

    _forgetting = False


class AnybodyForgets(Broken):
    async def forget(self, journal_id: str) -> None:
        owner = self._owner
        self._owner = self._owner or next(iter(self._place.owners.values()))[0]
        try:
            await super().forget(journal_id)
        finally:
            self._owner = owner


class ForgetsWhenClosed(Broken):
    async def forget(self, journal_id: str) -> None:
        if self._opened:
            await super().forget(journal_id)


class TakesNothingAfterwards(Broken):
    async def forget(self, journal_id: str) -> None:
        await super().forget(journal_id)
        _forgotten.add((self.store_id, journal_id))

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        if (self.store_id, journal.journal_id) not in _forgotten:
            await super().append(journal, records)


_forgotten: set[tuple[str, str]] = set()
