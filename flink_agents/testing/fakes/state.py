"""Flink's keyed state, timers and clock in memory, as far as the operator's core uses them."""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flink_agents.api.common.metrics import Gauge
from flink_agents.runtime.metrics.run_metrics import LocalMetricGroup
from flink_agents.runtime.operator.low_watermark import NO_TIMESTAMP, LowWatermark
from flink_agents.runtime.state.keyed_state import POSITION, KeyedState

K = TypeVar("K")


@dataclass
class KeyState:
    """The state of one key; every value is bytes.

    Attributes:
        rested: The packed head of a key at rest; None for a key without state.
        busy: The packed head that replaces it while the key has waiting work; None otherwise.
        pending: Packed waiting inputs that the head has no room for, suspended runs and signals by number.
        memory: Encoded short-term memory that is not in the head by escaped path, each value with the time
            at which it expires, or None.
        processing_timers: Times of the key's processing-time timers, in milliseconds.
        event_timers: Times of the key's event-time timers, in milliseconds.
        unpruned: A marker that records of the key have to be pruned; None otherwise.
        delayed: Packed delayed events by number.
    """

    rested: bytes | None = None
    busy: bytes | None = None
    pending: dict[int, bytes] = field(default_factory=dict)
    memory: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
    processing_timers: set[int] = field(default_factory=set)
    event_timers: set[int] = field(default_factory=set)
    unpruned: bytes | None = None
    delayed: dict[int, bytes] = field(default_factory=dict)

    @property
    def head(self) -> bytes | None:
        """The packed head; None for a key without state."""
        return self.rested if self.busy is None else self.busy

    def copy(self) -> KeyState:
        """Return a copy that shares nothing with this one."""
        return copy.deepcopy(self)


LEAST_TIMERS = 1000
"""A queue of timers is not checked for those that have fired before it is longer."""


class TimerQueue:
    """Timers of one kind, ordered by time. Those that were deleted or have fired are skipped.

    Args:
        timers: Returns the present timers of a key.
    """

    def __init__(self, timers: Callable[[str], set[int]]) -> None:
        self._timers = timers
        self._queue: list[tuple[int, str]] = []
        self._most = LEAST_TIMERS

    def add_timer(self, at: int, key: str) -> None:
        """Add a timer of a key at time ``at``, in milliseconds."""
        heapq.heappush(self._queue, (at, key))
        if len(self._queue) > self._most:
            # Most timers fire before their time, and time may stand still for a whole test.
            self._queue = sorted({(at, key) for at, key in self._queue if at in self._timers(key)})
            self._most = max(LEAST_TIMERS, 2 * len(self._queue))

    def first_timer(self) -> tuple[int, str] | None:
        """Return time and key of the first timer; at equal times, the first key. None without timers."""
        while self._queue:
            at, key = self._queue[0]
            if at in self._timers(key):
                return at, key
            heapq.heappop(self._queue)
        return None


class FakeBackend:
    """State and timers of one subtask. Set ``key`` before you call the core, as Flink does.

    Args:
        clock: Returns milliseconds since the epoch.
        memory_ttl: Lifetime of memory entries in milliseconds; None for ever.

    Attributes:
        journals: The operator state that names the store.
        downstream: What downstream operators see of the subtask; None unless event time is held.
        touched: Keys whose state was accessed since this set was cleared.
        timers: The queues of timers, by the field of :class:`KeyState`.
    """

    def __init__(self, clock: Callable[[], int], memory_ttl: int | None) -> None:
        self.keys: dict[str, KeyState] = {}
        self.journals = OperatorState()
        self.key: str | None = None
        self.clock = clock
        self.memory_ttl = memory_ttl
        self.watermark = -(2**63)
        self.downstream: DownstreamView | None = None
        self.touched: set[str] = set()
        self._numbers: dict[str, int] = {}
        self.timers = {
            "processing_timers": TimerQueue(lambda key: self.keys[key].processing_timers),
            "event_timers": TimerQueue(lambda key: self.keys[key].event_timers),
        }

    @property
    def current(self) -> KeyState:
        """The state of the current key, which counts as touched."""
        assert self.key is not None, "state is used outside of a key"
        self.touched.add(self.key)
        state = self.keys.get(self.key)
        if state is None:
            state = KeyState()
            self.restore_key(self.key, state)
        return state

    def restore_key(self, key: str, state: KeyState) -> None:
        """Set the whole state of a key, and queue its timers."""
        self.keys[key] = state
        self.touched.add(key)
        self._numbers.setdefault(key, len(self._numbers))
        for kind, queue in self.timers.items():
            for at in getattr(state, kind):
                queue.add_timer(at, key)

    def key_number(self, key: str) -> int:
        """Return the rank of a key in the order in which the subtask first saw its keys."""
        return self._numbers[key]

    def keyed_state(self, names_store: bool = True) -> KeyedState:
        """Return the states in the form that the core takes.

        Args:
            names_store: True if the state of the operator names its store.
        """
        rested = _Value(self, "rested")
        busy = _Value(self, "busy")
        unpruned = _Value(self, "unpruned")
        pending = _Entries(self, "pending")
        delayed = _Entries(self, "delayed")
        journals = self.journals if names_store else None
        expires = self.memory_ttl is not None
        return KeyedState(rested, busy, pending, _Memory(self), unpruned, delayed, expires, journals)

    def report_watermark(self, low: LowWatermark) -> None:
        """Show downstream operators the output watermark ``low`` of the subtask, from now on."""
        self.downstream = DownstreamView(low)

    # -- Keys -------------------------------------------------------------------------

    def text(self) -> str:
        """Return the canonical text of the current key."""
        assert self.key is not None, "no key is current"
        return self.key

    current_key = text

    def switch(self, key: str) -> None:
        """Make a key current, as Flink does before it passes an input or timer of the key."""
        self.key = key

    def waiting(self) -> list[tuple[str, str]]:
        """Return the keys with waiting work, each as text and as Flink has it: here the text again."""
        return [(key, key) for key, state in self.keys.items() if state.busy is not None]

    def delaying(self, most: int | None = None) -> list[str]:
        """Return the keys with delayed events, at most ``most``."""
        return [key for key, state in self.keys.items() if state.delayed][:most]

    def unpruned(self) -> list[str]:
        """Return the keys with records to prune."""
        return [key for key, state in self.keys.items() if state.unpruned is not None]

    # -- Timers -----------------------------------------------------------------------

    def current_watermark(self) -> int:
        """Return the watermark of the input, in milliseconds."""
        return self.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer of the current key at a wall-clock time, in milliseconds."""
        self._add_timer("processing_timers", timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer of the current key at a watermark, in milliseconds."""
        self._add_timer("event_timers", timestamp)

    def _add_timer(self, kind: str, timestamp: int) -> None:
        timers: set[int] = getattr(self.current, kind)
        if timestamp not in timers:
            timers.add(timestamp)
            self.timers[kind].add_timer(timestamp, self.text())


class OperatorState:
    """The state of an operator that names its store, as Flink restores it for a subtask.

    Args:
        copies: Entries that each subtask has a copy of; None for none.
        positions: Positions of the subtasks whose work this one continues.
    """

    def __init__(self, copies: Mapping[str, bytes] | None = None, positions: Sequence[bytes] = ()) -> None:
        self._copies = dict(copies or {})
        self._positions = tuple(positions)

    def put(self, name: str, value: bytes) -> None:
        """Set the bytes under a name."""
        self._copies[name] = _as_bytes(value)
        if name == POSITION:
            self._positions = (value,)

    def items(self) -> list[tuple[str, bytes]]:
        """Return all entries, with the positions of all subtasks that this one continues."""
        return [*self._copies.items(), *((POSITION, position) for position in self._positions)]

    def copy(self) -> OperatorState:
        """Return a copy that shares nothing with this one."""
        return OperatorState(self._copies, self._positions)

    @classmethod
    def of_subtask(cls, number: int, parallelism: int, states: Sequence[OperatorState]) -> OperatorState:
        """Return the restored state of a subtask: a copy, and a part of the positions.

        Args:
            number: Number of the subtask.
            parallelism: Number of subtasks.
            states: The states of all subtasks in the checkpoint.
        """
        if not states:
            return cls()
        positions = [position for state in states for position in state._positions]
        return cls(states[number % len(states)]._copies, positions[number::parallelism])


class _Value:
    def __init__(self, backend: FakeBackend, name: str) -> None:
        self._backend = backend
        self._name = name

    def value(self) -> bytes | None:
        return getattr(self._backend.current, self._name)

    def update(self, value: bytes) -> None:
        setattr(self._backend.current, self._name, _as_bytes(value))

    def clear(self) -> None:
        state = self._backend.current
        assert self._name != "busy" or not state.pending, "a key at rest has waiting work in state"
        setattr(state, self._name, None)


class _Map(Generic[K]):
    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend


class _Entries(_Map[int]):
    def __init__(self, backend: FakeBackend, name: str) -> None:
        super().__init__(backend)
        self._name = name

    @property
    def _of_key(self) -> dict[int, bytes]:
        return getattr(self._backend.current, self._name)

    def get(self, key: int) -> bytes | None:
        return self._of_key.get(key)

    def put(self, key: int, value: bytes) -> None:
        self._of_key[key] = _as_bytes(value)

    def remove(self, key: int) -> None:
        self._of_key.pop(key, None)

    def clear(self) -> None:
        self._of_key.clear()

    def items(self) -> Iterable[tuple[int, bytes]]:
        return list(self._of_key.items())


class _Memory(_Map[str]):
    def get(self, key: str) -> bytes | None:
        value, expires = self._backend.current.memory.get(key, (None, None))
        return value if expires is None or self._backend.clock() < expires else None

    def put(self, key: str, value: bytes) -> None:
        ttl = self._backend.memory_ttl
        expires = None if ttl is None else self._backend.clock() + ttl
        self._backend.current.memory[key] = (_as_bytes(value), expires)

    def remove(self, key: str) -> None:
        self._backend.current.memory.pop(key, None)

    def clear(self) -> None:
        self._backend.current.memory.clear()

    def items(self) -> Iterable[tuple[str, bytes]]:
        live = ((key, self.get(key)) for key in list(self._backend.current.memory))
        return [(key, value) for key, value in live if value is not None]


def _as_bytes(value: Any) -> bytes:
    assert type(value) is bytes, f"state takes bytes, not {type(value).__name__}"
    return value


class DownstreamView:
    """The view that downstream operators have of a subtask: rows, each with the watermark after it.

    Args:
        low: The output watermark of the subtask.
    """

    def __init__(self, low: LowWatermark) -> None:
        self._low = low
        self._watermarks: dict[str, int] = {}

    @property
    def is_idle(self) -> bool:
        """True before the first row: downstream operators do not wait for the subtask then."""
        return "" not in self._watermarks

    def watermark(self, tag: str = "") -> int:
        """Return the watermark of a stream, the main output by default; ``NO_TIMESTAMP`` before the first."""
        return self._watermarks.get(tag, NO_TIMESTAMP)

    def accept_row(self, tag: str = "") -> int:
        """Take a row of a stream, and return the watermark before it."""
        watermark = self.watermark(tag)
        carried = self._low.take_for_row(tag)
        self._watermarks[tag] = watermark if carried is None else max(watermark, carried)
        return watermark

    def accept_carriers(self) -> None:
        """Take the due rows that carry a watermark and no output."""
        for tag in self._low.due():
            self.accept_row(tag)


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: state and timers of all keys, and the number of outputs so far.

    Attributes:
        keys: State of each key, by its canonical text.
        outputs: Number of outputs so far.
        side_outputs: Number of values of each side output so far.
        max_parallelism: Number of key groups.
        inputs: Number of inputs kept so far for :meth:`OperatorHarness.recover`.
        number: Number of the checkpoint, with ``checkpoints=True``; else 0.
        journals: The operator state of each subtask.
    """

    keys: Mapping[str, KeyState]
    outputs: int
    side_outputs: Mapping[str, int]
    max_parallelism: int
    inputs: int = 0
    number: int = 0
    journals: tuple[OperatorState, ...] = ()


def sum_of(groups: Iterable[LocalMetricGroup]) -> dict[str, int | float]:
    """Return the values of all metrics by dotted name, added up over groups."""
    total: dict[str, int | float] = {}
    for group in groups:
        for name, value in group.values():
            total[name] = total.get(name, 0) + value
    return total


def gauges_of(group: LocalMetricGroup, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all gauges in a group and its subgroups."""
    # The agent loop adds some meanwhile.
    yield from (prefix + name for name, metric in list(group.metrics.items()) if isinstance(metric, Gauge))
    for name, inner in list(group.groups.items()):
        yield from gauges_of(inner, f"{prefix}{name}.")
