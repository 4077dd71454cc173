"""The part of ``flink-agents journal`` that reads journals from a store, prunes them, and copies them.

A copy can be interrupted at any point and started again: it appends missing records. The target is marked
as a copy only at the end, so no job can start from an incomplete copy.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flink_agents import redaction
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
from flink_agents.api.errors import KeyEncodingError, OptionError, StateError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.api.settings.stores import STORE_PREFIX, open_store, store_names
from flink_agents.cli.journals.values import describe_record, describe_run
from flink_agents.cli.keys import parse_key
from flink_agents.runtime.flink.resume.job_run import JOBS, STATE_DIR
from flink_agents.runtime.flink.stores import LOCAL_FILE
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.identity import split_journal_name
from flink_agents.runtime.serde.keys import decode_key, encode_key

T = TypeVar("T")

PAGE = 1000
"""Number of journals per request."""


@dataclass(frozen=True)
class Place:
    """The store that a command uses.

    Attributes:
        store: Name of the store; None for the one in the options.
        options: Options of the store, in addition to the configured ones.
    """

    store: str | None
    options: Mapping[str, str]

    def run_query(self, question: Callable[[ActionStateStore], Awaitable[T]]) -> T:
        """Open the store for reading, await ``question(store)``, and return its result.

        No owner is fenced.
        """
        store = self.create_store()

        async def run() -> T:
            await store.open(None)
            try:
                await store.rebuild()
                return await question(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def create_store(self) -> ActionStateStore:
        """Return the store, which is not open yet."""
        return open_store(*self._store_choice(Configuration.load()))

    def _store_choice(self, config: Configuration) -> tuple[str, dict[str, Any]]:
        """Return the name and the options of the store: as given, as configured, or that of a local job here.

        Raises:
            OptionError: There is no store, or there are several local ones.
        """
        name: str | None = self.store or config.get(AgentOptions.STORE)
        option_names = config.below(f"{STORE_PREFIX}sqlite").keys() | self.options.keys()
        files = _local_files(config) if name in (None, "sqlite") and "path" not in option_names else []
        if len(files) > 1:
            raise OptionError(
                "several local jobs have made stores here",
                expected="one of them",
                found=", ".join(map(str, files)),
                fix="name its file: --path FILE",
            )
        has_local_store = bool(files) or (LOCAL_FILE.exists() and name in (None, "sqlite"))
        if name is None and not has_local_store and "path" not in self.options:
            raise OptionError(
                "no store found",
                expected=f"one of {', '.join(store_names())}",
                found=f"neither an option nor {LOCAL_FILE}, nor the journal of a local job",
                fix=f"pass --store, or set the option {AgentOptions.STORE.key}",
            )
        name = name or "sqlite"
        default_options = {"path": str(files[0] if files else LOCAL_FILE)} if has_local_store else {}
        return name, {**default_options, **config.below(STORE_PREFIX + name), **self.options}


def _local_files(config: Configuration) -> list[Path]:
    """Return the SQLite files that local jobs have created in the current directory."""
    state_dir = Path(config.get(AgentOptions.STATE_DIR) or STATE_DIR).expanduser()
    files = [file for file in sorted((state_dir / JOBS).glob("*/journal.sqlite")) if file.is_file()]
    return [LOCAL_FILE, *files] if LOCAL_FILE.exists() else files


def key_text(key: str, raw: bool) -> str:
    """Return the canonical text of a key on the command line.

    Args:
        key: JSON, with arrays for tuples; other text is a string. With ``raw``, the canonical text.
        raw: True if ``key`` is the canonical text.

    Raises:
        KeyEncodingError: No run can have such a key.
    """
    if raw:
        return key
    try:
        return encode_key(parse_key(key))
    except KeyEncodingError as error:
        raise KeyEncodingError(
            error.message, found=error.found, fix="pass the key's canonical text, and --raw"
        ) from None


def shown_key(text: str) -> str:
    """Return a key in Python syntax; its canonical text if its class is not imported."""
    try:
        return repr(decode_key(text))
    except StateError:
        return text


async def list_journals(store: ActionStateStore, job: str | None, limit: int) -> list[dict[str, Any]]:
    """Describe the first journals of the store, or of one job, as rows for a table."""
    journals: list[dict[str, Any]] = []
    async for info in list_all(store, job):
        if len(journals) == limit:
            break
        journals.append(
            {
                "job": info.journal.journal_id,
                "key": shown_key(info.journal.key),
                "raw": info.journal.key,
                "runs": info.runs,
                "records": info.records,
                "bytes": info.data_bytes,
                "first": info.first_seq,
                "last": info.last_seq,
                "pruned": _pruned_through(info.pruned_through),
            }
        )
    return journals


async def show_key(
    store: ActionStateStore, text: str, job: str | None, run: int | None, classes: bool = False
) -> list[dict[str, Any]]:
    """Return the journals of a key for JSON, one for each job that has one.

    Args:
        store: The open store.
        text: Canonical text of the key.
        job: Only the journal of this job; None for all.
        run: Only the run with this number; None for all.
        classes: True to create objects of classes that this process has imported.
    """
    return [await _read_run(store, journal, run, classes) for journal in await _journals_of(store, text, job)]


async def _read_run(
    store: ActionStateStore, journal: JournalKey, run: int | None, classes: bool
) -> dict[str, Any]:
    through = await store.pruned_through(journal)
    records = await (store.scan(journal) if run is None else store.read(journal, run))
    runs: dict[int, list[Record]] = {}
    for record in records:
        runs.setdefault(record.seq, []).append(record)
    return {
        "job": journal.journal_id,
        "key": shown_key(journal.key),
        "raw": journal.key,
        "pruned": _pruned_through(through),
        "runs": [_run_entry(seq, run_records, classes) for seq, run_records in sorted(runs.items())],
    }


def _run_entry(seq: int, records: list[Record], classes: bool) -> dict[str, Any]:
    header = next((record for record in records if record.kind is RecordKind.RUN), None)
    # By step, in the order of their first records.
    steps: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.kind is not RecordKind.RUN:
            steps.setdefault(task_of(record.step)[0], []).append(describe_record(record, classes))
    rows = [row for step in steps.values() for row in step]
    redaction.look_at_variables()
    return redaction.hidden({"run": seq, **describe_run(header, classes), "records": rows})


async def records_of(
    store: ActionStateStore, text: str, job: str | None, run: int
) -> tuple[JournalKey, list[Record]] | None:
    """Return the journal of a key and the records of one of its runs; None if there is no journal.

    Raises:
        OptionError: Several jobs have a journal of the key, and ``job`` names none.
    """
    journals = _only_journal(await _journals_of(store, text, job), text)
    return (journals[0], await store.read(journals[0], run)) if journals else None


async def prune_key(
    store: ActionStateStore, text: str, job: str | None, through: int
) -> list[dict[str, Any]]:
    """Remove the records of a key's runs up to number ``through``; return what was removed, as rows.

    Returns nothing if there is no such journal.

    Raises:
        OptionError: Several jobs have a journal of the key, or ``through`` is a run that is still to come.
    """
    journals = _only_journal(await _journals_of(store, text, job), text)
    rows: list[dict[str, Any]] = []
    for journal in journals:
        seqs = [record.seq for record in await store.scan(journal)]
        last = max(seqs, default=await store.pruned_through(journal))
        if through > last:
            raise OptionError(
                "runs that are still to come cannot be pruned",
                expected=f"--through at most {last}",
                found=str(through),
                fix="list the runs: flink-agents journal list",
            )
        await store.prune(journal, through)
        rows.append(
            {
                "job": journal.journal_id,
                "key": shown_key(journal.key),
                "raw": journal.key,
                "pruned": _pruned_through(await store.pruned_through(journal)),
                "removed": sum(seq <= through for seq in seqs),
            }
        )
    return rows


async def read_totals(store: ActionStateStore) -> dict[str, Any]:
    """Return the totals of the store for JSON, and the owners that may append to it."""
    stats = await store.stats()
    return {
        "store": store.store_id,
        "journals": stats.journals,
        "records": stats.records,
        "bytes": stats.data_bytes,
        "stored_bytes": stats.stored_bytes,
        **stats.details,
        # Without the tokens, with which stores distinguish owners.
        "owners": [
            {
                "group": owner.group,
                "job": owner.job_id,
                "subtask": owner.subtask,
                "parallelism": owner.parallelism,
            }
            for owner in stats.owners
        ],
    }


async def journals_of_job(store: ActionStateStore, job: str) -> list[dict[str, Any]]:
    """Describe a job's journals for each of its agents; ``job`` is its identifier, or that and an agent."""
    counts_by_journal: dict[str, dict[str, Any]] = {}
    async for info in list_all(store):
        name = info.journal.journal_id
        if job in (name, split_journal_name(name)[0]):
            counts = counts_by_journal.setdefault(name, {"job": name, "journals": 0, "records": 0})
            counts["journals"] += 1
            counts["records"] += info.records
    return list(counts_by_journal.values())


async def forget_jobs(place: Place, jobs: Sequence[str]) -> None:
    """Delete all journals of some jobs.

    The command becomes the owner of each job first, so no running job loses journals.

    Args:
        place: The store.
        jobs: Identifiers of the jobs, with their agents, as journals have them.

    Raises:
        JobIdentifierInUseError: A job is running. Nothing was removed.
    """
    opened: list[ActionStateStore] = []
    try:
        for job in jobs:
            store = place.create_store()
            await store.open(Owner.create(f"reset {secrets.token_hex(4)}", job))
            opened.append(store)
        for store, job in zip(opened, jobs, strict=True):
            await store.forget(job)
    finally:
        for store in opened:
            await store.close()


async def list_all(store: ActionStateStore, job: str | None = None) -> AsyncIterator[JournalInfo]:
    """Yield the figures of all journals of users' agents, or of one job, in pages from the store."""
    after: JournalKey | None = None
    while page := await store.journals(job, after, PAGE):
        for info in page:
            # The runtime's own journals, such as plans of agents, belong to no job.
            if not info.journal.journal_id.startswith("\x00"):
                yield info
        after = page[-1].journal


async def _journals_of(store: ActionStateStore, text: str, job: str | None) -> list[JournalKey]:
    if job is not None:
        journal = JournalKey(job, text)
        is_stored = await store.pruned_through(journal) != NOTHING_PRUNED or await store.scan(journal)
        return [journal] if is_stored else []
    return [info.journal async for info in list_all(store) if info.journal.key == text]


def _only_journal(journals: list[JournalKey], text: str) -> list[JournalKey]:
    if len(journals) > 1:
        raise OptionError(
            f"several jobs have a journal of the key {shown_key(text)}",
            expected="one job",
            found=", ".join(repr(journal.journal_id) for journal in journals),
            fix="name it by --job",
        )
    return journals


def _pruned_through(through: int) -> int | None:
    return None if through == NOTHING_PRUNED else through


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
    """Copy all journals of a store, and the plans of agents, into another one.

    Until it ends, the command owns each job in both stores, so that no attempt of a job can append.

    Raises:
        JobIdentifierInUseError: A job of one of the stores is running.
        OptionError: Both are the same store, or the target has other records of a key.
    """
    async with AsyncExitStack() as stack:
        reader = await _open_store(source, None, stack)
        journals = [info async for info in list_all(reader)]
        owner = f"copy {secrets.token_hex(4)}"
        writers: dict[str, ActionStateStore] = {}
        for group in sorted({info.journal.journal_id for info in journals}):
            await _open_store(source, Owner.create(owner, group), stack)
            writers[group] = await _open_store(target, Owner.create(owner, group), stack)
        # Storing the plans needs the owner of a group, even if no journal is left.
        origin_writer = await _open_store(target, Owner.create(owner, ORIGIN), stack)
        if origin_writer.store_id == reader.store_id:
            raise OptionError(
                "a store cannot be copied into itself",
                expected="two stores",
                found=f"the store {reader.store_id} twice",
                fix="name the target with --to and --to-option",
            )
        # Again: a job may have appended until it lost its group.
        journals = [info async for info in list_all(reader)]
        result = Copied(reader.store_id, origin_writer.store_id)
        for info in journals:
            await _copy_journal(info, reader, writers[info.journal.journal_id], result)
        for fingerprint, data in (await reader.plans()).items():
            await origin_writer.remember_plan(fingerprint, data)
        await origin_writer.remember_origin(reader.store_id)
        return result


async def _open_store(place: Place, owner: Owner | None, stack: AsyncExitStack) -> ActionStateStore:
    store = place.create_store()
    stack.push_async_callback(store.close)
    await store.open(owner)
    await store.rebuild()
    return store


async def _copy_journal(
    info: JournalInfo, source: ActionStateStore, target: ActionStateStore, done: Copied
) -> None:
    """Append the records of one journal that the target lacks, prune it as in the source, and count them."""
    journal = info.journal
    records = await source.scan(journal)
    copied_records = [record for record in await target.scan(journal) if record.seq > info.pruned_through]
    if copied_records != records[: len(copied_records)]:
        raise _different_journal_error(journal, target)
    done.journals += 1
    done.records += len(records)
    missing_records = records[len(copied_records) :]
    if missing_records:
        for portion in _record_portions(missing_records):
            await target.append(journal, portion)
        done.appended += len(missing_records)
    if info.pruned_through != NOTHING_PRUNED and await target.pruned_through(journal) < info.pruned_through:
        if not records:  # a store remembers only journals that had a record
            await target.append(journal, [Record(RecordKind.RUN, info.pruned_through, "", 0, b"")])
        await target.prune(journal, info.pruned_through)


def _record_portions(records: Sequence[Record]) -> Iterator[list[Record]]:
    portion: list[Record] = []
    size = 0
    for record in records:
        if portion and size + len(record.data) > PORTION_BYTES:
            yield portion
            portion = []
            size = 0
        portion.append(record)
        size += len(record.data) + 100
    yield portion


def _different_journal_error(journal: JournalKey, target: ActionStateStore) -> OptionError:
    return OptionError(
        f"the target has other records of key {journal.key[:200]} of job {journal.journal_id}",
        expected="a target without these journals, or with a part of this copy",
        found=f"the store {target.store_id}",
        fix="copy into a new store: another topic, or another file",
    )
