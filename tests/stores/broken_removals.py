"""Stores that remember wrongly which journals were pruned."""

from __future__ import annotations

from collections.abc import Sequence

from broken_stores import Broken

from flink_agents.api.action_state import JournalKey, Record


class RemembersTooFew(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        keep = self._removals
        self._removals = self._removals // 2
        await super().prune(journal, through_seq)
        self._removals = keep


class RemembersAll(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        keep = self._removals
        self._removals = 2**62
        await super().prune(journal, through_seq)
        self._removals = keep


class ForgetsJournalsInUse(Broken):
    """What was pruned in part counts as well."""

    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq)
        if journal in self._place.journals and through_seq >= 0:
            self._place.removals[journal] = None


class ForgetsWhatIsUsedAgain(Broken):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        was_there = journal in self._place.removals
        await super().append(journal, records)
        if was_there:
            self._place.removals[journal] = None


class CountsFromTheFirstTime(Broken):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        again = await self.pruned_through(journal) >= 0
        await super().prune(journal, through_seq)
        if again and journal in self._place.removals:
            del self._place.removals[journal]
            self._place.removals = {journal: None, **self._place.removals}


class ForgetsThemAllAtOpen(Broken):
    async def open(self, owner: object) -> None:
        for journal in self._place.removals:
            del self._place.journals[journal]
        self._place.removals.clear()
        await super().open(owner)  # pyright: ignore[reportArgumentType]


class RemembersTheFirst(Broken):
    """The last one goes where another one has to."""

    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        full = len(self._place.removals) >= self._removals
        keep = self._removals
        self._removals = 2**62
        await super().prune(journal, through_seq)
        self._removals = keep
        if full and journal in self._place.removals:
            del self._place.removals[journal], self._place.journals[journal]
