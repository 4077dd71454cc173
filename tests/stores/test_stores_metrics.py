"""What stores measure of themselves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlite_tools import JOURNAL, opened, record, run, wrap, writer_of

from flink_agents.api.errors import AppendOutcomeUnknownError, RecordsPrunedError
from flink_agents.connectors.action_state.group_writer import WINDOW, StoreMetrics


def test_the_middle_of_the_last_turns_is_told() -> None:
    metrics = StoreMetrics()
    assert set(metrics.values().values()) == {0}
    for _ in range(WINDOW):
        metrics.count_appends(100, 10, 3.0)
    for turn in range(WINDOW):
        metrics.count_appends(turn, 1, turn / 1000)
    values = metrics.values()
    assert values["append_batch"] == WINDOW // 2
    assert values["append_micros"] == WINDOW // 2 * 1000
    assert values["appends"] == 100 * WINDOW + sum(range(WINDOW))
    assert values["append_bytes"] == 11 * WINDOW


def test_the_store_in_a_file_counts_what_it_writes(file: Path) -> None:
    async def body() -> None:
        store = await opened(file)
        with writer_of(store)._lock:
            appending = [asyncio.ensure_future(store.append(JOURNAL, [record(1, n)])) for n in range(50)]
            await asyncio.sleep(0)
        await asyncio.gather(*appending)
        await store.prune(JOURNAL, 1)
        with pytest.raises(RecordsPrunedError):
            await store.append(JOURNAL, [record(1)])
        values = store.metrics()
        assert values["appends"] == 52 and values["append_errors"] == 0
        assert values["append_bytes"] == 51 * len(record(1).data)
        assert values["append_micros"] > 0
        await store.close()

    run(body)


def test_the_store_in_a_file_counts_failures(file: Path) -> None:
    def fail(statement: str, execute: Callable[[], Any]) -> Any:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return execute()

    async def body() -> None:
        store = await opened(file)
        wrap(store, fail)
        with pytest.raises(AppendOutcomeUnknownError):
            await store.append(JOURNAL, [record(1)])
        assert store.metrics()["append_errors"] == 1
        await store.close()

    run(body)
