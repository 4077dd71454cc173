"""Checks that a store in Kafka does not grow with the age of a job: ``python -m benchmarks.flat SECONDS``.

One store appends a call and the end of its action for each of 1,000 events a second of 5,000 keys, and
prunes every ten seconds all older records, like a job with checkpoints. Twenty times, it reports
the bytes of the topic on the broker's disk, and those of the batches that are needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque

from benchmarks.brokers import broker_for_jobs, kafka_options
from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.connectors.action_state.kafka.store import KafkaStore

KEYS = 5000
RATE = 1000
CHECKPOINT_SECONDS = 10
DATA = b"x" * 200


def _journal(number: int) -> JournalKey:
    return JournalKey("benchmark", f"i{number % KEYS}")


async def _event(store: KafkaStore, number: int) -> None:
    seq = number // KEYS
    await store.append(_journal(number), [Record(RecordKind.CALL, seq, "_input_event/ask", 0, DATA)])
    await store.append(_journal(number), [Record(RecordKind.ACTION, seq, "_input_event/ask", 0, DATA)])


async def _prune(store: KafkaStore, done: deque[tuple[float, int]]) -> None:
    """Prune what was done before the last checkpoint."""
    through: dict[int, int] = {}
    while done and done[0][0] < time.monotonic() - CHECKPOINT_SECONDS:
        _, number = done.popleft()
        through[number % KEYS] = number // KEYS
    await asyncio.gather(*(store.prune(_journal(key), seq) for key, seq in through.items()))


async def run(seconds: int) -> list[dict[str, float]]:
    """Append and prune, and look twenty times."""
    options = kafka_options()
    store = KafkaStore.from_options(options)
    await store.open(Owner.create("benchmark", "benchmark"))
    await store.rebuild()
    looking = KafkaStore.from_options(options)
    await looking.open(None)
    start_seconds = time.monotonic()
    samples: list[dict[str, float]] = []
    done: deque[tuple[float, int]] = deque()
    pruned_at = looked_at = start_seconds
    number = 0
    while (now := time.monotonic()) < start_seconds + seconds:
        due = min(int((now - start_seconds) * RATE), number + RATE)
        await asyncio.gather(*(_event(store, event_number) for event_number in range(number, due)))
        done.extend((time.monotonic(), event_number) for event_number in range(number, due))
        number = due
        if now - pruned_at >= CHECKPOINT_SECONDS:
            pruned_at = now
            await _prune(store, done)
        if now - looked_at >= seconds / 20:
            looked_at = now
            stats = await looking.stats()
            samples.append(
                {
                    "seconds": round(now - start_seconds),
                    "events": number,
                    "disk_mb": (stats.stored_bytes or 0) / 1e6,
                    "records": stats.records,
                    "data_mb": stats.data_bytes / 1e6,
                    "batches_kept": store.metrics()["batches_kept"],
                }
            )
            print(json.dumps(samples[-1]), flush=True)
        await asyncio.sleep(0.01)
    await looking.close()
    await store.close()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flat", description=__doc__)
    parser.add_argument("seconds", type=int, nargs="?", default=600)
    options = parser.parse_args()
    with broker_for_jobs():
        asyncio.run(run(options.seconds))


if __name__ == "__main__":
    main()
