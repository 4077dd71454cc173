"""Keys whose state was written by another job: decides if this job may continue them.

State names the job that the runs of a key belong to. A job without ``job-identifier`` that starts from the
state of another one without it is its successor: it continues the journals of that job, as their owner. If
one of the two has a name, you have to choose: a second job beside the other one (*fork*), which writes
its own journals, or the other job under a new name (*adopt*).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnJobChange
from flink_agents.api.errors import JobIdentifierMismatchError
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.journal.names import is_flink_job_id
from flink_agents.runtime.journal.records import RunHeader, input_digest
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head, MapSlot

_log = bounded_logger("flink_agents.durable")


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

    def admit(self, head: Head, key_text: str, store_id: str) -> None:
        """Check that this job may continue a key. If this job is a fork, the head is changed accordingly.

        Args:
            head: The key's head, from state.
            key_text: The key.
            store_id: Id of the present store.

        Raises:
            JobIdentifierMismatchError: It may not, unless an option allows it.
        """
        if head.journal_id == self._job_id or self._policy is OnJobChange.ADOPT:
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
        elif self._named or not is_flink_job_id(head.journal_id):
            raise self._refused(head.journal_id, key_text)

    def _refused(self, other: str, key_text: str) -> JobIdentifierMismatchError:
        other_name = f"job {other}" if is_flink_job_id(other) else f"the job-identifier {other!r}"
        own = f"the job-identifier {self._job_id!r}" if self._named else "no job-identifier"
        same = "no job-identifier" if is_flink_job_id(other) else f"the job-identifier {other!r}"
        return JobIdentifierMismatchError(
            f"the state of key {decode_key(key_text)!r} was written by another job, "
            "and no option lets this job continue its journals",
            expected=f"{same}, or the option {AgentOptions.ON_JOB_CHANGE.key}",
            found=f"state of {other_name}, and {own} here",
            fix=f"to continue as the same job, give it {same}; for a job beside the other one, which records "
            f"for itself, set {AgentOptions.ON_JOB_CHANGE.key} to 'fork' and job-identifier to a text of its "
            f"own; to continue the other job's journals under a new name, after its end, set "
            f"{AgentOptions.ON_JOB_CHANGE.key} to 'adopt'",
        )


def origins_of(head: Head, pending: MapSlot[int]) -> list[Origin]:
    """Return the other jobs that may have recorded something for inputs of a key, each with those inputs."""
    found: list[Origin] = []
    for journal_id, marker, before in head.origins:
        waiting = map(pending.get, range(head.first_pending, before))
        inputs = Counter(input_digest(packed) for packed in waiting if packed is not None)
        found.append(Origin(journal_id, marker, inputs))
    return found


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
    left = Counter(origin.inputs)
    taken: set[int] = set()
    for record in recorded:
        if _is_header(record) and record.seq not in taken:
            digest = RunHeader.unpack(codec, record.data).digest
            if left[digest] > 0:
                left[digest] -= 1
                taken.add(record.seq)
    return [_of_origin(record, origin.journal_id) for record in recorded if record.seq in taken]


def _of_origin(record: Record, journal_id: str) -> Record:
    """Return a record for the journal of a fork. In a header, ``step`` is the job that the run belongs to."""
    return record._replace(step=record.step or journal_id) if _is_header(record) else record


def _is_header(record: Record) -> bool:
    return record.kind is RecordKind.RUN and record.index == 0


def identity_of(records: Iterable[Record]) -> str | None:
    """Return the identity of the job that a recorded run belongs to; None for the job of its journal."""
    return next((record.step for record in records if _is_header(record) and record.step), None)
