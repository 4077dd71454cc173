"""Compares what a start finds with the record of its job run, before any effect.

The journal must be the one that was seen last, and not an older copy. The lists that a resumed job reads must
be the same as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents.api.action_state import ActionStateStore, JournalKey
from flink_agents.api.errors import (
    InputChangedError,
    JobRunMissingError,
    JournalMissingError,
    JournalOutdatedError,
    SourceNotResumableError,
    StoreUnavailableError,
    UnserializableValueError,
)
from flink_agents.runtime.flink.resume.job_run import BoundedInput, JobFolder, JobRun
from flink_agents.runtime.flink.stores import StoreChoice
from flink_agents.runtime.journal.identity import (
    JournalPosition,
    journal_position,
    raise_position,
    split_journal_name,
)
from flink_agents.runtime.serde.canonical import DIGEST_BYTES, digest_of
from flink_agents.runtime.serde.codec import ValueCodec

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
        A warning if an older copy was found and is accepted, otherwise None.

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


@dataclass(frozen=True)
class GivenList:
    """A list that a job reads.

    Attributes:
        records: Its records.
        place: Its place in the user's code.
    """

    records: Sequence[Any]
    place: str | None = None


@dataclass(frozen=True)
class GivenInputs:
    """The inputs of a job that matter when it resumes.

    Attributes:
        lists: Length and digest of each list, by its name.
        places: The place of each list in the user's code.
        restarting: Names of sources that start over at each start.
    """

    lists: Mapping[str, BoundedInput]
    places: Mapping[str, str | None]
    restarting: tuple[str, ...] = ()


def no_inputs() -> GivenInputs:
    """Return the inputs of a job of which nothing is checked."""
    return GivenInputs({}, {})


def given_inputs(lists: Iterable[GivenList], restarting: Iterable[str]) -> GivenInputs:
    """Return the inputs of a job.

    Args:
        lists: Its lists, in the order in which they were passed.
        restarting: Names of sources that start over at each start.
    """
    named = {f"list {number}": given_list for number, given_list in enumerate(lists, 1)}
    return GivenInputs(
        {name: as_recorded(given_list.records) for name, given_list in named.items()},
        {name: given_list.place for name, given_list in named.items()},
        tuple(restarting),
    )


def as_recorded(records: Sequence[Any]) -> BoundedInput:
    """Return length and digest of records. The digest is the same in each process."""
    codec = ValueCodec(allow_pickle=False)
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for record in records:
        try:
            whole.update(digest_of(codec, record))
        except UnserializableValueError:
            # The bytes of its pickle may differ in another process, although it is equal.
            cls = type(record)
            whole.update(f"{cls.__module__}:{cls.__qualname__}".encode())
    return BoundedInput(len(records), whole.hexdigest())


def check_lists(run: JobRun, inputs: GivenInputs) -> None:
    """Check that each list is the same as when the job run started.

    Raises:
        InputChangedError: A list differs.
    """
    for name, previous_input in run.inputs.items():
        present = inputs.lists.get(name)
        if present == previous_input:
            continue
        raise InputChangedError(
            f"{name} of the job {run.name!r} differs from the one that the job run started with",
            expected=f"the {previous_input.length} records that from_list got then",
            found=_describe_difference(previous_input, present),
            fix="pass the same list until the job run has finished, or start over with --fresh. For later "
            "records, use a source that grows, for example a Kafka topic",
            where=inputs.places.get(name),
        )


def _describe_difference(previous_input: BoundedInput, present: BoundedInput | None) -> str:
    if present is None:
        return "the job no longer has this list"
    if present.length != previous_input.length:
        return f"{present.length} records"
    return f"{present.length} records, of which some differ"


def restarting_sources(run: JobRun, inputs: GivenInputs, has_finished: bool) -> str | None:
    """Return a warning if a source of a resuming job may start over, otherwise None.

    Args:
        run: The job run, which resumes from a checkpoint.
        inputs: Its inputs.
        has_finished: True if an operator had finished when the checkpoint was taken: maybe the source.

    Raises:
        SourceNotResumableError: A source starts over.
    """
    if not inputs.restarting:
        return None
    names = ", ".join(f"{name!r}" for name in inputs.restarting)
    if has_finished:
        return f"the source {names} starts over if it had not been read to its end"
    raise SourceNotResumableError(
        f"the source {names} of the job {run.name!r} cannot resume: it would read all records again",
        expected="sources that continue from the checkpoint",
        found=f"{names}, which keeps no position",
        fix="use env.from_list(...) instead of from_collection, or a source of Kafka or of files, and start "
        "over with --fresh",
    )


def warning_of(inputs: GivenInputs) -> str | None:
    """Return a warning for the first start of a job whose sources start over; None if none does."""
    if not inputs.restarting:
        return None
    names = ", ".join(f"{name!r}" for name in inputs.restarting)
    return (
        f"the source {names} keeps no position: if the process dies while it is read, the job cannot resume "
        "(use env.from_list(...) instead of from_collection)"
    )
