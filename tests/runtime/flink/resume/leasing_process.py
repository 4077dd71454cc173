"""A process that starts a job as far as its store; ``test_resume_leases`` kills, stops and replaces it.

``python leasing_process.py STATE_DIR JOB_ID`` prints ``locked``, ``recorded`` and ``open`` at these steps,
and waits for a line after each. Then it appends at each line, and prints the outcome. If the start is
rejected, it prints the class of the error.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

from resume_world import REQUEST, read

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.errors import AgentsError
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.flink.resume import start_decision as module
from flink_agents.runtime.flink.resume.job_run import JobFolder, RunRecord, Start, iso_now

GROUP = "orders/Shop"


class FileLock:
    """The lock that the JVM of a job holds.

    Args:
        path: Its file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Acquire the lock; return False if another process holds it."""
        self._file = self._file or self._path.open("a+b")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        assert self._file is not None
        self._file.close()


def print_step(step: str) -> None:
    print(step, flush=True)
    if not sys.stdin.readline():
        sys.exit()


async def main(state_dir: str, job_id: str) -> None:
    folder = JobFolder.for_job(Path(state_dir), "orders")
    module.LOCK_SECONDS = 0.3
    beginning = module.begin_start(folder, REQUEST, FileLock(folder.lock), read, None)
    print_step("locked")
    starts = beginning.run.starts
    start = Start(len(starts) + 1, job_id, iso_now(), 1, os.getpid(), lock=folder.lock_identity())
    RunRecord(folder).write(replace(beginning.run, starts=(*starts, start)))
    print_step("recorded")
    # All places share the store, as machines share a broker.
    store = SQLiteStore(os.environ["JOURNAL"], lease_seconds=float(os.environ["LEASE_SECONDS"]))
    await store.open(Owner.create(job_id, GROUP, ended_jobs=frozenset(beginning.ended_jobs)))
    print_step("open")
    while True:
        try:
            await store.append(JournalKey("orders", "k"), [Record(RecordKind.CALL, 0, "", 0, b"")])
        except AgentsError as error:
            print_step(type(error).__name__)
        else:
            print_step("appended")


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except AgentsError as error:
        print(type(error).__name__, flush=True)
