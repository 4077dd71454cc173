"""The stored form of a suspended run, an entry of ``pending``.

It has the run's records, so that the run resumes by a replay, with or without a store of durable calls. It
also has the open waits, and the number of outputs that have left the operator and must not leave again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.state.slots import pack, unpack

_VERSION = b"\x05"

_NUMBER = re.compile("[0-9]{1,20}")
"""Matches the sequence number in the id of a wait, which may come from outside."""


class ListedRun(NamedTuple):
    """A suspended run, as the head of its key lists it.

    Attributes:
        number: Number of its input, under which its entry is stored.
        seq: Its sequence number.
        blocks: True if its input still waits in ``pending``, so that no other run of its key starts.
        part: The number of its parts that have ended, if it does not block its key.
        due: The time at which the first of its waits ends by itself, in milliseconds since the epoch; None
            for never.
        woken: Number of the entry of ``pending`` with which it resumes: its input if it blocks its key, else
            a wake-up. None while it sleeps.
        names: Names of the signals that it waits for, once for each wait.
    """

    number: int
    seq: int
    blocks: bool
    part: int
    due: int | None
    woken: int | None
    names: list[str]

    @classmethod
    def from_suspension(cls, suspension: Suspension) -> ListedRun:
        """Return the entry in the head for a run that is suspended now, and asleep."""
        names = [wait.name for wait in suspension.waits if isinstance(wait, StoredSignalWait)]
        parts = len(suspension.parts)
        return cls(
            suspension.number, suspension.seq, not suspension.frees_key, parts, suspension.due, None, names
        )

    def is_due(self, now: int) -> bool:
        """Return True if the run is woken, or if one of its waits has ended at ``now`` (milliseconds)."""
        return self.woken is not None or (self.due is not None and self.due <= now)


@dataclass(frozen=True)
class StoredWait:
    """An open wait of a run, in the form of state. Each kind of wait is a subclass.

    Attributes:
        kind: The thing that ends it, such as ``timer`` or ``signal``. State, metrics and lists tell waits
            apart by it.
        name: The text that lists show after the kind: the name of the signal that it waits for; None for a
            pause.
        step: The path of the execution that waits.
        task: The path of the task that waits.
        nth: The number of earlier waits of that task, which distinguishes them.
        deadline: The time at which it ends by itself, in milliseconds since the epoch; None for never.
        began: The time at which it began, in milliseconds since the epoch; None before that is known.
        request: The approval request whose answer it waits for, in the form of ``waits.approvals``; or None.
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
        """A copy for comparisons, without what may change in a replay: its times and its request."""
        return type(self)(self.step, self.task, self.nth, name=self.name)

    def timed(self, began: int | None, deadline: int | None) -> StoredWait:
        """Return a copy with its start and its deadline, in milliseconds since the epoch."""
        return type(self)(self.step, self.task, self.nth, deadline, self.name, began, self.request)

    def id(self, key_text: str, seq: int) -> str:
        """Return the id by which a signal can name the wait, see :func:`wait_id`."""
        return wait_id(key_text, seq, self.step, self.task, self.nth)

    def stored(self) -> list[Any]:
        """Return the wait for MessagePack: its kind, and its fields in order."""
        return [self.kind, *(getattr(self, wait_field.name) for wait_field in fields(self))]


@dataclass(frozen=True)
class StoredPause(StoredWait):
    """A pause that has not ended."""

    kind = "timer"


@dataclass(frozen=True)
class StoredSignalWait(StoredWait):
    """A wait for a signal that has not ended."""

    kind = "signal"
    name: str = ""


WAIT_CLASSES: Mapping[str, type[StoredWait]] = {
    wait_class.kind: wait_class for wait_class in (StoredPause, StoredSignalWait)
}
"""The classes of waits by their kinds."""


def wait_id(key_text: str, seq: int, step: str, task: str, nth: int) -> str:
    """Return the id of a wait: key, sequence number, execution of an action, task, and number of the wait."""
    return f"{key_text}|{seq}|{step}|{task}|{nth}"


def run_of(wait: str, key_text: str) -> int | None:
    """Return the sequence number of the run that the wait with an id belongs to; None if of another key."""
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
        bound: True if the store has the header of the run, which names its input.
        recorded: True if the store has any record of the run.
        waits: Its open waits.
        left: The number of outputs and side outputs of each execution that have left, by its path.
        failed: Failed attempts of the execution that waits, by its path.
        submission: Identifies the submission of the job that suspended it: another one may have other code.
        input: The bytes of its input if that no longer waits among those of the key; None if the run blocks
            its key.
        parts: The ends of its parts, if it does not block its key: the execution that waited there, and the
            number of records by then.
        identity: The job that it started in, from which its ids derive; None if it blocks its key.
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
    def frees_key(self) -> bool:
        """True if its input no longer waits, so that other inputs of the key can run."""
        return self.input is not None

    @property
    def due(self) -> int | None:
        """The time, in milliseconds, at which the first of its waits ends by itself; None if none does."""
        ends = [self.last_deadline, *(wait.deadline for wait in self.waits)]
        return min((at for at in ends if at is not None), default=None)

    def pack(self) -> bytes:
        """Return the bytes for state: a version byte, and MessagePack."""
        values = {name: getattr(self, name) for name in _STORED_FIELDS}
        values["records"] = [(kind.value, step, index, data) for kind, _, step, index, data in self.records]
        values["waits"] = [wait.stored() for wait in self.waits]
        return _VERSION + pack(list(values.values()))

    @classmethod
    def unpack(cls, data: bytes) -> Suspension:
        """Return the suspension that :meth:`pack` has packed.

        Raises:
            StateFormatError: The bytes are corrupt, or of an unknown version.
        """
        return unpack("a suspended run", data, cls._from_fields, _VERSION)

    @classmethod
    def _from_fields(cls, stored: list[Any]) -> Suspension:
        values: dict[str, Any] = dict(zip(_STORED_FIELDS, stored, strict=True))
        values["records"] = [
            Record(RecordKind(kind), values["seq"], step, index, data)
            for kind, step, index, data in values["records"]
        ]
        values["waits"] = [WAIT_CLASSES[kind](*stored_fields) for kind, *stored_fields in values["waits"]]
        values["left"] = {path: (counts[0], counts[1]) for path, counts in values["left"].items()}
        values["parts"] = tuple((step, count) for step, count in values["parts"])
        return cls(**values)


_STORED_FIELDS = [stored.name for stored in fields(Suspension) if stored.name != "last_deadline"]
"""The fields that the bytes have, in this order."""
