"""The time that a store in Kafka takes to read its records: ``python -m benchmarks.rebuild RECORDS``.

``RECORDS`` records of 200 bytes are appended, ten to a run, by keys in turn; nine runs of ten are
pruned. Then a new process reads everything without a marker (``all_seconds``), and another one
reads from the markers that the keys had when a hundredth was left to append (``tail_seconds``).
``kept_mb`` is the growth of the first. The baseline reads the same topic with a bare
consumer of kafka-python: ``python -m benchmarks.rebuild --bare RECORDS``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.brokers import broker_for_jobs, kafka_options
from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.connectors.action_state.kafka.store import KafkaStore

KEYS = 5000
IN_A_RUN = 10
AT_A_TIME = 500
KEPT = 10
"""Of so many runs one is not pruned."""

DATA = b"x" * 200


def _journal(number: int) -> JournalKey:
    return JournalKey("benchmark", f"i{number % KEYS}")


def _opened() -> Owner:
    return Owner.create("benchmark", "benchmark")


async def _append(store: KafkaStore, runs: int, first: int = 0) -> None:
    numbers = iter(range(first, runs))

    async def work() -> None:
        for number in numbers:
            seq = number // KEYS
            records = [Record(RecordKind.CALL, seq, "_input_event/ask", n, DATA) for n in range(IN_A_RUN)]
            await store.append(_journal(number), records)

    await asyncio.gather(*(work() for _ in range(AT_A_TIME)))


async def fill(options: dict[str, Any], records: int) -> list[str]:
    """Append and prune; returns markers of before the last hundredth."""
    store = KafkaStore.from_options(options)
    await store.open(_opened())
    await store.rebuild()
    runs = records // IN_A_RUN
    tail = runs - runs // 100
    await _append(store, tail)
    through = int(tail / KEYS * (1 - 1 / KEPT)) - 1
    await asyncio.gather(*(store.prune(_journal(number), through) for number in range(KEYS)))
    markers = [store.recovery_marker(_journal(number)).hex() for number in range(KEYS)]
    await _append(store, runs, tail)
    await store.close()
    return markers


async def read(options: dict[str, Any], markers: list[str] | None) -> dict[str, float]:
    """Read everything, or what lies behind markers."""
    store = KafkaStore.from_options(options)
    await store.open(_opened())
    previous_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_seconds = time.perf_counter()
    if markers is None:
        await store.rebuild()
    else:
        for number, marker in enumerate(markers):
            await store.rebuild(_journal(number), bytes.fromhex(marker))
    seconds = time.perf_counter() - start_seconds
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - previous_kilobytes
    stats = await store.stats() if markers is None else None
    await store.close()
    return {"seconds": seconds, "mb": grown / 1024, "records": stats.records if stats else 0}


def bare(options: dict[str, Any]) -> float:
    """Seconds in which a bare consumer reads the topic."""
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=options["bootstrap-servers"], group_id=None)
    try:
        count = len(consumer.partitions_for_topic(options["topic"]) or ())
        partitions = [TopicPartition(options["topic"], number) for number in range(count)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        start_seconds = time.perf_counter()
        while any((consumer.position(partition) or 0) < ends[partition] for partition in partitions):
            consumer.poll(200)
        return time.perf_counter() - start_seconds
    finally:
        consumer.close()


def _in_a_process(**task: Any) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.rebuild", "--task", "-"],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rebuild", description=__doc__)
    parser.add_argument("records", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--bare", action="store_true", help="only read, with a bare consumer")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.task:
        print(json.dumps(asyncio.run(read(**json.load(sys.stdin)))))
        return
    with broker_for_jobs():
        options = kafka_options()
        markers = asyncio.run(fill(options, parsed.records))
        if parsed.bare:
            print(json.dumps({"all_seconds": bare(options)}))
            return
        everything = _in_a_process(options=options, markers=None)
        tail = _in_a_process(options=options, markers=markers)
    figures = {
        "all_seconds": everything["seconds"],
        "tail_seconds": tail["seconds"],
        "kept_mb": everything["mb"],
        "records_kept": everything["records"],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
