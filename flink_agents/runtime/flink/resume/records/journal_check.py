"""Compares journals with the facts in the folder of a job, before any effect."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents.api.action_state import ActionStateStore, JournalKey
from flink_agents.api.errors import (
    JobRunMissingError,
    JournalMissingError,
    JournalOutdatedError,
    StoreUnavailableError,
)
from flink_agents.runtime.flink.resume.records.folder import JobFolder
from flink_agents.runtime.flink.stores import StoreChoice
from flink_agents.runtime.journal.file_position import (
    JournalPosition,
    journal_position,
    raise_position,
)
from flink_agents.runtime.journal.names import split_journal_name

_PAGE = 1000
"""Number of journals per request."""

AHEAD = 1_000_000
"""Difference that is tolerated: the state of keys may be slightly ahead of the last check of the journal."""


@dataclass(frozen=True)
class SeenJournal:
    """The position of a journal at the last check of a start.

    Attributes:
        path: The file.
        position: Its position.
    """

    path: str
    position: JournalPosition

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the file of the progress."""
        return {"path": self.path, "store": self.position.store_id, "position": self.position.number}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SeenJournal:
        """Return the object that :meth:`to_json` returned."""
        return cls(str(values["path"]), JournalPosition(str(values["store"]), int(values["position"])))


def read_position(path: Path) -> JournalPosition | None:
    """Return the position of the journal at ``path``; None if there is no readable one."""
    with contextlib.suppress(sqlite3.Error, OSError):
        return journal_position(path)
    return None


def no_journal(path: Path, expected: str = "", found: str | None = None) -> JournalMissingError:
    """Return the error about a missing journal, or another one in its place."""
    return JournalMissingError(
        f"the journal of the job run is missing: {path}; recorded durable steps would be repeated",
        expected=f"the store {expected}" if expected else "the file",
        found="no readable journal" if found is None else f"the store {found}",
        fix="restore the file, with its -wal file if there is one, or start over with --fresh",
    )


def check_journal(seen: SeenJournal, path: Path, accepts_older: bool) -> str | None:
    """Check that a journal is not behind the position that a job run has recorded.

    Args:
        seen: The recorded position.
        path: The file.
        accepts_older: True if an older copy is accepted.

    Returns:
        A warning, if an older copy is accepted.

    Raises:
        JournalMissingError: The file is gone, or is another one.
        JournalOutdatedError: It is an older copy.
    """
    position = read_position(path)
    if position is None or position.store_id != seen.position.store_id:
        raise no_journal(path, seen.position.store_id, None if position is None else position.store_id)
    if position.number >= seen.position.number:
        return None
    if accepts_older:
        raise_position(path, seen.position.number + AHEAD)
        return f"the journal {path} is an older copy; durable steps that it lacks are repeated"
    raise JournalOutdatedError(
        f"the journal {path} is an older copy: durable steps that it lacks would be repeated",
        expected=f"position {seen.position.number} or later",
        found=f"position {position.number}",
        fix="restore the whole folder from one backup, so that checkpoint and journal match; or start over "
        "with --fresh; or set local.accept to older-journal to resume anyway",
    )


# -- a journal that is not in the folder ----------------------------------------------------------


def job_run_missing(folder: JobFolder, identity: str) -> JobRunMissingError:
    """Return the error if a journal has records of a job run that is not in the folder."""
    return JobRunMissingError(
        f"the journal has records of {identity!r}, but the folder of the job has no job run: {folder.path}. "
        "New inputs would get the results of recorded steps",
        expected="the folder of that job run, or a journal without its records",
        found="an empty folder: it was deleted, or the job ran elsewhere",
        fix="restore the folder from a backup; or start over with --fresh, which uses new ids and "
        "idempotency keys; or, if the job ran on a cluster, start from its savepoint: local.savepoint",
    )


def recorded_identity(stores: Iterable[StoreChoice], folder: JobFolder, identifier: str) -> str | None:
    """Return the identity of a job run of which a journal outside of the folder has records.

    Args:
        stores: The stores of the agents.
        folder: The folder of the job.
        identifier: The identifier of the job, without the number of a job run.
    """
    outside = {str(store): store for store in stores if _is_outside(store, folder)}
    for store in outside.values():
        identities: list[str | None] = []
        errors: list[Exception] = []
        # The script may call execute() in a coroutine, whose thread already has an event loop.
        thread = threading.Thread(
            target=_check_store, args=(store.create_store(), identifier, identities, errors)
        )
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        if identities[0] is not None:
            return identities[0]
    return None


def _is_outside(store: StoreChoice, folder: JobFolder) -> bool:
    # Data in memory ends with its process.
    if store.name == "memory":
        return False
    return store.file is None or (store.file.exists() and not store.file.is_relative_to(folder.path))


def _check_store(
    store: ActionStateStore, identifier: str, identities: list[str | None], errors: list[Exception]
) -> None:
    try:
        identities.append(asyncio.run(_find_identity(store, identifier)))
    except Exception as error:
        errors.append(error)


async def _find_identity(store: ActionStateStore, identifier: str) -> str | None:
    identity = re.compile(rf"{re.escape(identifier)}(@\d+)?")
    try:
        await store.open(None)
    except StoreUnavailableError as error:
        if error.is_missing:
            return None
        raise
    try:
        after: JournalKey | None = None
        while page := await store.journals(after=after, limit=_PAGE):
            after = page[-1].journal
            for info in page:
                job, agent = split_journal_name(info.journal.journal_id)
                if agent and identity.fullmatch(job):
                    return job
        return None
    finally:
        await store.close()
