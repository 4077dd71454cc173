"""What an agent keeps per key in Flink, and the bytes of its head.

Five keyed states, whose names and formats are part of every savepoint:

``head``     bytes of a :class:`Head`; read and written once an event
``pending``  number of arrival -> an entry with its kind, as ``state.pending`` packs it: an input that
             waits, as ``codec`` bytes of ``[record, timestamp]``; below 0 suspended runs and signals
``memory``   escaped path -> short-term memory (``codec`` bytes; one zero byte for an object)
``unpruned`` a mark of keys whose records are to be pruned; ``journal.unpruned`` writes and removes it
``delayed``  events that are to be delivered later, as ``state.delayed`` keeps them. They are no entries of
             ``pending``: an operator that opens wakes all keys of that
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgpack

from flink_agents.api.errors import StateFormatError
from flink_agents.runtime.state.aside import Aside
from flink_agents.runtime.state.delayed import DelayedEvents
from flink_agents.runtime.state.pending import PendingInputs
from flink_agents.runtime.state.slots import MapSlot, ValueSlot

HEAD_STATE = "head"
PENDING_STATE = "pending"
MEMORY_STATE = "memory"
UNPRUNED_STATE = "unpruned"
DELAYED_STATE = "delayed"

OBJECT = b"\x00"
"""The bytes of an object node in memory."""

_HEAD_VERSION = b"\x01"


class _Packers(threading.local):
    """A packer for each thread: a collection of garbage lets others have their turn inside of one."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer().pack


_packers = _Packers()


class Timers(Protocol):
    """Timers of the current key, in milliseconds since the epoch."""

    def current_watermark(self) -> int:
        """The event time up to which the input is complete."""
        ...

    def register_processing_time_timer(self, timestamp: int, /) -> None:
        """Call the operator at that wall-clock time."""
        ...

    def register_event_time_timer(self, timestamp: int, /) -> None:
        """Call the operator when the watermark reaches that time."""
        ...

    def delete_event_time_timer(self, timestamp: int, /) -> None:
        """Take such a timer back."""
        ...


class Keys(Protocol):
    """The keys of a subtask. State and timers are always those of the current one."""

    def text(self) -> str:
        """Canonical text of the current key."""
        ...

    def current_key(self) -> Any:
        """The current key, for :meth:`switch`."""
        ...

    def switch(self, key: Any, /) -> None:
        """Make a key current."""
        ...

    def waiting(self) -> Sequence[tuple[str, Any]]:
        """Text and key of all keys that have inputs in state. Any key may be current afterwards."""
        ...

    def unpruned(self) -> Sequence[Any]:
        """All keys that have a mark in the state ``unpruned``, for :meth:`switch`."""
        ...

    def delaying(self, most: int | None = None) -> Sequence[Any]:
        """Keys that have delayed events, for :meth:`switch`: all of them, or at most so many."""
        ...


class KeyedState:
    """The five states of an operator, each bound to whatever key is current."""

    __slots__ = ("delayed", "head", "memory", "pending", "unpruned")

    def __init__(
        self,
        head: ValueSlot,
        pending: MapSlot[int],
        memory: MapSlot[str],
        unpruned: ValueSlot,
        delayed: MapSlot[int],
    ) -> None:
        self.head = head
        self.unpruned = unpruned
        self.pending = PendingInputs(pending)
        self.memory = memory
        self.delayed = DelayedEvents(delayed)


class Head:
    """The bookkeeping of one key.

    Attributes:
        journal_id: Identity of the job that this key's runs belong to.
        next_seq: Sequence number of the next run.
        first_pending: Number of the oldest input that waits in ``pending``.
        next_pending: Number that the next waiting input gets.
        extra: What few keys have, and what later versions add, which is kept as it is:
            ``ahead``     number of inputs that were committed before older ones
            ``done``      their numbers, as an earlier version wrote them
            ``overtaken`` recorded runs whose inputs did not come in time: pairs of sequence number
                          and wall-clock time, in seconds
            ``store``     id of the store in which runs of the key were recorded
            ``marker``    where in the store runs that are not committed can have records
            ``fork``      other jobs of which the key was taken over with inputs that still wait, latest
                          first: identity, marker, and number of the first input that is not theirs
            ``begin``     first sequence number of the key's incarnation; see ``runtime.operator.forgetting``
            ``fresh``     whether no run of that incarnation is committed
            ``idle``      part of the time in which the key's last input was committed, by its number
            ``unrecorded`` whether a run of the key was committed of which nothing is recorded
            ``suspended`` the suspended run: number of its input, its sequence number, and when it is to go
                          on, in milliseconds; None where only a signal lets it
            ``mail``      when the first of the key's signals expires, in milliseconds
            ``aside``     runs that are set aside, as lists of the fields of ``state.aside.Aside``
            ``delayed``   when the first of the key's delayed events is due, in milliseconds
    """

    __slots__ = ("extra", "first_pending", "journal_id", "next_pending", "next_seq")

    def __init__(
        self,
        journal_id: str,
        next_seq: int = 0,
        first_pending: int = 0,
        next_pending: int = 0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.journal_id = journal_id
        self.next_seq = next_seq
        self.first_pending = first_pending
        self.next_pending = next_pending
        self.extra = extra

    @property
    def ahead(self) -> int:
        """How many inputs were committed before older ones: ``pending`` lacks their numbers."""
        return self.extra.get("ahead", 0) if self.extra is not None else 0

    def finish(self, number: int, is_gone: Callable[[int], bool]) -> None:
        """Note that input ``number`` was committed.

        Args:
            number: Its number.
            is_gone: Whether ``pending`` lacks a number.
        """
        if number != self.first_pending:
            self._set("ahead", self.ahead + 1)
            return
        self.first_pending += 1
        ahead = self.ahead
        if ahead:
            while ahead and is_gone(self.first_pending):
                self.first_pending += 1
                ahead -= 1
            self._set("ahead", ahead)

    @property
    def overtaken(self) -> dict[int, int]:
        """Recorded runs whose inputs did not come in time, and when that was, in seconds, oldest first."""
        return dict(self.extra.get("overtaken", ())) if self.extra is not None else {}

    @overtaken.setter
    def overtaken(self, overtaken: dict[int, int]) -> None:
        self._set("overtaken", [list(each) for each in overtaken.items()])

    @classmethod
    def fresh_one(cls, journal_id: str, begin: int) -> Head:
        """The head of a new incarnation, unless a dead attempt has begun one before."""
        return cls(journal_id, begin, extra={"begin": begin, "fresh": True})

    @property
    def begin(self) -> int:
        """The first sequence number of the key's incarnation."""
        return self.extra.get("begin", 0) if self.extra is not None else 0

    @property
    def fresh(self) -> bool:
        """Whether no run of the key's incarnation is committed, so that it may still begin elsewhere."""
        return self.extra is not None and self.extra.get("fresh", False)

    def start(self, begin: int) -> None:
        """Let the incarnation begin with ``begin``, once and for all."""
        self.next_seq = begin
        self._set("begin", begin)
        self._set("fresh", False)

    @property
    def idle_since(self) -> int | None:
        """The part of the time in which all inputs of the key were committed, as far as that is noted."""
        return self.extra.get("idle") if self.extra is not None else None

    @idle_since.setter
    def idle_since(self, slot: int) -> None:
        self.extra = {**(self.extra or {}), "idle": slot}

    def _set(self, name: str, value: Any) -> None:
        """Keep a value in ``extra``; one that is empty is not kept."""
        extra = {**(self.extra or {}), name: value}
        if not value:
            del extra[name]
        self.extra = extra or None

    @property
    def unrecorded(self) -> bool:
        """Whether a run of the key was committed of which nothing is recorded.

        Inputs of such runs cannot be told apart. After a restart that brings them in another order, a
        recorded run may come behind another one of them than before, and find in memory what that wrote.
        """
        return self.extra is not None and "unrecorded" in self.extra

    @unrecorded.setter
    def unrecorded(self, unrecorded: bool) -> None:
        if self.unrecorded != unrecorded:
            self._set("unrecorded", unrecorded)

    @property
    def suspended(self) -> tuple[int, int, int | None] | None:
        """Of the suspended run: number of its input, its own number, and when it is to go on; or None."""
        found = self.extra.get("suspended") if self.extra is not None else None
        return None if found is None else (found[0], found[1], found[2])

    @suspended.setter
    def suspended(self, suspended: tuple[int, int, int | None] | None) -> None:
        self._set("suspended", suspended)

    @property
    def aside(self) -> list[Aside]:
        """The runs that are set aside, in the order in which they were first."""
        return [Aside(*one) for one in self.extra.get("aside", ())] if self.extra is not None else []

    @aside.setter
    def aside(self, aside: Iterable[Aside]) -> None:
        self._set("aside", [list(one) for one in aside])

    @property
    def mail_expires(self) -> int | None:
        """When the first of the key's signals expires, in milliseconds; None where it has none."""
        return self.extra.get("mail") if self.extra is not None else None

    @mail_expires.setter
    def mail_expires(self, at: int | None) -> None:
        if self.mail_expires != at:
            self._set("mail", at)

    @property
    def delayed_due(self) -> int | None:
        """When the first of the key's delayed events is due, in milliseconds; None where it has none."""
        return self.extra.get("delayed") if self.extra is not None else None

    @delayed_due.setter
    def delayed_due(self, at: int | None) -> None:
        if self.delayed_due != at:
            self._set("delayed", at)

    @property
    def store(self) -> str | None:
        """Id of the store in which runs of the key were recorded, or None."""
        return self.extra.get("store") if self.extra is not None else None

    @store.setter
    def store(self, store_id: str) -> None:
        if self.store != store_id:
            self.extra = {**(self.extra or {}), "store": store_id}

    @property
    def marker(self) -> bytes | None:
        """Where in the store runs that are not committed can have records; None: anywhere."""
        return self.extra.get("marker") if self.extra is not None else None

    @marker.setter
    def marker(self, marker: bytes) -> None:
        self.extra = {**(self.extra or {}), "marker": marker}

    @property
    def origins(self) -> list[tuple[str, bytes | None, int]]:
        """Other jobs that may have recorded something for inputs that wait: see ``fork`` above."""
        forked = self.extra.get("fork", []) if self.extra is not None else []
        return [(journal_id, marker, before) for journal_id, marker, before in forked]

    def fork(self, journal_id: str) -> None:
        """Let the key's runs belong to another job from now on, which has recorded nothing of it yet."""
        origins = [[*origin] for origin in self.origins]
        origins.insert(0, [self.journal_id, self.marker, self.next_pending])
        for name in ("marker", "overtaken"):
            self._set(name, None)
        self._set("fork", origins if self.has_pending else None)
        self.journal_id = journal_id

    def forked(self) -> None:
        """Note that nothing of another job is taken over any more."""
        if self.extra is not None and "fork" in self.extra:
            self._set("fork", None)

    def move(self, store_id: str) -> None:
        """Continue with a copy of the store in which runs of the key were recorded."""
        self._set("marker", None)
        self._set("fork", [[journal_id, None, before] for journal_id, _, before in self.origins])
        self.store = store_id

    def leave(self) -> None:
        """Forget the store in which runs of the key were recorded."""
        for name in ("store", "marker", "fork"):
            self._set(name, None)

    @property
    def has_pending(self) -> bool:
        """Whether inputs of the key wait."""
        return self.first_pending != self.next_pending

    @property
    def is_unused(self) -> bool:
        """Whether it says no more than that of a key which never came."""
        if self.fresh and self.extra is not None:
            return not self.has_pending and self.extra.keys() <= {"begin", "fresh"}
        return not (self.next_seq or self.has_pending or self.extra)

    @property
    def waiting(self) -> int:
        """How many inputs of the key wait."""
        return self.next_pending - self.first_pending - self.ahead

    @property
    def settled_through(self) -> int:
        """The last sequence number of which, and of all before it, only a restore asks for records."""
        overtaken = self.extra.get("overtaken") if self.extra is not None else None
        return (min(seq for seq, _ in overtaken) if overtaken else self.next_seq) - 1

    def pack(self) -> bytes:
        """The bytes of this head."""
        return _HEAD_VERSION + _packers.pack(
            (self.journal_id, self.next_seq, self.first_pending, self.next_pending, self.extra)
        )

    @classmethod
    def unpack(cls, data: bytes) -> Head:
        """The head of which ``data`` are the bytes.

        Raises:
            StateFormatError: They are corrupt, or of an unknown version.
        """
        if data[:1] != _HEAD_VERSION:
            raise StateFormatError(
                "the head of a key is of a format that this version cannot read",
                expected=f"version {_HEAD_VERSION[0]}",
                found=f"version {data[0]}" if data else "no bytes",
                fix="run the version of flink-agents-python that wrote it, or a newer one",
            )
        try:
            head = cls(*msgpack.unpackb(data[1:]))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StateFormatError("the head of a key cannot be read", found=str(error)) from error
        if head.extra is not None and "done" in head.extra:
            head._set("ahead", len(head.extra["done"]))
            head._set("done", None)
        return head
