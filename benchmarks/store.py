"""Rate and latency of appends to a store of action state, without Flink: ``python -m benchmarks.store``.

Many appends at a time show the rate; one after the other, with a pause between them, the latency
that a call has at low load. Each append has one record of 200 bytes, of a key out of 5,000. With
``--store none`` nothing is stored: the rest is the cost of measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.brokers import broker_for_jobs, kafka_options
from flink_agents.api.action_state import ActionStateStore, JournalKey, Owner, Record, RecordKind
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.action_state.memory.store import MemoryStore

KEYS = 5000
DATA = b"x" * 200


class Nothing(MemoryStore):
    """Stores nothing."""

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Give the loop a turn, as a store does."""
        await asyncio.sleep(0)


async def rate(stores: Sequence[ActionStateStore], appends: int, at_a_time: int) -> float:
    """Appends per second and store."""

    async def work(store: ActionStateStore, first: int) -> None:
        for number in range(first, appends, at_a_time):
            await append(store, number)

    start_seconds = time.perf_counter()
    await asyncio.gather(*(work(store, first) for store in stores for first in range(at_a_time)))
    return appends / (time.perf_counter() - start_seconds)


async def latencies(store: ActionStateStore, appends: int, pause: float) -> list[float]:
    """Milliseconds of each append, while nothing else is appended."""
    took: list[float] = []
    for number in range(appends):
        start_seconds = time.perf_counter()
        await append(store, number)
        took.append((time.perf_counter() - start_seconds) * 1000)
        await asyncio.sleep(pause)
    return sorted(took)


async def append(store: ActionStateStore, number: int) -> None:
    record = Record(RecordKind.CALL, number // KEYS, "_input_event/ask", 0, DATA)
    await store.append(JournalKey("benchmark", f"i{number % KEYS}"), [record])


async def run(
    name: str, options: dict[str, Any], appends: int, at_a_time: int, subtasks: int
) -> dict[str, Any]:
    stores = [Nothing() if name == "none" else open_store(name, options) for _ in range(subtasks)]
    for subtask, store in enumerate(stores):
        await store.open(Owner.create("benchmark", "benchmark", subtask, subtasks))
        await store.rebuild()
    rates = [await rate(stores, appends, at_a_time) for _ in range(3)]
    took = await latencies(stores[0], 300, 0.005)
    # What is fast because it stores nothing is no store.
    if name != "none":
        assert (await stores[0].stats()).records == 3 * appends * subtasks + len(took)
    for store in stores:
        await store.close()
    return {
        "store": name,
        "subtasks": subtasks,
        "at_a_time": at_a_time,
        "appends_per_second": round(statistics.median(rates)),
        "append_p50_ms": round(statistics.median(took), 3),
        "append_p99_ms": round(took[int(len(took) * 0.99)], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "kafka", "memory", "none"])
    parser.add_argument("--appends", type=int, default=20_000)
    parser.add_argument("--at-a-time", type=int, default=100)
    parser.add_argument("--subtasks", type=int, default=1)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        with broker_for_jobs() if parsed.store == "kafka" else nullcontext():
            options = _options(parsed.store, directory)
            figures = run(parsed.store, options, parsed.appends, parsed.at_a_time, parsed.subtasks)
            print(json.dumps(asyncio.run(figures)))


def _options(store: str, directory: str) -> dict[str, Any]:
    if store == "kafka":
        return kafka_options()
    return {"path": str(Path(directory) / "store.db")} if store == "sqlite" else {}


if __name__ == "__main__":
    main()
