"""A store that fails at chosen appends, and acknowledges the others late."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Callable, Sequence

from flink_agents.api.action_state import ActionStateStore, JournalKey, Record, RecordKind
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing.faults import Choose, Faults, FaultyStore
from tests.random_programs.world import World, places_in


class RandomFaults(Faults):
    """Where the stores of a program fail; they share one place.

    Args:
        choose: See ``Faults``.
        place: What they share.
    """

    def __init__(self, choose: Choose | None = None, place: MemoryPlace | None = None) -> None:
        self.place = place or MemoryPlace()
        super().__init__(choose, lambda: MemoryStore(self.place))

    def store(self) -> FaultyStore:
        """A store for one attempt of one subtask."""
        return SlowStore(self._make(), self)

    def stored(self) -> set[str]:
        """The calls whose ends are stored."""
        with self.place.lock:
            journals = list(self.place.journals.values())
        return {
            place for journal in journals for run in journal.runs.values() for place in places_in(list(run))
        }

    def without_ends(self) -> MemoryPlace:
        """A copy of what is stored, but for the records by which whole actions would be left out."""
        twin = MemoryPlace()
        with self.place.lock:
            twin.store_id = self.place.store_id
            twin.journals = copy.deepcopy(self.place.journals)
        for journal in twin.journals.values():
            for seq, records in journal.runs.items():
                journal.runs[seq] = [record for record in records if record.kind is not RecordKind.ACTION]
        return twin


class SlowStore(FaultyStore):
    """Stores at once or after a time, appends of one journal in their order.

    It says so at once, after some turns of the loop, after a time, or of several appends in one turn.
    """

    def __init__(self, store: ActionStateStore, faults: Faults) -> None:
        super().__init__(store, faults)
        self._group: list[asyncio.Future[None]] = []
        self._orders: defaultdict[JournalKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Store records, and say so later."""
        async with self._orders[journal]:
            if World.chance.random() < 0.25:
                await asyncio.sleep(World.chance.choice((0.0, 0.0005, 0.0015)))
            if World.dead:
                await asyncio.get_running_loop().create_future()
            await super().append(journal, records)
        drawn = World.chance.random()
        if drawn < 0.35:
            pass
        elif drawn < 0.6:
            for _ in range(World.chance.randint(1, 5)):
                await asyncio.sleep(0)
        elif drawn < 0.7:
            await asyncio.sleep(World.chance.choice((0.0003, 0.0008)))
        else:
            await self._together()
        World.acknowledged |= places_in(records)

    async def _together(self) -> None:
        """Return in the same turn of the loop as those that come soon."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._group.append(mine)
        if len(self._group) == 1:
            later: Callable[[], None] = self._release
            loop.call_later(World.chance.choice((0.0, 0.0004, 0.001)), later)
        await mine

    def _release(self) -> None:
        group = self._group
        self._group = []
        for future in group:
            if not future.done():
                future.set_result(None)
