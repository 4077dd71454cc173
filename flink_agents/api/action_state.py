"""The protocol of the stores that keep the records of durable execution, and the data in them.

A store holds *journals*. A journal belongs to one key of one job; its records are appended and
never changed. Each record belongs to a run, which has a sequence number. What records mean is
no matter of the store: it keeps bytes, in order, and rejects appends of an owner that was replaced.

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
"""The most bytes of ``Record.data`` that a store takes, unless it is configured otherwise."""

MAX_MARKER_BYTES = 200
"""The most bytes of a recovery marker: one is kept in the state of every key."""

REMOVALS = 100_000
"""Of how many journals a store in a file remembers, at least, that all their records were pruned."""

NOTHING_PRUNED = -1
"""What :meth:`ActionStateStore.pruned_through` says where nothing was pruned."""


PLANS = "\x00plans"
"""Journal id of what plans cover; no job has it."""

ORIGIN = "\x00copy of "
"""Prefix of the name under which a store notes that it has a copy of another one; no fingerprint has it."""


class JournalKey(NamedTuple):
    """Names a journal.

    Attributes:
        journal_id: Identity of the job whose journals these are.
        key: Canonical text of the key. Any text, with NUL and lone surrogates, of any length.
    """

    journal_id: str
    key: str


class RecordKind(IntEnum):
    """The kind of a record; every store keeps it as one byte."""

    RUN = 1
    """A run begins: what its input is."""
    INTENT = 2
    """A call is about to be made that a reconciler can ask about."""
    CALL = 3
    """A call has an outcome."""
    ACTION = 4
    """An action has ended: its memory updates and events."""
    RERUN = 5
    """What the same step of the run recorded before is void."""
    WAIT = 6
    """A wait of an action has ended that is no call: a timer fired, a limit or a client was there."""


class Record(NamedTuple):
    """One record of a journal.

    Attributes:
        kind: What it is.
        seq: Sequence number of the run, from 0, below 2**63.
        step: The action run inside the run; any text.
        index: Number of the call inside the action run; any 64-bit number.
        data: The content, which means nothing to the store.
    """

    kind: RecordKind
    seq: int
    step: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    data: bytes


@dataclass(frozen=True)
class Owner:
    """One attempt of one subtask, as the one who may append; each attempt makes its own by :meth:`create`.

    Attributes:
        job_id: Flink's id of the job; the same for all attempts.
        group: Job identifier and agent. Owners of a group exclude each other.
        subtask: Index of the subtask, from 0.
        parallelism: Number of subtasks.
        token: Random; what distinguishes this attempt from all others.
    """

    job_id: str
    group: str
    subtask: int
    parallelism: int
    token: str

    @classmethod
    def create(cls, job_id: str, group: str, subtask: int = 0, parallelism: int = 1) -> Owner:
        """Return an owner with a token of its own."""
        return cls(job_id, group, subtask, parallelism, secrets.token_hex(16))

    def outranks(self, other: Owner) -> bool:
        """Tell whether ``other`` may not append any more once this owner has opened a store."""
        return self.group == other.group and (
            self.job_id != other.job_id
            or self.parallelism != other.parallelism
            or self.subtask == other.subtask
        )


@dataclass(frozen=True)
class JournalInfo:
    """Facts about a journal that a store knows without reading its records.

    Attributes:
        journal: Which one.
        runs: Number of sequence numbers that have records.
        records: Number of records.
        data_bytes: Sum of the lengths of their data.
        first_seq: The least sequence number that has records; None where there are none.
        last_seq: The greatest one.
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
        journals: Number of journals, with those that are known although all their records were pruned.
        records: Number of records.
        data_bytes: Sum of the lengths of their data.
        stored_bytes: What the store takes where it is; None where it cannot say.
        owners: All who may append at present.
        details: What else this kind of store can say, by name.
    """

    journals: int
    records: int
    data_bytes: int
    stored_bytes: int | None
    owners: tuple[Owner, ...]
    details: Mapping[str, int | float | str] = field(default_factory=dict[str, int | float | str])


class ActionStateStore(ABC):
    """Journals of durable execution, as one subtask sees them. See the module for the order of calls.

    Any method but :meth:`open` raises :class:`StoreClosedError` where the store is not open, and
    :class:`StoreUnavailableError` or :class:`StoreFormatError` where the store fails.
    """

    @property
    @abstractmethod
    def store_id(self) -> str:
        """A UUID of the file, topic or whatever holds the records; it stays with it.

        Keyed state keeps it, so that a restore against another store is rejected.
        """

    @property
    def max_record_bytes(self) -> int:
        """The most bytes of ``Record.data`` that :meth:`append` takes."""
        return MAX_RECORD_BYTES

    @abstractmethod
    async def open(self, owner: Owner | None) -> None:
        """Make the store usable, and ``owner`` the one who may append.

        From then on, each owner that ``owner`` outranks (:meth:`Owner.outranks`) is rejected, in other
        processes as well, and at the very append: no check may lie before the write.

        A live job holds a lease on its group. Another job waits for its end, in bounded time: a
        lease that is renewed meanwhile is rejected, one that is not renewed runs out. Attempts of
        the same job do not wait for it. This lease decides who waits, never who may append.

        Args:
            owner: Who appends. None opens the store to look at it and to prune, without fencing an owner.

        Raises:
            JobIdentifierInUseError: Another job that lives has the same group.
            StoreFormatError: This is no store, or one of a newer version.
            StoreUnavailableError: It cannot be reached.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was appended, in bounded time, and give the lease back.

        Each append that waits returns or raises. Another call does nothing.
        """

    @abstractmethod
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        """Append ``records`` and return when they are durable: all of them or none.

        Records of a journal are stored in the order of the calls. A cancelled call continues in the
        background; whether its records are stored, :meth:`read` tells after the next append of
        the same journal.

        Raises:
            FencedOwnerError: Another owner took over. Nothing was stored.
            RecordTooLargeError: One of them is too large. Nothing was stored.
            RecordsPrunedError: One of them belongs to a run that was pruned. Nothing was stored.
            StoreUnavailableError: The store cannot be written. Nothing was stored.
            AppendOutcomeUnknownError: They may be stored or not. The attempt must fail, and nothing
                may be appended in their place; the store takes no more appends.
        """

    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        """Return all records of a run, in the order of their append; empty where nothing was recorded.

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
            journal: Where to look.
            from_seq: The first run; None for the first that is kept.
            to_seq: The last run, included; None for the last there is.

        Raises:
            RecordsPrunedError: ``from_seq`` was pruned.
        """

    @abstractmethod
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        """Remove the records of all runs up to ``through_seq``; those are *pruned* from then on.

        What was pruned before stays pruned. A journal in which nothing was recorded stays unknown.

        The runtime prunes what no checkpoint can ask for that Flink retains. So a store need not remember
        for ever what was pruned, which would let it grow with each key that was ever seen: a journal
        without records may become unknown again, as before its first record. The last ones of which all
        was pruned (:data:`REMOVALS` of them in a file, fewer where each start reads them) should be
        remembered, so that a restore from a savepoint of before is rejected by name.

        Raises:
            FencedOwnerError: Another owner took over.
        """

    @abstractmethod
    async def forget(self, journal_id: str) -> None:
        """Remove all journals of ``journal_id``; from then on they are unknown, as before their first record.

        Nothing checks that no job needs them. Who forgets owns the group that appends to them, so that
        no job does so meanwhile or, being late, afterwards.

        Raises:
            FencedOwnerError: Another owner took over. Nothing was removed.
            StoreClosedError: The store was opened without an owner.
        """

    @abstractmethod
    async def pruned_through(self, journal: JournalKey) -> int:
        """Return the last run that was pruned; :data:`NOTHING_PRUNED` if none."""

    @abstractmethod
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        """Tell whether something was recorded for ``journal`` before this owner opened the store.

        Also where all of it was pruned, as long as the store remembers that.

        Cheap and without any I/O: Flink's thread asks it for every event. True may be wrong, and is
        where :meth:`rebuild` has not looked yet; False never is. Always True where the store was
        opened without an owner. For the arguments see :meth:`rebuild`.
        """

    @abstractmethod
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        """Prepare to read the records of ``journal`` after ``marker``.

        A marker only narrows what is read. Called for each journal that may have records, and cheap
        where an earlier call read as much.

        Args:
            journal: Which one; None for all of them.
            marker: What :meth:`recovery_marker` gave, out of the state of the key, of this attempt
                or an earlier one; None where state has none, for all that was ever recorded.
            pending: Whether inputs of the key wait in state. Of one without, all that matters was
                recorded behind the checkpoint, and so behind each marker that this subtask wrote.

        Raises:
            StoreMismatchError: The marker is of another store.
            RecordsPrunedError: Records of a key with inputs that wait were removed from outside.
        """

    @abstractmethod
    def recovery_marker(self, journal: JournalKey) -> bytes:
        """Return a position at or before which no record of ``journal`` lies that is appended from now on.

        Opaque, at most :data:`MAX_MARKER_BYTES` bytes; kept in Flink's state.
        """

    @abstractmethod
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        """Return journals in the order of ``journal_id`` and key, each as UTF-8 bytes.

        Args:
            journal_id: Only those of this job.
            after: Only those behind this one: the last one of the page before.
            limit: The most to return, at least 1.
        """

    @abstractmethod
    async def stats(self) -> StoreStats:
        """Return the totals, which may take time in proportion to the store's size."""

    async def remember_plan(self, fingerprint: str, data: bytes) -> None:
        """Keep ``data`` with a fingerprint, for all jobs; what is there already stays as it is.

        It gets a journal of its own, unless the store has a place that costs less.

        Raises:
            FencedOwnerError: Another owner took over.
        """
        journal = JournalKey(PLANS, fingerprint)
        if not await self.read(journal, 0):
            await self.append(journal, [Record(RecordKind.RUN, 0, "", 0, data)])

    async def recall_plan(self, fingerprint: str) -> bytes | None:
        """Tell what :meth:`remember_plan` was given; None where it was not given anything."""
        records = await self.read(JournalKey(PLANS, fingerprint), 0)
        return records[0].data if records else None

    async def plans(self) -> dict[str, bytes]:
        """Return everything that :meth:`remember_plan` was given, by fingerprint."""
        found: dict[str, bytes] = {}
        after: JournalKey | None = None
        while page := await self.journals(PLANS, after):
            after = page[-1].journal
            for info in page:
                for record in await self.read(info.journal, 0):
                    found.setdefault(info.journal.key, record.data)
        return found

    async def remember_origin(self, store_id: str) -> None:
        """Note that this store has a copy of all journals of another one.

        State that names the other store can then be restored with this one.
        """
        await self.remember_plan(ORIGIN + store_id, b"copied")

    async def origins(self) -> frozenset[str]:
        """Return the ids that :meth:`remember_origin` was given."""
        return origins_in(await self.plans())

    def metrics(self) -> Mapping[str, int]:
        """Return the store's measurements by name, which the runtime shows in the group ``store``."""
        return {}


def origins_in(names: Iterable[str]) -> frozenset[str]:
    """Return the ids of copied stores among the names of plans."""
    return frozenset(name.removeprefix(ORIGIN) for name in names if name.startswith(ORIGIN))


@lru_cache(maxsize=1024)
def encode_text(text: str) -> bytes:
    """Return ``text`` as bytes, whatever is in it; the order of journals is that of these bytes."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the text that :func:`encode_text` was given."""
    return data.decode("utf-8", "surrogatepass")


def check_records(records: Sequence[Record], limit: int) -> None:
    """Refuse records that no store takes.

    Args:
        records: What is to be appended.
        limit: The most bytes of data of one record.

    Raises:
        RecordTooLargeError: One of them has more.
        ValueError: A number is out of range.
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
    """Return the error that says that run ``seq`` was pruned."""
    return RecordsPrunedError(
        f"run {seq} of key {journal.key[:200]!r} was pruned, so nobody can tell what it did",
        expected=f"a sequence number above {pruned_through}",
        found=f"{seq}, journal {journal.journal_id!r}",
        fix="on a cluster, restore from a later checkpoint; a local job without a name begins anew each "
        "time: name it, env.execute('orders'), so that it resumes, or give it another job-identifier",
    )


def stale_error(owner: Owner) -> FencedOwnerError:
    """Return the error that says that ``owner`` may not append any more."""
    return FencedOwnerError(
        f"another attempt took over {owner.group!r}; this one may not record anything any more",
        found=f"job {owner.job_id}, subtask {owner.subtask} of {owner.parallelism}",
        fix="none is needed where the job restarted; otherwise stop the job that should not run",
    )


def in_use_error(owner: Owner, holder: str) -> JobIdentifierInUseError:
    """Return the error that says that job ``holder`` lives and has the group of ``owner``."""
    return JobIdentifierInUseError(
        f"another job is running as {owner.group!r}",
        expected="one job for each job identifier",
        found=f"job {holder} is alive; this is job {owner.job_id}",
        fix="stop one of them, or give them different values of the option job-identifier; a job that starts "
        "from the other one's state needs the option action-state.on-job-change: fork as well",
    )


def closed_error(reason: str = "the store is not open") -> StoreClosedError:
    """Return the error that says that the store cannot be used."""
    return StoreClosedError(reason, fix="call open() first, and nothing after close()")
