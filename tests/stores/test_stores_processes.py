"""Several processes and one file: old attempts elsewhere, processes that are killed, two that write."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_process import LEASE_SECONDS

from flink_agents.api.action_state import JournalKey, Owner, Record
from flink_agents.api.errors import JobIdentifierInUseError
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore

ROOT = Path(__file__).parents[2]
ACKNOWLEDGED = 400
DEADLINE_SECONDS = 120


@pytest.fixture
def acks(tmp_path: Path) -> Path:
    return tmp_path / "acks"


@contextmanager
def process(file: Path, acks: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened the store; killed at the end."""
    script = str(Path(__file__).with_name("store_process.py"))
    with subprocess.Popen(
        [sys.executable, script, str(file), str(acks), *map(str, arguments)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            yield child
        finally:
            child.kill()


def append_outcome(child: subprocess.Popen[str]) -> str:
    """What comes of an append in the other process."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


async def opened(file: Path, job_id: str = "job-1", subtask: int = 0, parallelism: int = 1) -> SQLiteStore:
    store = SQLiteStore(file, lease_seconds=LEASE_SECONDS)
    await store.open(Owner.create(job_id, "orders/agent", subtask, parallelism))
    return store


async def all_records(file: Path) -> dict[tuple[str, int], list[Record]]:
    """The records of each run, as a new attempt sees them."""
    store = await opened(file)
    records_by_run: dict[tuple[str, int], list[Record]] = {}
    for info in await store.journals():
        for record in await store.scan(info.journal):
            records_by_run.setdefault((info.journal.key, record.seq), []).append(record)
    await store.close()
    return records_by_run


def acknowledged(acks: Path) -> set[tuple[str, int]]:
    whole = acks.read_text(encoding="utf-8").rpartition("\n")[0] if acks.exists() else ""
    return {(key, int(seq)) for key, _, seq in (line.partition("\t") for line in whole.splitlines())}


def test_an_old_attempt_in_another_process_is_refused(file: Path, acks: Path) -> None:
    async def take_over() -> None:
        await (await opened(file)).close()

    with process(file, acks, 0, 1, "once") as old:
        assert append_outcome(old) == "stored"
        asyncio.run(take_over())
        assert append_outcome(old) == "FencedOwnerError"
        assert append_outcome(old) == "FencedOwnerError"
    assert len(asyncio.run(all_records(file))["sonce", 0]) == 1


def test_a_rescaled_job_ends_subtasks_in_other_processes(file: Path, acks: Path) -> None:
    async def rescale() -> None:
        await opened(file, subtask=2, parallelism=3)

    with process(file, acks, 0, 2, "once") as first, process(file, acks, 1, 2, "once") as second:
        assert [append_outcome(first), append_outcome(second)] == ["stored", "stored"]
        asyncio.run(rescale())
        assert [append_outcome(first), append_outcome(second)] == ["FencedOwnerError", "FencedOwnerError"]


def test_another_job_is_refused_while_a_process_lives_and_not_for_ever(file: Path, acks: Path) -> None:
    async def second_job() -> None:
        await (await opened(file, "job-2")).close()

    with process(file, acks, 0, 1, "once") as first:
        with pytest.raises(JobIdentifierInUseError):
            asyncio.run(second_job())
        assert append_outcome(first) == "stored"
        first.kill()
        first.wait()
        asyncio.run(asyncio.wait_for(second_job(), DEADLINE_SECONDS))


@pytest.mark.parametrize("killed_after", [1, ACKNOWLEDGED])
def test_what_was_acknowledged_survives_a_kill(file: Path, acks: Path, killed_after: int) -> None:
    with process(file, acks, 0, 1, "flood") as child:
        wait_until(lambda: len(acknowledged(acks)) >= killed_after)
        child.kill()
        child.wait()
    records_by_run = asyncio.run(all_records(file))
    noted = acknowledged(acks)
    assert len(noted) >= killed_after
    assert noted - set(records_by_run) == set()
    torn = {
        run: records
        for run, records in records_by_run.items()
        if [record.index for record in records] != [0, 1, 2]
    }
    assert torn == {}
    gaps = [(key, seq) for key, seq in records_by_run if seq and (key, seq - 1) not in records_by_run]
    assert gaps == []


def test_an_attempt_takes_over_from_a_process_that_still_appends(file: Path, acks: Path) -> None:
    with process(file, acks, 0, 1, "flood") as child:
        wait_until(lambda: len(acknowledged(acks)) >= ACKNOWLEDGED)

        async def take_over() -> tuple[int, int]:
            store = await opened(file)
            record_count = (await store.stats()).records
            assert child.wait(DEADLINE_SECONDS) != 0  # its appends raise
            after = (await store.stats()).records
            await store.close()
            return record_count, after

        previous_count, after = asyncio.run(take_over())
    assert previous_count == after
    assert acknowledged(acks) - set(asyncio.run(all_records(file))) == set()


def test_two_processes_append_to_one_file(file: Path, acks: Path) -> None:
    with process(file, acks, 0, 2, "count", 200) as first, process(file, acks, 1, 2, "count", 200) as second:
        assert first.wait(DEADLINE_SECONDS) == 0
        assert second.wait(DEADLINE_SECONDS) == 0

    async def both() -> list[list[int]]:
        store = await opened(file)
        journals = [JournalKey("job", "process 0"), JournalKey("job", "process 1")]
        return [[record.seq for record in await store.scan(journal)] for journal in journals]

    assert asyncio.run(both()) == [[seq for seq in range(200) for _ in range(3)]] * 2
