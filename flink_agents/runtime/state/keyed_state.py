"""The keyed state of an agent in Flink, and the bytes of a key's head.

Six keyed states, whose names and formats are part of every savepoint:

``head``     bytes of the :class:`Head` of a key at rest, with its memory if that is small
``busy``     bytes of the head of a key with waiting inputs, suspended runs or signals, with its first inputs.
             It replaces the one in ``head``, which is stale then. An operator that opens wakes all keys in it
``pending``  number of arrival -> an entry with its kind, packed by ``state.pending``: an input that the head
             has no room for, or a wake-up; below 0 suspended runs and signals
``memory``   escaped path -> short-term memory that is large or expires (``codec`` bytes; one zero byte for an
             object)
``unpruned`` a mark of keys whose records must be pruned; ``operator.services.cleanup`` writes and removes it
``delayed``  events that are delivered later, stored by ``state.delayed``. They do not make a key busy

The states ``journals`` and ``journal-positions`` belong to no key: see ``journal.other_jobs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol

from flink_agents.runtime.serde.codec import Packers
from flink_agents.runtime.serde.keys import escape, unescape
from flink_agents.runtime.state.delayed import DelayedEvents
from flink_agents.runtime.state.pending import PendingInputs
from flink_agents.runtime.state.slots import MapSlot, OperatorSlot, ValueSlot, unpack
from flink_agents.runtime.state.suspended import ListedRun

HEAD_STATE = "head"
BUSY_STATE = "busy"
PENDING_STATE = "pending"
MEMORY_STATE = "memory"
UNPRUNED_STATE = "unpruned"
DELAYED_STATE = "delayed"
JOURNALS_STATE = "journals"
POSITIONS_STATE = "journal-positions"

POSITION = "position"
"""The name, in the state ``journals``, of the position of the store of durable calls."""

OBJECT = b"\x00"
"""The bytes of a node of memory that has other nodes below it and no value."""

MOST_BYTES = 2048
"""The most bytes of memory in a head, and the most bytes of waiting inputs."""

LEAST_BYTES = 1024
"""Memory returns from the map to the head when it has at most this number of bytes."""

MOST_INPUTS = 4
"""An input that comes after this number of waiting ones is not in the head."""

_HEAD_VERSION = b"\x02"

_packers = Packers(unicode_errors="surrogatepass")

state_key = lru_cache(maxsize=8192)(escape)
"""Returns the key of a node in the state ``memory`` for the path of the node."""


class Timers(Protocol):
    """Timers of the current key, in milliseconds since the epoch."""

    def current_watermark(self) -> int:
        """Return the watermark of the input: the event time up to which it is complete, in milliseconds."""
        ...

    def register_processing_time_timer(self, timestamp: int, /) -> None:
        """Call the operator at that wall-clock time."""
        ...

    def register_event_time_timer(self, timestamp: int, /) -> None:
        """Call the operator when the watermark reaches that time."""
        ...


class Keys(Protocol):
    """The keys of a subtask. State and timers always belong to the current key."""

    def text(self) -> str:
        """Return the current key as canonical text, see ``serde.keys``."""
        ...

    def current_key(self) -> Any:
        """Return the current key in Flink's form, which only :meth:`switch` uses."""
        ...

    def switch(self, key: Any, /) -> None:
        """Make ``key`` Flink's current key, to which state and timers belong."""
        ...

    def waiting(self) -> Sequence[tuple[str, Any]]:
        """Return text and Flink's form of all keys with a value in ``busy``. May switch keys."""
        ...

    def unpruned(self) -> Sequence[Any]:
        """Return all keys with a mark in the state ``unpruned``, in Flink's form."""
        ...

    def delaying(self, most: int | None = None) -> Sequence[Any]:
        """Return the keys with delayed events, in Flink's form: all of them, or at most ``most``."""
        ...


class KeyedState:
    """The states of an operator. Each access is to the entry of the current key, except for ``journals``.

    Args:
        rested: The head of a key at rest, see :class:`Head`.
        busy: The head of a key with waiting inputs, suspended runs or signals.
        pending: Waiting inputs, suspended runs and signals, see ``state.pending``.
        memory: Short-term memory that is not in the head: encoded nodes by escaped path.
        unpruned: The mark of keys whose records must be pruned.
        delayed: Delayed events, see ``state.delayed``.
        expires: True if memory expires. Then it is never in the head.
        journals: The identity of the journals, which belongs to no key; None if the host has no such state.
    """

    __slots__ = ("_busy", "_expires", "_rested", "delayed", "journals", "memory", "pending", "unpruned")

    def __init__(
        self,
        rested: ValueSlot,
        busy: ValueSlot,
        pending: MapSlot[int],
        memory: MapSlot[str],
        unpruned: ValueSlot,
        delayed: MapSlot[int],
        expires: bool = False,
        journals: OperatorSlot | None = None,
    ) -> None:
        self._rested = rested
        self._busy = busy
        self._expires = expires
        self.journals = journals
        self.unpruned = unpruned
        self.pending = PendingInputs(pending)
        self.memory = memory
        self.delayed = DelayedEvents(delayed)

    # -- heads ------------------------------------------------------------------------

    def read(self) -> Head | None:
        """Return the head of the current key; None if it has none.

        Raises:
            StateFormatError: Its bytes are corrupt, or of an unknown version.
        """
        packed = self._busy.value()
        is_busy = packed is not None
        if packed is None and (packed := self._rested.value()) is None:
            return None
        head = Head.unpack(packed)
        head.is_busy = is_busy
        if self._expires and head.nodes is not None:
            # An earlier submission of the job had no option for that.
            self._move_memory(head)
        return head

    def write(self, head: Head) -> None:
        """Write the head of the current key, with the inputs and the memory in it."""
        packed = head.pack()
        if len(packed) > MOST_BYTES and head.nodes and size_of(head.nodes) > MOST_BYTES:
            self._move_memory(head)
            packed = head.pack()
        if head.first_pending != head.next_pending or head.suspended or head.signals_expire is not None:
            head.is_busy = True
            self._busy.update(packed)
            return
        self._rested.update(packed)
        if head.is_busy:
            head.is_busy = False
            self._busy.clear()

    def remove(self, head: Head) -> None:
        """Remove the head of the current key."""
        self._rested.clear()
        if head.is_busy:
            head.is_busy = False
            self._busy.clear()

    # -- waiting inputs ---------------------------------------------------------------

    def put_input(self, head: Head, packed: bytes) -> int:
        """Add the bytes of an input to those that wait, and return its number. The caller writes the head."""
        number = head.next_pending
        inputs = head.inputs
        if head.waiting < MOST_INPUTS and sum(map(len, inputs.values())) + len(packed) <= MOST_BYTES:
            inputs[number] = packed
        else:
            self.pending.put_input(number, packed)
        head.next_pending = number + 1
        return number

    def input(self, head: Head, number: int) -> bytes | None:
        """Return the bytes of the input or wake-up with a number; None if it does not wait."""
        return head.inputs.get(number) or self.pending.get(number)

    def finish_input(self, head: Head, number: int) -> None:
        """Remove an input or wake-up that was committed, and advance the head. The caller writes the head.

        The head looks for later inputs that were committed before.
        """
        if head.inputs.pop(number, None) is None:
            self.pending.remove(number)
        head.finish(number, lambda later: self.input(head, later) is None)

    def inputs_and_wake_ups(self, head: Head) -> tuple[list[tuple[int, bytes]], list[int]]:
        """Return number and bytes of all waiting inputs, and the numbers of the wake-ups."""
        inputs, wake_ups = self.pending.inputs_and_wake_ups()
        return [*head.inputs.items(), *inputs], wake_ups

    # -- memory -----------------------------------------------------------------------

    def read_memory(self, head: Head) -> dict[str, bytes]:
        """Return a copy of all nodes of short-term memory, by path."""
        if head.nodes is not None:
            return head.nodes.copy()
        return {unescape(key): data for key, data in self.memory.items()}

    def write_memory(self, head: Head, changes: Mapping[str, bytes | None]) -> None:
        """Write encoded nodes by path; None removes one. The caller writes the head."""
        nodes = head.nodes
        if nodes is None:
            write_nodes(self.memory, changes)
            return
        for path, data in changes.items():
            if data is None:
                nodes.pop(path, None)
            else:
                nodes[path] = data

    def clear_memory(self, head: Head) -> None:
        """Remove all nodes. The caller writes the head."""
        if head.nodes is None:
            self.memory.clear()
        if not self._expires:
            head.nodes = {}

    def _move_memory(self, head: Head) -> None:
        """Move the nodes of memory from a head to the map."""
        nodes = head.nodes
        head.nodes = None
        self.write_memory(head, nodes or {})

    def return_memory(self, head: Head, nodes: Mapping[str, bytes | None]) -> None:
        """Move all nodes of memory from the map to the head, and write it, if they have become small.

        Args:
            head: The head of a key without uncommitted runs.
            nodes: All nodes of its memory, by path; None for one that does not exist.
        """
        if head.nodes is None and not self._expires and 2 * len(nodes) <= LEAST_BYTES:
            present = {path: data for path, data in nodes.items() if data is not None}
            if size_of(present) <= LEAST_BYTES:
                self.memory.clear()
                head.nodes = present
                self.write(head)


def write_nodes(slot: MapSlot[str], nodes: Mapping[str, bytes | None]) -> None:
    """Write encoded nodes to the map in state, by path; None removes one."""
    for path, data in nodes.items():
        if data is None:
            slot.remove(state_key(path))
        else:
            slot.put(state_key(path), data)


def size_of(nodes: Mapping[str, bytes]) -> int:
    """Return the number of characters and bytes of nodes of memory and their paths."""
    return sum(map(len, nodes)) + sum(map(len, nodes.values()))


@dataclass(slots=True)
class Head:
    """The bookkeeping of one key.

    It is decoded once when Flink hands over the key, and written once at the end.

    The bytes contain the rare fields only if they differ from their default.

    Attributes:
        journal_id: Identity of the job that this key's runs belong to.
        next_seq: Sequence number of the next run.
        first_pending: Number of the oldest input that waits in ``pending``.
        next_pending: Number of the next input that has to wait.
        nodes: Encoded nodes of short-term memory by path; None if the state ``memory`` has them.
        inputs: Waiting inputs by number, encoded; those that are missing are in ``pending``.
        is_busy: True if the state ``busy`` has the head. It is not part of the bytes.
        ahead: The number of inputs that were committed before older ones. State lacks them.
        skipped: Recorded runs that were skipped because their inputs did not come in time, and the time of
            that in seconds, oldest first. Replace the dictionary, never change it: an actor has the same one.
        store: Id of the store in which runs of the key were recorded, or None.
        marker: The position in the store before the records of runs that are not committed; None: anywhere.
        origins: Other jobs from which the key was taken over with inputs that still wait, latest first:
            identity, marker, and number of the first input that is not theirs.
        begin: First sequence number of the key's generation; see ``runtime.operator.services.cleanup``.
        fresh: True if no run of that generation is committed, so that it may still start elsewhere.
        idle_since: Time slot in which the key's last input was committed, by its number; or None.
        unrecorded: True if a run of the key was committed of which nothing is recorded. Inputs of such runs
            cannot be distinguished. After a restart with another order of inputs, a recorded run may come
            after another one of them than before, and find its writes in memory.
        suspended: The suspended runs, in the order of their first suspension. At most one of them blocks the
            key. Replace it, never change it.
        signals_expire: The time at which the first of the key's signals expires, in milliseconds; or None.
        delayed_due: The time of the first of the key's delayed events, in milliseconds; or None.
        ends: Runs that a user wants to end, by their sequence numbers: id of the request, reason, name of the
            user, and id of the run. Replace it, never change it.
    """

    journal_id: str
    next_seq: int = 0
    first_pending: int = 0
    next_pending: int = 0
    nodes: dict[str, bytes] | None = field(default_factory=dict[str, bytes])
    inputs: dict[int, bytes] = field(default_factory=dict[int, bytes])
    is_busy: bool = False
    ahead: int = 0
    skipped: dict[int, int] = field(default_factory=dict[int, int])
    store: str | None = None
    marker: bytes | None = None
    origins: Sequence[tuple[str, bytes | None, int]] = ()
    begin: int = 0
    fresh: bool = False
    idle_since: int | None = None
    unrecorded: bool = False
    suspended: Sequence[ListedRun] = ()
    signals_expire: int | None = None
    delayed_due: int | None = None
    ends: Mapping[int, Sequence[Any]] = field(default_factory=dict[int, Sequence[Any]])

    def finish(self, number: int, is_gone: Callable[[int], bool]) -> None:
        """Note that an input was committed, and move ``first_pending`` past all committed inputs.

        Args:
            number: The number of the input, which state has no longer.
            is_gone: Returns True if state has no input with a number.
        """
        if number != self.first_pending:
            self.ahead += 1
            return
        self.first_pending += 1
        while self.ahead and is_gone(self.first_pending):
            self.first_pending += 1
            self.ahead -= 1

    @property
    def blocking(self) -> ListedRun | None:
        """The suspended run that blocks the key, so that no other one starts; None if there is none."""
        for run in self.suspended:
            if run.blocks:
                return run
        return None

    @classmethod
    def fresh_one(cls, journal_id: str, begin: int) -> Head:
        """Return the head of a key that may start a new generation, with the first number ``begin``."""
        return cls(journal_id, begin, begin=begin, fresh=True)

    def start(self, begin: int) -> None:
        """Fix the first number of the key's generation: the head is not fresh any longer."""
        self.next_seq = self.begin = begin
        self.fresh = False

    def fork(self, journal_id: str) -> None:
        """Let another job take over the key with its own journals, which have no records of the key."""
        origin = self.journal_id, self.marker, self.next_pending
        self.origins = (origin, *self.origins) if self.has_pending else ()
        self.marker = None
        self.skipped = {}
        self.journal_id = journal_id

    def move(self, store_id: str) -> None:
        """Name a copy of the store as the one with the key's records; drop positions in the original."""
        self.origins = [(journal_id, None, input_number) for journal_id, _, input_number in self.origins]
        self.store = store_id
        self.marker = None

    def leave_store(self) -> None:
        """Forget the store in which runs of the key were recorded: the job has another one."""
        self.store = None
        self.marker = None
        self.origins = ()

    @property
    def has_pending(self) -> bool:
        """True if inputs or wake-ups of the key wait in state."""
        return self.first_pending != self.next_pending

    @property
    def is_unused(self) -> bool:
        """True if the head equals that of a key that never had an input."""
        extra = self.extra or {}
        if self.has_pending or self.store is not None or self.marker is not None or self.unrecorded:
            return False
        return extra.keys() <= {"begin", "fresh"} if self.fresh else not (self.next_seq or extra)

    @property
    def waiting(self) -> int:
        """The number of inputs and wake-ups of the key that wait in state."""
        return self.next_pending - self.first_pending - self.ahead

    @property
    def committed_through(self) -> int:
        """The last sequence number up to which all runs are over: only a restore needs their records."""
        return (min(self.skipped) if self.skipped else self.next_seq) - 1

    @property
    def extra(self) -> dict[str, Any] | None:
        """The fields of ``_RARE`` that differ from their default, by names in the bytes; or None."""
        extra: dict[str, Any] = {}
        for name, value, default in zip(_RARE, _very_rare_of(self), _NOTHING_VERY_RARE, strict=True):
            # A time can be 0, where None says that there is none.
            if value is not default and value != default and value not in _EMPTY:
                extra[name] = list(value.items()) if type(value) is dict else value
        return extra or None

    def pack(self) -> bytes:
        """Return the bytes of this head."""
        fields = (self.journal_id, self.next_seq, self.first_pending, self.next_pending, self.nodes)
        if _rare_of(self) != _NOTHING_RARE:
            # Not in a loop: each input with a durable call comes here twice.
            extra = None if _very_rare_of(self) == _NOTHING_VERY_RARE else self.extra
            fields += (self.inputs, self.store, self.marker, self.unrecorded, extra)
        return _HEAD_VERSION + _packers.pack(fields)

    @classmethod
    def unpack(cls, data: bytes) -> Head:
        """Return the head that :meth:`pack` has packed.

        Raises:
            StateFormatError: The bytes are corrupt, or of an unknown version.
        """
        return unpack("the head of a key", data, cls._from_fields, _HEAD_VERSION)

    @classmethod
    def _from_fields(cls, fields: Any) -> Head:
        head = cls(*fields[:5])
        if len(fields) != 5:
            head.inputs, head.store, head.marker, head.unrecorded, extra = fields[5:]
            for name, value in (extra or {}).items():
                setattr(head, _RARE[name], _FROM_BYTES[name](value) if name in _FROM_BYTES else value)
        return head


_RARE = {
    "ahead": "ahead",
    "overtaken": "skipped",
    "fork": "origins",
    "begin": "begin",
    "fresh": "fresh",
    "idle": "idle_since",
    "suspended": "suspended",
    "mail": "signals_expire",
    "delayed": "delayed_due",
    "ends": "ends",
}
"""The rare fields of a head by their names in the bytes, in the order in which they are written."""

_FROM_BYTES: dict[str, Callable[[Any], Any]] = {
    "overtaken": dict,
    "fork": lambda origins: tuple(map(tuple, origins)),
    "suspended": lambda runs: tuple(map(ListedRun._make, runs)),
    "ends": dict,
}
"""Functions that restore the types of rare fields which MessagePack does not have, by names in the bytes."""

_EMPTY: tuple[object, ...] = ((), [], {})
"""Values that count as equal to a default of another type."""

# Each input packs a head, so that all of its fields are compared at once.
_very_rare_of = attrgetter(*_RARE.values())
_NOTHING_VERY_RARE = _very_rare_of(Head(""))
_rare_of = attrgetter("inputs", "store", "marker", "unrecorded", *_RARE.values())
_NOTHING_RARE = _rare_of(Head(""))
