"""Copies journals from one store into another, for example when a job moves from one machine to a cluster.

The copy can be interrupted at any point and started again: it appends missing records. The target is marked
as a copy only at the end, so no job can start from an incomplete copy.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from flink_agents.api.action_state import (
    NOTHING_PRUNED,
    ORIGIN,
    ActionStateStore,
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    RecordKind,
)
from flink_agents.api.errors import OptionError
from flink_agents.cli.journals.operations import Place, list_all

PORTION_BYTES = 512 * 1024
"""Size of one append in bytes, unless a single record is larger."""


@dataclass
class Copied:
    """The result of a copy.

    Attributes:
        source: Id of the store that was read.
        target: Id of the store that was written.
        journals: Number of journals in the source.
        records: Number of their records.
        appended: Number of records that the target did not have yet.
    """

    source: str
    target: str
    journals: int = 0
    records: int = 0
    appended: int = 0


async def copy_journals(source: Place, target: Place) -> Copied:
    """Copy all journals of a store.

    Meanwhile the copy owns each job in both stores, so that no attempt of the job can append.

    Raises:
        JobIdentifierInUseError: A job of one of the stores is running.
        OptionError: Both are the same store, or the target has other records of a key.
    """
    async with AsyncExitStack() as stack:
        reader = await _opened(source, None, stack)
        journals = [info async for info in list_all(reader)]
        owner = f"copy {secrets.token_hex(4)}"
        writers: dict[str, ActionStateStore] = {}
        for group in sorted({info.journal.journal_id for info in journals}):
            await _opened(source, Owner.create(owner, group), stack)
            writers[group] = await _opened(target, Owner.create(owner, group), stack)
        # Storing the plans needs the owner of a group, even if no journal is left.
        notes = await _opened(target, Owner.create(owner, ORIGIN), stack)
        if notes.store_id == reader.store_id:
            raise OptionError(
                "a store cannot be copied into itself",
                expected="two stores",
                found=f"the store {reader.store_id} twice",
                fix="name the target with --to and --to-option",
            )
        # Again: a job may have appended until it lost its group.
        journals = [info async for info in list_all(reader)]
        done = Copied(reader.store_id, notes.store_id)
        for info in journals:
            await _copy(info, reader, writers[info.journal.journal_id], done)
        for fingerprint, data in (await reader.plans()).items():
            await notes.remember_plan(fingerprint, data)
        await notes.remember_origin(reader.store_id)
        return done


async def _opened(place: Place, owner: Owner | None, stack: AsyncExitStack) -> ActionStateStore:
    store = place.make()
    stack.push_async_callback(store.close)
    await store.open(owner)
    await store.rebuild()
    return store


async def _copy(info: JournalInfo, source: ActionStateStore, target: ActionStateStore, done: Copied) -> None:
    """Copy one journal, or the part that an interrupted copy left."""
    journal = info.journal
    records = await source.scan(journal)
    known = [record for record in await target.scan(journal) if record.seq > info.pruned_through]
    if known != records[: len(known)]:
        raise _differs(journal, target)
    done.journals += 1
    done.records += len(records)
    missing = records[len(known) :]
    if missing:
        for portion in _portions(missing):
            await target.append(journal, portion)
        done.appended += len(missing)
    if info.pruned_through != NOTHING_PRUNED and await target.pruned_through(journal) < info.pruned_through:
        if not records:  # a store remembers only journals that had a record
            await target.append(journal, [Record(RecordKind.RUN, info.pruned_through, "", 0, b"")])
        await target.prune(journal, info.pruned_through)


def _portions(records: Sequence[Record]) -> Iterator[list[Record]]:
    portion: list[Record] = []
    size = 0
    for record in records:
        if portion and size + len(record.data) > PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(record)
        size += len(record.data) + 100
    yield portion


def _differs(journal: JournalKey, target: ActionStateStore) -> OptionError:
    return OptionError(
        f"the target has other records of key {journal.key[:200]} of job {journal.journal_id}",
        expected="a target without these journals, or with a part of this copy",
        found=f"the store {target.store_id}",
        fix="copy into a new store: another topic, or another file",
    )
