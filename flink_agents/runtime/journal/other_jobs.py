"""State that was written by another job, or with other journals: decides if this job may continue it.

State names the job that the runs of a key belong to. A job without ``job-identifier`` that starts from the
state of another one without it is its successor: it continues the journals of that job, as their owner. If
one of the two has a name, you have to choose: a second job beside the other one (*fork*), which writes
its own journals, or the other job under a new name (*adopt*).

A key's head names the store of its runs, so a wrong store is found when such a key comes. If only other keys
come, nothing would show that journals were deleted, emptied or replaced, and recorded steps would be made
again. So the operator's state names the store as well. It is part of each checkpoint from the first one on,
and is compared when the store opens. Its size does not depend on the number of keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from flink_agents.api.action_state import ActionStateStore, Record, RecordKind
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnJobChange
from flink_agents.api.errors import JobIdentifierMismatchError, StoreMismatchError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.journal.names import is_flink_job_id
from flink_agents.runtime.journal.records import RunHeader, input_digest
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import POSITION, Head
from flink_agents.runtime.state.pending import PendingInputs
from flink_agents.runtime.state.slots import OperatorSlot

_log = bounded_logger("flink_agents.durable")

_JOB = "job"
_STORE = "store"


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
        """Return True if this job continues the journals of a job."""
        if job_id == self._job_id or self._policy is OnJobChange.ADOPT:
            return True
        return self._policy is OnJobChange.FAIL and not self._named and is_flink_job_id(job_id)

    def admit(self, head: Head, key_text: str, store_id: str) -> None:
        """Check that this job may continue a key. If this job is a fork, the head is changed accordingly.

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
                head.leave()
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


def origins_of(head: Head, pending: PendingInputs) -> list[Origin]:
    """Return the other jobs that may have recorded something for inputs of a key, each with those inputs."""
    origins: list[Origin] = []
    for journal_id, marker, end_number in head.origins:
        waiting = map(pending.get, range(head.first_pending, end_number))
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
    return record.kind is RecordKind.RUN and record.index == 0


def identity_of(records: Iterable[Record]) -> str | None:
    """Return the identity of the job that a recorded run belongs to; None for the job of its journal."""
    return next((record.step for record in records if _is_header(record) and record.step), None)


class JournalIdentity:
    """Names the store in the operator's state, and compares it with the restored name.

    Args:
        state: The operator's state.
        job_id: Identity of the job.
        other_jobs: Decides whose journals this job continues.
    """

    def __init__(self, state: OperatorSlot, job_id: str, other_jobs: OtherJobs) -> None:
        self._state = state
        self._job_id = job_id
        self._other_jobs = other_jobs
        # Only Flink's task thread may read state, and the loop's thread compares.
        self._restored = dict(entries := list(state.items()))
        self._positions = {value for name, value in entries if name == POSITION}

    async def check(self, store: ActionStateStore, copied: Collection[str]) -> None:
        """Check that an open store has the journals that the restored state was written with.

        A fork has its own journals, and may have another store.

        Args:
            store: The store.
            copied: Ids of the stores whose journals were copied into it.

        Raises:
            StoreMismatchError: It is another store.
            StoreError: It lacks records that the restored checkpoint had seen.
        """
        restored = self._restored
        if _STORE not in restored or not self._other_jobs.continues(restored[_JOB].decode()):
            return
        store_id = restored[_STORE].decode()
        if store_id == store.store_id:
            for position in self._positions:
                await store.check_position(position)
        elif store_id not in copied:
            raise other_store(store_id, store.store_id)

    def write(self, store: ActionStateStore) -> bool:
        """Name an open store in state; return False if it has nothing to lose. For Flink's task thread."""
        position = store.position()
        if not position:
            return False
        self._state.put(_JOB, self._job_id.encode())
        self._state.put(_STORE, store.store_id.encode())
        self._state.put(POSITION, position)
        return True


def other_store(expected: str, present: str) -> StoreMismatchError:
    """Return the error about a store without the journals that state belongs to.

    Args:
        expected: Id of the store, from state.
        present: Id of the configured store, or a text if there is none.
    """
    return StoreMismatchError(
        "state belongs to another store of durable calls than the configured one",
        expected=f"the store with the id {expected}",
        found=present,
        fix="configure the store that the state was written with (action-state.store and its options), or "
        "restore its file or topic if it was deleted; copy its journals into this one (flink-agents journal "
        "copy); or start without that state",
    )
