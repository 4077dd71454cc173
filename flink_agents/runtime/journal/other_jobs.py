"""Keys whose state another job has written: may this job continue them, and with whose records?

State names the job that the runs of a key belong to. A job without ``job-identifier`` that starts from the
state of another one without it is its successor: it continues the journals of that job, as their owner. If
one of the two has a name, you have to choose: a second job beside the other one (*fork*), which writes
its own journals, or the other job under a new name (*adopt*).

So the heads of keys list the *former identities* of the job. A store has one owner, who may append as long as
no newer owner has its group. So the journals of each former job have a separate store object. It is opened as
an owner of the former job's group when the first key of that job comes. From then on, the former job cannot
append. While it is still running, or another successor is, the claim of this job is rejected.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import CoroutineType
from typing import Any, NamedTuple

from typing_extensions import override

from flink_agents.api.action_state import (
    ActionStateStore,
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    RecordKind,
    StoreStats,
    closed_error,
)
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnJobChange
from flink_agents.api.errors import JobIdentifierMismatchError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.journal.identity import is_flink_job_id
from flink_agents.runtime.journal.records import RunHeader, input_digest
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head, KeyedState

_log = bounded_logger("flink_agents.durable")

GUARD = "\x00guard"
"""Id of a journal that is only written to check that its writer still owns its group. No job has this id."""


class Origin(NamedTuple):
    """A job from which a fork has taken over a key.

    Attributes:
        journal_id: Identity of that job.
        marker: The position before the records of its runs that were not committed; None for anywhere.
        inputs: Digests of the inputs that waited in state at that time, each with its count.
    """

    journal_id: str
    marker: bytes | None
    inputs: Counter[bytes]


class OtherJobs:
    """Decides on keys whose state another job has written.

    Args:
        config: Options of the present job.
        job_id: Its identity.
    """

    def __init__(self, config: Configuration, job_id: str) -> None:
        self._job_id = job_id
        self._named = config.get(AgentOptions.JOB_IDENTIFIER) is not None
        self._policy = OnJobChange(config.get(AgentOptions.ON_JOB_CHANGE))

    def continues(self, job_id: str) -> bool:
        """Return True if this job continues the journals of job ``job_id`` as their owner."""
        if job_id == self._job_id or self._policy is OnJobChange.ADOPT:
            return True
        return self._policy is OnJobChange.FAIL and not self._named and is_flink_job_id(job_id)

    def admit(self, head: Head, key_text: str, store_id: str) -> None:
        """Check that this job may continue a key. If it is a fork, move the key to its own journals.

        Args:
            head: The key's head, from state.
            key_text: The key.
            store_id: Id of the present store.

        Raises:
            JobIdentifierMismatchError: It may not, unless an option allows it.
        """
        if self.continues(head.journal_id):
            return
        if self._policy is OnJobChange.FORK:
            if head.store not in (None, store_id):
                if head.has_pending:
                    _log.warning(
                        "job %s records in another store than job %s did: inputs of key %r that were in "
                        "flight start again",
                        self._job_id,
                        head.journal_id,
                        decode_key(key_text),
                    )
                head.leave_store()
            head.fork(self._job_id)
        else:
            raise self._refused(head.journal_id, key_text)

    def _refused(self, other_job_id: str, key_text: str) -> JobIdentifierMismatchError:
        other_name = (
            f"job {other_job_id}" if is_flink_job_id(other_job_id) else f"the job-identifier {other_job_id!r}"
        )
        own_name = f"the job-identifier {self._job_id!r}" if self._named else "no job-identifier"
        same = (
            "no job-identifier" if is_flink_job_id(other_job_id) else f"the job-identifier {other_job_id!r}"
        )
        return JobIdentifierMismatchError(
            f"the state of key {decode_key(key_text)!r} was written by another job, "
            "and no option lets this job continue its journals",
            expected=f"{same}, or the option {AgentOptions.ON_JOB_CHANGE.key}",
            found=f"state of {other_name}, and {own_name} here",
            fix=f"to continue as the same job, give it {same}; for a job beside the other one, which records "
            f"for itself, set {AgentOptions.ON_JOB_CHANGE.key} to 'fork' and job-identifier to a text of its "
            f"own; to continue the other job's journals under a new name, after its end, set "
            f"{AgentOptions.ON_JOB_CHANGE.key} to 'adopt'",
        )


def origins_of(head: Head, state: KeyedState) -> list[Origin]:
    """Return the other jobs that may have recorded something for inputs of a key, each with those inputs."""
    origins: list[Origin] = []
    for journal_id, marker, end_number in head.origins:
        waiting = (state.input(head, number) for number in range(head.first_pending, end_number))
        inputs = Counter(input_digest(packed) for packed in waiting if packed is not None)
        origins.append(Origin(journal_id, marker, inputs))
    return origins


def inherited(codec: ValueCodec, records: Iterable[Record], origin: Origin) -> list[Record]:
    """Return the records of runs that a fork takes over from its origin.

    These are runs whose inputs waited in state. Other records of the origin belong to inputs after the
    savepoint. The runs keep the identity of the origin, which services may know.

    Args:
        codec: Reads headers.
        records: The origin's records from its first uncommitted run on, by run.
        origin: The origin.
    """
    recorded = list(records)
    remaining_inputs = Counter(origin.inputs)
    inherited_seqs: set[int] = set()
    for record in recorded:
        if _is_header(record) and record.seq not in inherited_seqs:
            digest = RunHeader.unpack(codec, record.data).digest
            if remaining_inputs[digest] > 0:
                remaining_inputs[digest] -= 1
                inherited_seqs.add(record.seq)
    return [_of_origin(record, origin.journal_id) for record in recorded if record.seq in inherited_seqs]


def _of_origin(record: Record, journal_id: str) -> Record:
    """Return a record for the journal of a fork. In a header, ``step`` is the job that the run belongs to."""
    return record._replace(step=record.step or journal_id) if _is_header(record) else record


def _is_header(record: Record) -> bool:
    """Return True for the header of a run, which is its first record."""
    return record.kind is RecordKind.RUN and record.index == 0


def identity_of(records: Iterable[Record]) -> str | None:
    """Return the identity of the job that a recorded run belongs to; None for the job of its journal."""
    return next((record.step for record in records if _is_header(record) and record.step), None)


class ForwardingStore(ActionStateStore):
    """Forwards each call to another store; plans go through :meth:`append` and :meth:`read`.

    Args:
        store: The store that gets the calls.
    """

    def __init__(self, store: ActionStateStore) -> None:
        self._own = store

    def _store_of(self, journal: JournalKey) -> ActionStateStore:
        """Return the store that gets the calls about a journal; here, always the same one."""
        return self._own

    @property
    @override
    def store_id(self) -> str:
        return self._own.store_id

    @property
    @override
    def max_record_bytes(self) -> int:
        return self._own.max_record_bytes

    @override
    async def open(self, owner: Owner | None) -> None:
        await self._own.open(owner)

    @override
    async def close(self) -> None:
        await self._own.close()

    # -- writing ----------------------------------------------------------------------

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await self._store_of(journal).append(journal, records)

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await self._store_of(journal).prune(journal, through_seq)

    @override
    async def forget(self, journal_id: str) -> None:
        await self._own.forget(journal_id)

    # -- reading ----------------------------------------------------------------------

    @override
    async def read(self, journal: JournalKey, seq: int) -> list[Record]:
        return await self._store_of(journal).read(journal, seq)

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        return await self._store_of(journal).scan(journal, from_seq, to_seq)

    @override
    async def pruned_through(self, journal: JournalKey) -> int:
        return await self._store_of(journal).pruned_through(journal)

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        return self._store_of(journal).may_have(journal, marker, pending)

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        store = self._own if journal is None else self._store_of(journal)
        await store.rebuild(journal, marker, pending)

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        return self._store_of(journal).recovery_marker(journal)

    @override
    def position(self) -> bytes:
        return self._own.position()

    @override
    async def check_position(self, position: bytes) -> None:
        await self._own.check_position(position)

    @override
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        return await self._own.journals(journal_id, after, limit)

    @override
    async def stats(self) -> StoreStats:
        return await self._own.stats()


class GroupedStore(ForwardingStore):
    """Has a store for each job whose journals the attempt owns, and routes each call to the right one.

    Args:
        store: The store of the job's own journals, and of everything that belongs to no job; not open yet.
        make_store: Creates another store like it.
    """

    def __init__(self, store: ActionStateStore, make_store: Callable[[], ActionStateStore]) -> None:
        super().__init__(store)
        self._make_store = make_store
        self._owner: Owner | None = None
        self._group: str | None = None
        self._others: dict[str, ActionStateStore] = {}
        self._claiming = asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None
        self._guarded = 0
        self._closed = False

    @override
    async def open(self, owner: Owner | None) -> None:
        await super().open(owner)
        self._owner = owner
        self._group = None if owner is None else owner.group

    @override
    async def close(self) -> None:
        # First: a claim in flight closes its store itself.
        self._closed = True
        stores = [*self._others.values(), self._own]
        errors = await asyncio.gather(*(store.close() for store in stores), return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error

    async def claim(self, group: str) -> None:
        """Become the owner of the journals of a former job, unless this attempt owns them.

        Args:
            group: The name of the journals of an agent in that job.

        Raises:
            JobIdentifierInUseError: That job is running, or another successor of it.
        """
        if not self._is_foreign(group) or group in self._others:
            return
        # One at a time, or two keys of that job would make two owners, of which one fences the other.
        async with self._claiming:
            if group not in self._others:
                self._others[group] = await self._open_owned(group)

    async def _open_owned(self, group: str) -> ActionStateStore:
        """Return a new store that is open as the owner of a group of journals."""
        owner = self._owner
        if owner is None or self._closed:
            raise closed_error("the store was opened without an owner, or is closed")
        store = self._make_store()
        try:
            await store.open(replace(owner, group=group, token=Owner.create(owner.job_id, group).token))
            # `close` came meanwhile, and does not know this store.
            if self._closed:
                raise closed_error()
        except BaseException:
            await store.close()
            raise
        return store

    def _is_foreign(self, journal_id: str) -> bool:
        """Return True for a journal of another job. Ids that begin with a null byte belong to no job."""
        owner = self._owner
        return owner is not None and journal_id != owner.group and not journal_id.startswith("\x00")

    @override
    def _store_of(self, journal: JournalKey) -> ActionStateStore:
        """Return the store to read a journal from: that of its former job, or else of this job."""
        return self._others.get(journal.journal_id, self._own)

    async def _owned(self, journal: JournalKey) -> ActionStateStore:
        """Return the store to write a journal to, of which this attempt becomes the owner if it is not."""
        await self.claim(journal.journal_id)
        return self._store_of(journal)

    # -- writing ----------------------------------------------------------------------

    @override
    def append(self, journal: JournalKey, records: Sequence[Record]) -> CoroutineType[Any, Any, None]:
        # Almost all journals are the job's own. Their appends go to its store directly.
        if journal.journal_id == self._group or not self._is_foreign(journal.journal_id):
            return self._own.append(journal, records)
        return self._append_owned(journal, records)

    async def _append_owned(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await (await self._owned(journal)).append(journal, records)

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        """Prune. For the journal of a former job, check first that no later attempt of this job has started.

        A later attempt claims the journals of its own job at its start, and those of former jobs when it
        needs them. So until then, these journals do not show that this attempt's knowledge of checkpoints is
        stale.
        """
        store = await self._owned(journal)
        if store is not self._own:
            await self._check_ownership()
        await store.prune(journal, through_seq)

    async def _check_ownership(self) -> None:
        """Raise if a later attempt has started: the store rejects a record that this attempt writes.

        Concurrent calls share one write, if it begins after each of them.
        """
        running_guard = self._guard
        if running_guard is not None and not running_guard.done():
            # That write may have succeeded before the caller learned of its checkpoint, so it proves nothing.
            await asyncio.wait([running_guard])
        if self._guard is None or self._guard is running_guard:
            self._guard = asyncio.create_task(self._write_guard())
        await asyncio.shield(self._guard)

    async def _write_guard(self) -> None:
        """Append a record to the journal ``GUARD`` of this attempt's group, and prune it."""
        owner = self._owner
        assert owner is not None
        journal = JournalKey(GUARD, f"{owner.group}\x00{owner.subtask}")
        # Above what was pruned: a store rejects records of pruned runs.
        self._guarded = max(self._guarded, await self._own.pruned_through(journal) + 1)
        await self._own.append(journal, [Record(RecordKind.RUN, self._guarded, "", 0, b"")])
        await self._own.prune(journal, self._guarded)

    # -- reading ----------------------------------------------------------------------

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        if journal.journal_id == self._group or not self._is_foreign(journal.journal_id):
            return self._own.may_have(journal, marker, pending)
        other_store = self._others.get(journal.journal_id)
        return other_store is None or other_store.may_have(journal, marker, pending)

    @override
    async def remember_plan(self, fingerprint: str, data: bytes) -> None:
        await self._own.remember_plan(fingerprint, data)

    @override
    async def recall_plan(self, fingerprint: str) -> bytes | None:
        return await self._own.recall_plan(fingerprint)

    @override
    async def plans(self) -> dict[str, bytes]:
        return await self._own.plans()

    @override
    def metrics(self) -> Mapping[str, int]:
        return self._own.metrics()
