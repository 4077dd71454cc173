"""The protocol of the stores that keep the records of durable execution, and the data in them.

A store holds *journals*. A journal belongs to one key of one job; its records are appended and never changed.
Each record belongs to a run, which has a sequence number. A store does not interpret records: it keeps bytes,
in order, and rejects appends of an owner that was replaced.

One store object serves one subtask: :meth:`ActionStateStore.open` first, then, before it reads a
journal, :meth:`~ActionStateStore.rebuild`, then the rest. All methods are called on one asyncio
loop; those without ``async`` may be called by any thread.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from flink_agents.api.errors import (
    FencedOwnerError,
    JobIdentifierInUseError,
    RecordsPrunedError,
    RecordTooLargeError,
    StoreClosedError,
)

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Default limit of ``Record.data`` in bytes."""

MAX_MARKER_BYTES = 200
"""Limit of a recovery marker in bytes: the state of each key holds one."""

REMOVALS = 100_000
"""Minimum number of fully pruned journals that a store in a file remembers; see ``prune``."""

NOTHING_PRUNED = -1
"""Result of :meth:`ActionStateStore.pruned_through` if no run was pruned."""


PLANS = "\x00plans"
"""Journal id of stored plans; no job has it."""

ORIGIN = "\x00copy of "
"""Prefix of the plan name that marks a copy of another store; no fingerprint starts with it."""


class JournalKey(NamedTuple):
    """The name of a journal.

    Attributes:
        journal_id: Identity of the job whose journals these are.
        key: Canonical text of the key. Any string of any length, including NUL and lone surrogates.
    """

    journal_id: str
    key: str


class RecordKind(IntEnum):
    """The kind of a record; each store keeps it as one byte."""

    RUN = 1
    """A run starts; the record identifies its input."""
    INTENT = 2
    """A call with a reconciler is about to be made."""
    CALL = 3
    """A call has an outcome."""
    ACTION = 4
    """An action has ended; the record holds its memory updates and events."""
    RERUN = 5
    """Earlier records of the same step of the run are void."""
    WAIT = 6
    """A wait of an action has ended: a timer, a limit or a client, not a call."""


class Record(NamedTuple):
    """One record of a journal.

    Attributes:
        kind: The kind of record.
        seq: Sequence number of the run, from 0, below 2**63.
        step: The execution of an action within the run; any string.
        index: Number of the call within that execution; any 64-bit integer.
        data: The content, which the store does not interpret.
    """

    kind: RecordKind
    seq: int
    step: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    data: bytes


@dataclass(frozen=True)
class Owner:
    """One attempt of one subtask, which may append records; each attempt creates its own by :meth:`create`.

    Attributes:
        job_id: Flink's id of the job; the same for all attempts.
        group: Text that names job identifier and agent. Only one job at a time can own a group.
        subtask: Index of the subtask, from 0.
        parallelism: Number of subtasks.
        token: Random id of this attempt.
        ended_jobs: Ids of jobs whose processes are known to have ended: their leases need no wait. A stopped
            process has not ended.
    """

    job_id: str
    group: str
    subtask: int
    parallelism: int
    token: str
    ended_jobs: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def create(
        cls, job_id: str, group: str, subtask: int = 0, parallelism: int = 1, ended_jobs: Iterable[str] = ()
    ) -> Owner:
        """Return an owner with a new random token; the other arguments are its attributes."""
        return cls(job_id, group, subtask, parallelism, secrets.token_hex(16), frozenset(ended_jobs))

    def outranks(self, other: Owner) -> bool:
        """Return True if ``other`` must not append any more once this owner has opened a store."""
        return self.group == other.group and (
            self.job_id != other.job_id
            or self.parallelism != other.parallelism
            or self.subtask == other.subtask
        )

    def yields_to(self, other: Owner) -> bool:
        """Return True if ``other`` keeps this owner from appending as long as it may be alive."""
        is_other_job = self.group == other.group and self.job_id != other.job_id
        return is_other_job and other.job_id not in self.ended_jobs


@dataclass(frozen=True)
class JournalInfo:
    """Facts about a journal that a store knows without reading its records.

    Attributes:
        journal: The name of the journal.
        runs: Number of runs with records.
        records: Number of records.
        data_bytes: Sum of the lengths of their data.
        first_seq: The lowest sequence number with records; None if there are none.
        last_seq: The highest sequence number with records.
        pruned_through: See :meth:`ActionStateStore.pruned_through`.
    """

    journal: JournalKey
    runs: int
    records: int
    data_bytes: int
    first_seq: int | None
    last_seq: int | None
    pruned_through: int


@dataclass(frozen=True)
class StoreStats:
    """Totals of a store.

    Attributes:
        journals: Number of known journals, including those whose records were all pruned.
        records: Number of records.
        data_bytes: Sum of the lengths of their data.
        stored_bytes: Bytes of storage; None if unknown.
        owners: All current owners.
        details: Further facts that only this kind of store has, by name.
    """

    journals: int
    records: int
    data_bytes: int
    stored_bytes: int | None
    owners: tuple[Owner, ...]
    details: Mapping[str, int | float | str] = field(default_factory=dict[str, int | float | str])


class ActionStateStore(ABC):
    """Journals of durable execution, as one subtask sees them. See the module for the order of calls.

    Each method except :meth:`open` raises :class:`StoreClosedError` if the store is not open, and
    :class:`StoreUnavailableError` or :class:`StoreFormatError` if the store fails.
    """

    @property
    @abstractmethod
    def store_id(self) -> str:
        """UUID of the file, topic or other storage of the records; it never changes.

        Keyed state keeps it, so that a restore against another store is rejected.
        """

    @property
    def max_record_bytes(self) -> int:
        """Limit of ``Record.data`` in :meth:`append`, in bytes."""
        return MAX_RECORD_BYTES

    @abstractmethod
    async def open(self, owner: Owner | None) -> None:
        """Open the store, with ``owner`` as the only one that may append.

        From then on, the store rejects appends of each owner that ``owner`` outranks
        (:meth:`Owner.outranks`), also of other processes. The append itself must check this: a check before
        the write is not enough.

        A running job holds a lease on its group. Another job waits, in bounded time: if the lease is renewed
        meanwhile, the other job is rejected; otherwise the lease expires. Attempts of the same job do not
        wait, nor does an owner for its ``ended_jobs``. The lease decides who waits, never who may append.

        Args:
            owner: The owner that appends. None opens the store to read and to prune, without fencing an
                owner.

        Raises:
            JobIdentifierInUseError: Another running job has the same group.
            StoreFormatError: This is not a store, or a newer version wrote it.
            StoreUnavailableError: The store cannot be reached.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish pending appends, in bounded time, and release the lease.

        Each pending append returns or raises. A second call does nothing.
        """

    @abstractmethod
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Append ``records`` and return when they are durable: all of them or none.

        Records of a journal are stored in the order of the calls. A cancelled call continues in the
        background; after the next append of the same journal, :meth:`read` shows if its records are stored.

        Raises:
            FencedOwnerError: Another owner took over. Nothing was stored.
            RecordTooLargeError: A record is too large. Nothing was stored.
            RecordsPrunedError: A record belongs to a pruned run. Nothing was stored.
            StoreUnavailableError: The store cannot be written. Nothing was stored.
            AppendOutcomeUnknownError: It is unknown if they are stored. The attempt must fail, and nothing
                may be appended in their place; the store rejects further appends.
        """

    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        """Return all records of a run, in the order of their append; empty if it has none.

        It sees every append that has returned.

        Raises:
            RecordsPrunedError: The run was pruned.
        """
        return await self.scan(journal, seq, seq)

    @abstractmethod
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        """Return all records of some runs, by sequence number and then in the order of their append.

        Args:
            journal: The journal to read.
            from_seq: Sequence number of the first run; None for the first run that was not pruned.
            to_seq: Sequence number of the last run, included; None for the latest run.

        Raises:
            RecordsPrunedError: ``from_seq`` was pruned.
        """

    @abstractmethod
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        """Remove the records of all runs up to ``through_seq``: these runs are *pruned* from then on.

        Pruned runs stay pruned. A journal without records stays unknown.

        The runtime prunes records that no retained checkpoint of Flink needs. So a store need not remember
        pruned journals for ever, which would make it grow with each key that was ever seen: a journal without
        records may become unknown again, as before its first record. A store should remember the latest fully
        pruned journals, so that a restore from an older savepoint raises an error: :data:`REMOVALS` of them
        in a file, fewer if each start reads them.

        Raises:
            FencedOwnerError: Another owner took over.
        """

    @abstractmethod
    async def forget(self, journal_id: str) -> None:
        """Remove all journals of ``journal_id``; from then on they are unknown, as before their first record.

        Nothing checks that no job needs them. The caller must own the group that appends to them, so that no
        job appends meanwhile or later.

        Raises:
            FencedOwnerError: Another owner took over. Nothing was removed.
            StoreClosedError: The store was opened without an owner.
        """

    @abstractmethod
    async def pruned_through(self, journal: JournalKey) -> int:
        """Return the sequence number of the last pruned run; :data:`NOTHING_PRUNED` if there is none."""

    @abstractmethod
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        """Return False if no record of ``journal`` was stored before this owner opened the store.

        Pruned records count as long as the store remembers them.

        It is cheap and does no I/O: Flink's thread calls it for every event. True may be wrong, and is the
        result if :meth:`rebuild` has not read the journal yet; False is always right. Always True if the
        store was opened without an owner. For the arguments see :meth:`rebuild`.
        """

    @abstractmethod
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        """Prepare to read the records of ``journal`` after ``marker``.

        A marker only narrows the range to read. The runtime calls it for each journal that may have records;
        it is cheap if an earlier call read the same range.

        Args:
            journal: The journal; None for all of them.
            marker: A result of :meth:`recovery_marker` from the key's state, of this attempt or an earlier
                one; None if state has none, for all records.
            pending: True if inputs of the key wait in state. For a key without them, all relevant records
                come after the checkpoint, and so after each marker that this subtask wrote.

        Raises:
            StoreMismatchError: The marker belongs to another store.
            RecordsPrunedError: Records of a key with waiting inputs were removed from outside.
        """

    @abstractmethod
    def recovery_marker(self, journal: JournalKey) -> bytes:
        """Return a position before all records of ``journal`` that are appended from now on.

        It is opaque, has at most :data:`MAX_MARKER_BYTES` bytes, and is kept in Flink's state.
        """

    def position(self) -> bytes:
        """Return the end of the store's records, as this owner knows it, for :meth:`check_position`.

        It is kept in Flink's state, so that a restore finds a copy of the store without its latest records,
        whatever key comes first. It does no I/O: Flink's thread calls it for each commit. If it is empty, a
        restore may lose the store: it has no record. By default, copies are not told apart.
        """
        return b"\x00"

    async def check_position(self, position: bytes) -> None:
        """Check that the store still has all records up to a result of :meth:`position`, and those after it.

        Raises:
            JournalOutdatedError: It is an older copy.
            RecordsPrunedError: Records were removed from outside.
        """
        return None

    @abstractmethod
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        """Return journals in the order of ``journal_id`` and key, each as UTF-8 bytes.

        Args:
            journal_id: Return only journals of this job.
            after: Return only journals after this one: the last one of the previous page.
            limit: Maximum number of results, at least 1.
        """

    @abstractmethod
    async def stats(self) -> StoreStats:
        """Return the totals, which may take time in proportion to the store's size."""

    async def remember_plan(self, fingerprint: str, data: bytes) -> None:
        """Store the bytes of a plan under its fingerprint, for all jobs; existing data stays as it is.

        By default it gets a separate journal; a store may have a cheaper place.

        Raises:
            FencedOwnerError: Another owner took over. Nothing was stored.
        """
        journal = JournalKey(PLANS, fingerprint)
        if not await self.read(journal, 0):
            await self.append(journal, [Record(RecordKind.RUN, 0, "", 0, data)])

    async def recall_plan(self, fingerprint: str) -> bytes | None:
        """Return the data of :meth:`remember_plan` for a fingerprint; None if there is none."""
        records = await self.read(JournalKey(PLANS, fingerprint), 0)
        return records[0].data if records else None

    async def plans(self) -> dict[str, bytes]:
        """Return the bytes of all plans that :meth:`remember_plan` stored, by fingerprint."""
        plans: dict[str, bytes] = {}
        after: JournalKey | None = None
        while page := await self.journals(PLANS, after):
            after = page[-1].journal
            for info in page:
                for record in await self.read(info.journal, 0):
                    plans.setdefault(info.journal.key, record.data)
        return plans

    async def remember_origin(self, store_id: str) -> None:
        """Record that this store has a copy of all journals of another store.

        State that names the other store can then be restored with this one.
        """
        await self.remember_plan(ORIGIN + store_id, b"copied")

    async def origins(self) -> frozenset[str]:
        """Return the ids of the stores whose copies this store has; see :meth:`remember_origin`."""
        return origins_in(await self.plans())

    def metrics(self) -> Mapping[str, int]:
        """Return the store's metrics by name, which the runtime shows in the group ``store``."""
        return {}


def origins_in(plan_names: Iterable[str]) -> frozenset[str]:
    """Return the ids of the copied stores; their entries are the plan names that start with ``ORIGIN``."""
    return frozenset(name.removeprefix(ORIGIN) for name in plan_names if name.startswith(ORIGIN))


@lru_cache(maxsize=1024)
def encode_text(text: str) -> bytes:
    """Return any string as UTF-8, lone surrogates included; journals are ordered by these bytes."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the string that :func:`encode_text` encoded."""
    return data.decode("utf-8", "surrogatepass")


def check_records(records: Sequence[Record], limit: int) -> None:
    """Check that records are not too large for a store, and that their numbers fit in 64 bits.

    Args:
        records: The records to append.
        limit: Maximum length of a record's data in bytes.

    Raises:
        RecordTooLargeError: A record exceeds the limit.
        ValueError: A sequence number or an index is out of range.
    """
    for kind, seq, step, index, data in records:
        if len(data) > limit:
            raise RecordTooLargeError(
                f"a record of kind {kind.name} is too large for the store",
                expected=f"at most {limit} bytes",
                found=f"{len(data)} bytes: run {seq}, step {step!r}, {index}",
                fix="record less: return a reference to large data, or a part of it",
            )
        if not (0 <= seq < 2**63 and -(2**63) <= index < 2**63):
            raise ValueError(f"sequence number {seq} or index {index} is out of range")


def pruned_error(journal: JournalKey, seq: int, pruned_through: int) -> RecordsPrunedError:
    """Return the error about a request for run ``seq``; all runs up to ``pruned_through`` were pruned."""
    return RecordsPrunedError(
        f"run {seq} of key {journal.key[:200]!r} was pruned, so its effects are unknown",
        expected=f"a sequence number above {pruned_through}",
        found=f"{seq}, journal {journal.journal_id!r}",
        fix="on a cluster, restore from a later checkpoint; to start without state, choose another "
        "job-identifier, or delete them: 'flink-agents journal reset JOB'; a local job without a name "
        "starts over each time: name it, env.execute('orders'), so that it resumes",
    )


def stale_error(owner: Owner) -> FencedOwnerError:
    """Return the error about an ``owner`` that may no longer append."""
    return FencedOwnerError(
        f"another attempt took over {owner.group!r}; this one can no longer record anything",
        found=f"job {owner.job_id}, subtask {owner.subtask} of {owner.parallelism}",
        fix="if the job restarted, do nothing; otherwise stop the job that should not run",
    )


def in_use_error(owner: Owner, holder: str) -> JobIdentifierInUseError:
    """Return the error about another running job with the group of ``owner``; ``holder`` is its Flink id."""
    return JobIdentifierInUseError(
        f"another job is running as {owner.group!r}",
        expected="one job for each job identifier",
        found=f"job {holder} is alive; this is job {owner.job_id}",
        fix="stop one of them, or set different values of the option job-identifier; a job that starts "
        "from the other one's state needs the option action-state.on-job-change: fork as well",
    )


def closed_error(reason: str = "the store is not open") -> StoreClosedError:
    """Return the error about a store that is not open; ``reason`` is its message."""
    return StoreClosedError(reason, fix="call open() first, and nothing after close()")
