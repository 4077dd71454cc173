"""Records for tests and benchmarks of the console: runs of each status, as a job writes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flink_agents.trace.records import TraceRecord, run_id_of, span_id

NOW = 1_790_000_000.0


def records_of_run(
    number: int, key: str, status: str, end: float = NOW, agent: str = "orders", error: str = "no stock"
) -> list[TraceRecord]:
    """Return the records of one run with an action and two calls."""
    run_id = run_id_of("job", key, number)
    begin = end - 1.5

    def make_record(
        kind: str, name: str, outcome: str, time: float, path: tuple[Any, ...], **more: Any
    ) -> TraceRecord:
        parent = None if kind == "run" else span_id(run_id) if kind == "action" else span_id(run_id, "action")
        seconds = more.pop("seconds", None)
        return TraceRecord(
            kind, name, outcome, "job", agent, 0, 0, key, number, run_id, span_id(run_id, *path), parent,
            time, seconds, False, more,
        )  # fmt: skip

    records = [make_record("run", agent, "started", begin, ())]
    records.append(make_record("call", "load", "ok", begin + 0.4, ("load",), seconds=0.3, action="handle"))
    if status == "running":
        return records
    failure = {"error": "OutOfStockError", "message": error, "where": "orders.py:17"}
    if status == "suspended":
        waits = [{"kind": "signal", "name": "paid", "deadline": (end + 3600) * 1000, "id": "handle|1|0"}]
        return [
            *records,
            make_record("run", agent, "suspended", end, ("handle|1|0",), seconds=1.5, waits=waits),
        ]
    if status == "completed":
        records.append(
            make_record("call", "charge", "ok", begin + 1.2, ("charge",), seconds=0.7, action="handle")
        )
        records.append(make_record("action", "handle", "ok", begin + 1.3, ("action",), seconds=1.2))
        return [
            *records,
            make_record("run", agent, "completed", end, (), seconds=1.5, phases={"queued": 0.1}),
        ]
    records.append(make_record("call", "charge", "failed", begin + 1.2, ("charge",), seconds=0.7, **failure))
    return [*records, make_record("run", agent, status, end, (), seconds=1.5, error=failure)]


def write(place: Path, records: Iterator[TraceRecord] | list[TraceRecord], name: str = "orders-0") -> Path:
    """Append records to a file of a directory."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{name}.trace.jsonl"
    with file.open("a", encoding="utf-8") as opened:
        opened.writelines(f"{record.to_json()}\n" for record in records)
    return file


def many(runs: int, now: float, seed: int = 1) -> Iterator[TraceRecord]:
    """Yield the records of many runs, of three agents and a few thousand keys, up to a time."""
    chosen = random.Random(seed)
    statuses = ["completed"] * 93 + ["dead-lettered"] * 3 + ["suspended"] * 2 + ["failed", "running"]
    errors = ["no stock", "card rejected", "the service answered 503", "a negative amount"]
    for number in range(runs):
        key = f"scustomer-{chosen.randrange(5000)}"
        end = now - (runs - number) * 7200 / runs
        agent = ("orders", "refunds", "reviews")[number % 3]
        yield from records_of_run(number, key, chosen.choice(statuses), end, agent, chosen.choice(errors))
