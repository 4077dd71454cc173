"""A process that only looks at a file must not cost another one its log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import AppendOutcomeUnknownError, StoreError, StoreUnavailableError
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore

JOURNAL = JournalKey("job", "key")

READER = """
import asyncio, sys
from flink_agents.api.action_state import JournalKey
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore

async def main():
    store = SQLiteStore(sys.argv[1])
    await store.open(None)
    print(len(await store.scan(JournalKey("job", "key"))))
    await store.close()

asyncio.run(main())
"""


def read_elsewhere(file: Path) -> int:
    """How many records another process finds, which opens the store and closes it."""
    done = subprocess.run(
        [sys.executable, "-c", READER, str(file)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def record(seq: int) -> Record:
    return Record(RecordKind.CALL, seq, "step", 0, b"data")


def test_another_process_comes_and_goes(tmp_path: Path) -> None:
    """Closing any descriptor of a file gives up the locks of all connections of the process."""
    file = tmp_path / "state.sqlite"

    async def run() -> None:
        first, second = SQLiteStore(file), SQLiteStore(file)
        await first.open(Owner.create("job", "group", 0, 2))
        await second.open(Owner.create("job", "group", 1, 2))
        for seq in range(4):
            await (first if seq % 2 else second).append(JOURNAL, [record(seq)])
            assert read_elsewhere(file) == seq + 1
        await first.close()
        await second.close()

    asyncio.run(run())


def test_a_log_that_was_removed_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite"

    async def run() -> None:
        store = SQLiteStore(file, busy_seconds=0.1)
        await store.open(Owner.create("job", "group"))
        await store.append(JOURNAL, [record(0)])
        (tmp_path / "state.sqlite-wal").unlink()
        with pytest.raises((StoreUnavailableError, AppendOutcomeUnknownError)) as caught:
            await store.append(JOURNAL, [record(1)])
        assert isinstance(caught.value, StoreError)
        await store.close()

    asyncio.run(run())
