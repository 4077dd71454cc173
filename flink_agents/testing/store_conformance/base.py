"""The fixtures that all cases share, and helpers to make stores and records."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.action_state import ActionStateStore, JournalKey, Owner, Record, RecordKind

JOURNAL = JournalKey("job", "skey")
OTHER = JournalKey("job", "sother")


class Stores:
    """The stores of one test; all of them share their records.

    Args:
        make: Creates a store that is not open.
        directory: The directory with nothing but their files; None if they have none.
    """

    def __init__(self, make: Callable[[], ActionStateStore], directory: Path | None = None) -> None:
        self.make = make
        self._directory = directory
        self._opened: list[ActionStateStore] = []

    async def open(
        self, subtask: int = 0, parallelism: int = 1, job_id: str = "job-1", group: str = "orders/agent"
    ) -> ActionStateStore:
        """Return a store, opened by a new owner, as a new attempt of a subtask does.

        Args:
            subtask: Number of the owner's subtask.
            parallelism: The number of subtasks.
            job_id: Flink's id of the owner's job.
            group: Group of the owner, which only one job at a time can have.
        """
        return await self.open_for(Owner.create(job_id, group, subtask, parallelism))

    async def open_for(self, owner: Owner | None) -> ActionStateStore:
        """Create a store, open it for ``owner``, and return it; None opens it for reading."""
        store = self.make()
        self._opened.append(store)
        await store.open(owner)
        await store.rebuild()
        return store

    async def close(self) -> None:
        """Close all stores."""
        for store in self._opened:
            await store.close()

    def files(self) -> dict[str, bytes]:
        """Return the content of all files by path, as a loss of power now would leave them.

        Skips the test if the suite does not name the directory of its files.
        """
        if self._directory is None:
            pytest.skip("the suite does not name the directory of a store's files")
        paths = sorted(path for path in self._directory.rglob("*") if path.is_file())
        return {path.relative_to(self._directory).as_posix(): path.read_bytes() for path in paths}

    async def restore(self, files: Mapping[str, bytes]) -> None:
        """Close all stores, and replace all files by the given ones."""
        assert self._directory is not None
        await self.close()
        self._opened.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        for name, content in files.items():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class SuiteBase:
    """The fixtures and limits of a suite.

    Attributes:
        deadline_seconds: Timeout of a case in seconds.
        removals: Number of fully pruned journals that the fixture's stores remember. None: all of them, or
            more than a case should create. If your store has an option for it, set a small number here, such
            as 20.
    """

    deadline_seconds = 180.0
    removals: int | None = None

    @pytest.fixture
    def make_store(self) -> Callable[[], ActionStateStore]:
        """Return a function that creates a store that is not open; each suite overrides this fixture."""
        raise NotImplementedError("override the fixture make_store")

    @pytest.fixture
    def store_files(self) -> Path | None:
        """Return the directory that has nothing but the files of the stores; None if they have none.

        If a suite does not override this fixture, the cases about a loss of power are skipped.
        """
        return None

    @pytest.fixture
    def stores(self, make_store: Callable[[], ActionStateStore], store_files: Path | None) -> Stores:
        """Provide the stores of a test."""
        return Stores(make_store, store_files)

    async def kill(self, store: ActionStateStore) -> None:
        """End ``store`` as if its process was killed: its lease is not released.

        The cases that need it are skipped if a suite does not override this.
        """
        pytest.skip("the suite does not define how to kill a store")


def case(
    body: Callable[[Any, Stores], Coroutine[Any, Any, None]],
) -> Callable[[Any, Stores], None]:
    """Return a test that runs a coroutine with a deadline, and then closes its stores."""

    @functools.wraps(body)
    def test(self: Any, stores: Stores) -> None:
        async def run() -> None:
            try:
                await asyncio.wait_for(body(self, stores), self.deadline_seconds)
            finally:
                await stores.close()

        asyncio.run(run())

    return test


def record(
    seq: int = 0,
    index: int = 0,
    data: bytes = b"data",
    kind: RecordKind = RecordKind.CALL,
    step: str = "step",
) -> Record:
    """Return a record for a test."""
    return Record(kind, seq, step, index, data)


def indexes(records: Sequence[Record]) -> list[int]:
    """Return the indexes of records, by which tests tell records apart."""
    return [stored_record.index for stored_record in records]


async def outcome(appending: Coroutine[Any, Any, None]) -> BaseException | None:
    """Await an append, and return its error; None if it succeeded."""
    try:
        await appending
    except Exception as error:
        return error
    return None
