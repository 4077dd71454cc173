"""A process that uses a store ``sqlite``; the tests send it lines.

``python store_process.py FILE ACKS SUBTASK PARALLELISM COMMAND``: it opens the store and prints
``open``. ``once`` then appends at each line of its input, and prints what came of it. ``flood``
appends without end, three records at a time, and notes each journal and run in ACKS when its
append has returned. ``count N`` appends N times and ends.
"""

from __future__ import annotations

import asyncio
import os
import sys

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import StoreError
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore

AT_A_TIME = 20
LEASE_SECONDS = 1.0


async def main(file: str, acks: str, subtask: str, parallelism: str, command: str, *rest: str) -> None:
    store = SQLiteStore(file, lease_seconds=LEASE_SECONDS)
    await store.open(Owner.create("job-1", "orders/agent", int(subtask), int(parallelism)))
    print("open", flush=True)
    if command == "once":
        while await asyncio.to_thread(sys.stdin.readline):
            print(await once(store), flush=True)
    elif command == "flood":
        noted = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        await asyncio.gather(*(flood(store, f"i{number}", noted, 2**60) for number in range(AT_A_TIME)))
    else:
        noted = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        await flood(store, f"process {subtask}", noted, int(rest[0]))
    await store.close()


async def once(store: SQLiteStore) -> str:
    try:
        await store.append(JournalKey("job", "sonce"), [Record(RecordKind.CALL, 0, "", 0, b"")])
    except StoreError as error:
        return type(error).__name__
    return "stored"


async def flood(store: SQLiteStore, key: str, noted: int, times: int) -> None:
    for seq in range(times):
        records = [Record(RecordKind.CALL, seq, "", index, b"x" * 300) for index in range(3)]
        await store.append(JournalKey("job", key), records)
        os.write(noted, f"{key}\t{seq}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
