"""Hand-written asyncio with a journal in SQLite: the code of a team that needs no more."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable

from workload import FOLDER, Progress, charge, key_of, notify, send_all

IN_FLIGHT = 1000

TABLES = """
CREATE TABLE IF NOT EXISTS steps (number, step, result, PRIMARY KEY (number, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (key PRIMARY KEY, count) WITHOUT ROWID;
"""
COUNT = "INSERT INTO counters VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1"


class Journal:
    """Results of steps; all that wait are written in one transaction, which ends with an fsync."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(FOLDER / "journal.db", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(TABLES)
        self.known = {(row[0], row[1]): row[2] for row in self._db.execute("SELECT * FROM steps")}
        self._waiting: list[tuple[str, tuple[object, ...], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()

    async def write(self, statement: str, *row: object) -> None:
        """Return when a row is durable."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((statement, row, stored))
        self._wake.set()
        await stored

    async def run(self) -> None:
        """Write what waits, again and again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = self._waiting
            self._waiting = []
            await asyncio.to_thread(self._commit, batch)
            for *_, stored in batch:
                stored.set_result(None)

    def _commit(self, batch: list[tuple[str, tuple[object, ...], asyncio.Future[None]]]) -> None:
        self._db.execute("BEGIN")
        for statement, row, _ in batch:
            self._db.execute(statement, row)
        self._db.execute("COMMIT")

    async def step(self, name: str, function: Callable[[int], Awaitable[int]], number: int) -> int:
        """Return the recorded result of a step, or make it and record it."""
        if (number, name) in self.known:
            return self.known[number, name]
        result = await function(number)
        await self.write("INSERT INTO steps VALUES (?, ?, ?)", number, name, result)
        return result


async def main() -> None:
    """Handle all inputs, those of one key in order."""
    journal, progress = Journal(), Progress()
    writer = asyncio.create_task(journal.run())
    locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def handle(number: int) -> None:
        async with locks[key_of(number)]:
            await journal.step("charge", charge, number)
            await journal.step("notify", notify, number)
            if (number, "count") not in journal.known:
                counted = journal.write("INSERT INTO steps VALUES (?, 'count', 1)", number)
                await asyncio.gather(counted, journal.write(COUNT, key_of(number)))

    progress.ready()
    await send_all(handle, IN_FLIGHT, progress)
    writer.cancel()


if __name__ == "__main__":
    asyncio.run(main())
