"""The stored form of a suspended run, an entry of ``pending``.

It has the run's records, so that the run resumes by a replay, with or without a store of durable calls. It
also has the open waits, and the number of outputs that have left the operator and must not leave again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, cast

import msgpack

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.serde.codec import unknown_version

_VERSION = b"\x03"
_RELEASED_VERSION = b"\x04"
"""Version of the entry of a released run: it has three more fields."""

_FORMER_VERSIONS = b"\x01", b"\x02"
"""The same two, without the submission of the run, and without the start and the request of its waits."""

_NUMBER = re.compile("[0-9]{1,20}")
"""A sequence number in the id of a wait, which may come from outside."""

_pack = cast("Callable[[object], bytes]", msgpack.packb)


class ReleasedRun(NamedTuple):
    """A suspended run whose key is free for other inputs, as the head of the key lists it.

    Attributes:
        number: Number of its input, under which its entry is stored.
        seq: Its sequence number.
        part: The number of its parts that have ended.
        due: The time at which the first of its waits ends by itself, in milliseconds since the epoch; None
            for never.
        woken: Number of the wake-up that resumes it; None if there is none.
        names: Names of the signals that it waits for, once for each wait.
    """

    number: int
    seq: int
    part: int
    due: int | None
    woken: int | None
    names: list[str]


@dataclass(frozen=True)
class StoredWait:
    """An open wait of a run, in the form of state. Each kind of wait is a subclass.

    Attributes:
        kind: The thing that ends it: ``timer`` or ``signal``.
        name: Name of the signal that it waits for; None for a pause.
        step: The path of the execution that waits.
        task: The path of the task that waits.
        nth: The number of earlier waits of that task.
        deadline: The time at which it ends by itself, in milliseconds since the epoch; None for never.
        began: The time at which it began, in milliseconds since the epoch; None if an earlier version of the
            package stored it.
        request: The approval request whose answer it waits for, in the form of ``waits.requests``; or None.
    """

    kind: ClassVar[str]

    step: str
    task: str
    nth: int
    deadline: int | None = None
    name: str | None = None
    began: int | None = None
    request: bytes | None = None

    @property
    def identity(self) -> StoredWait:
        """The same wait without what may change: its times, and its request."""
        return replace(self, deadline=None, began=None, request=None)

    def id(self, key_text: str, seq: int) -> str:
        """Return the text by which a signal can name the wait."""
        return wait_id(key_text, seq, self.step, self.task, self.nth)

    def fields(self) -> list[Any]:
        """Return the fields that state stores."""
        return [self.step, self.task, self.nth, self.name, self.deadline, self.began, self.request]


@dataclass(frozen=True)
class StoredPause(StoredWait):
    """A pause that has not ended."""

    kind = "timer"


@dataclass(frozen=True)
class StoredSignalWait(StoredWait):
    """A wait for a signal that has not ended."""

    kind = "signal"
    name: str = ""


def read_wait(
    step: str,
    task: str,
    nth: int,
    name: str | None,
    deadline: int | None,
    began: int | None = None,
    request: bytes | None = None,
) -> StoredWait:
    """Return the wait with these :meth:`StoredWait.fields`. Those of earlier versions lack the last two."""
    if name is None:
        return StoredPause(step, task, nth, deadline, None, began)
    return StoredSignalWait(step, task, nth, deadline, name, began, request)


def wait_id(key_text: str, seq: int, step: str, task: str, nth: int) -> str:
    """Return the id of a wait: key, sequence number, execution of an action, task, and number of the wait."""
    return f"{key_text}|{seq}|{step}|{task}|{nth}"


def run_of(wait: str, key_text: str) -> int | None:
    """Return the sequence number of the run of a wait, or None if the id is of another key."""
    parts = wait.rsplit("|", 4)
    if len(parts) != 5 or parts[0] != key_text or not _NUMBER.fullmatch(parts[1]):
        return None
    return int(parts[1])


@dataclass(frozen=True)
class Suspension:
    """The stored form of a suspended run.

    Attributes:
        number: Number of its input among those of the key that wait.
        seq: Its sequence number.
        started_at: Wall-clock time at which it started, in milliseconds.
        plan: Fingerprint of the plan that it started with; empty if nothing depends on that.
        records: Its records so far, in order.
        unstored: The positions of the records that are not in the store of durable calls.
        bound: True if the store has the header of the run.
        recorded: True if the store has any record of the run.
        waits: Its open waits.
        left: The number of outputs and side outputs of each execution that have left, by its path.
        failed: Failed attempts of the execution that waits, by its path.
        submission: Identifies the submission of the job that suspended it: another one may have other code.
            Empty if an earlier version of the package stored it.
        parts: The ends of the parts of a released run: the execution that waited there, and the number of
            records by then.
        input: The bytes of the input of a released run, which no longer waits among the others; else
            None.
        identity: The job that a released run started in, from which its ids derive; else None.
        last_deadline: The deadline of all its waits, in milliseconds, or None. It is not part of the bytes.
    """

    number: int
    seq: int
    started_at: int
    plan: str = ""
    records: Sequence[Record] = ()
    unstored: Sequence[int] = ()
    bound: bool = False
    recorded: bool = False
    waits: Sequence[StoredWait] = ()
    left: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    failed: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict[str, Sequence[Sequence[Any]]])
    submission: str = ""
    parts: Sequence[tuple[str, int]] = ()
    input: bytes | None = None
    identity: str | None = None
    last_deadline: int | None = None

    @property
    def released(self) -> bool:
        """True if its input no longer waits, so that other inputs of the key can run."""
        return self.input is not None

    @property
    def due(self) -> int | None:
        """The time at which the first of its waits ends by itself; None if none does."""
        ends = [self.last_deadline, *(wait.deadline for wait in self.waits)]
        return min((at for at in ends if at is not None), default=None)

    def pack(self) -> bytes:
        """Return the bytes."""
        records = [[record.kind.value, record.step, record.index, record.data] for record in self.records]
        fields = (
            self.number,
            self.seq,
            self.started_at,
            self.plan,
            records,
            list(self.unstored),
            self.bound,
            self.recorded,
            [wait.fields() for wait in self.waits],
            {path: list(counts) for path, counts in self.left.items()},
            {path: [list(attempt) for attempt in failed] for path, failed in self.failed.items()},
            self.submission,
        )
        if self.input is None:
            return _VERSION + _pack(fields)
        return _RELEASED_VERSION + _pack(
            (*fields, [list(part) for part in self.parts], self.input, self.identity)
        )

    @classmethod
    def unpack(cls, data: bytes) -> Suspension:
        """Return the suspension from its bytes.

        Raises:
            StateFormatError: They are corrupt, or of an unknown version.
        """
        version = data[:1]
        if version not in (_VERSION, _RELEASED_VERSION, *_FORMER_VERSIONS):
            raise unknown_version("a suspended run", data, _VERSION, _RELEASED_VERSION)
        try:
            fields: list[Any] = msgpack.unpackb(data[1:], strict_map_key=False)
            if version in _FORMER_VERSIONS:
                fields.insert(11, "")
            number, seq, started_at, plan, records, unstored, bound, recorded, waits = fields[:9]
            output_counts, failed, submission = fields[9:12]
            is_released = version in (_RELEASED_VERSION, _FORMER_VERSIONS[1])
            parts, packed, identity = fields[12:15] if is_released else ((), None, None)
            return cls(
                number,
                seq,
                started_at,
                plan,
                [Record(RecordKind(kind), seq, step, index, value) for kind, step, index, value in records],
                unstored,
                bound,
                recorded,
                [read_wait(*wait) for wait in waits],
                {path: (counts[0], counts[1]) for path, counts in output_counts.items()},
                failed,
                submission,
                tuple((step, count) for step, count in parts),
                packed,
                identity,
            )
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StateFormatError("a suspended run cannot be read", found=str(error)) from error
