"""A process that appends to a store ``kafka`` without end, and logs the outcome of each append.

``python kafka_store_process.py BROKERS TOPIC FILE``: it opens the store, appends three records at a time
to some journals, and writes a line for each append that has returned or was refused. It ends with the
first error.
"""

from __future__ import annotations

import asyncio
import os
import sys

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import FencedOwnerError
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.kafka.store import KafkaStore

AT_A_TIME = 20


async def main(brokers: str, topic: str, file: str) -> None:
    store = KafkaStore(KafkaSettings(brokers, topic, partitions=4, lease_seconds=1.0, append_seconds=30.0))
    owner = Owner.create("job-1", "orders/agent")
    await store.open(owner)
    noted = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    await asyncio.gather(*(flood(store, f"{owner.token} {number}", noted) for number in range(AT_A_TIME)))


async def flood(store: KafkaStore, key: str, noted: int) -> None:
    for seq in range(2**60):
        records = [Record(RecordKind.CALL, seq, "", index, b"x" * 300) for index in range(3)]
        try:
            await store.append(JournalKey("job", key), records)
        except FencedOwnerError:
            os.write(noted, f"refused\t{key}\t{seq}\n".encode())
            break
        os.write(noted, f"stored\t{key}\t{seq}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
