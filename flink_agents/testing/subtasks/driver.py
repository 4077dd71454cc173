"""Drives the subtasks of an operator by hand: inputs, timers, clock and outputs."""

from __future__ import annotations

import pickle
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.events.event_time import EventTime
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import AgentCode
from flink_agents.runtime.concurrency.bridge import FLINK_SLICE_SECONDS
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.low_watermark import NO_TIMESTAMP
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.serde.awaitables import AWAIT_IT
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing.fakes.pauses import Pauses
from flink_agents.testing.fakes.state import DownstreamView, FakeBackend
from flink_agents.testing.subtasks.crash_points import CrashPoints
from flink_agents.testing.subtasks.due_timers import DueTimers
from flink_agents.testing.subtasks.given import check_open, check_tag

START = 1_700_000_000_000
"""Wall-clock time at which a harness starts, in milliseconds."""


FLYING_MS = 60_000
"""Jump of the clock when a run first reads it while time flies; it doubles each further time."""

FLAP_SECONDS = 0.03
"""The clock jumps at most once in this many seconds: a run asks for the time more often than it needs it."""


class Clock:
    """The wall clock in milliseconds. Not part of the harness, so that nothing refers back to it."""

    def __init__(self) -> None:
        self.time = START
        self._step = 0
        self._flown = 0.0
        self._next_due: Callable[[int], int | None] = lambda after: None

    def __call__(self) -> int:
        """Return the time."""
        if self._step and threading.current_thread().name == "agent-loop":
            now = time.monotonic()
            if now - self._flown >= FLAP_SECONDS:
                # A sleeping run has read the clock.
                self._flown = now
                self.time += self._step
                self._step *= 2
        return self.time

    @contextmanager
    def flying(self, next_due: Callable[[int], int | None]) -> Iterator[None]:
        """Let time fly: the end of a bounded input waits for sleeping runs, and for delayed events.

        Args:
            next_due: Returns the first time after a given one at which a delayed event is due, or None.
        """
        self._step = FLYING_MS
        self._next_due = next_due
        try:
            yield
        finally:
            self._step = 0
            self._next_due = lambda after: None

    def waited(self) -> None:
        """Jump to the next delayed event: the operator's thread has waited."""
        due = self._next_due(self.time)
        if due is not None:
            self.time = due


def leaving(driver: Driver, backend: FakeBackend) -> Callable[[Emission], None]:
    """Return the function that takes the outputs of a heartbeat; it does not keep ``driver`` alive."""
    reference = weakref.ref(driver)

    def leave(emission: Emission) -> None:
        live_driver = reference()
        if live_driver is not None:
            live_driver._emit(emission, backend)

    return leave


@dataclass
class HarnessSubtask:
    """One subtask: the operator's core, its state, and what its runs share."""

    processor: AgentProcessor
    backend: FakeBackend
    shared: RunEnvironment
    due: DueTimers


def _fix_of(error: Exception) -> str:
    """Return the fix for a value that cannot be pickled: live objects never can, whatever their class."""
    if "'coroutine'" in str(error):
        return AWAIT_IT
    if isinstance(error, TypeError):
        return "emit plain data: a list instead of a generator, a name or URL instead of an open resource"
    return "use values whose classes are at the top level of a module"


def wait_for_progress(loop: AgentLoop, seen: int, seconds: float) -> None:
    """Wait until the ``progress`` of a loop is greater than ``seen``.

    Raises:
        TimeoutError: It is not in time. The text describes each run, and the inputs that wait for others.
    """
    remaining = seconds
    while not loop.wait_for_progress(seen, min(remaining, FLINK_SLICE_SECONDS)):
        # Counted: a test may freeze or move the clocks of ``time``, but not those of locks.
        remaining -= FLINK_SLICE_SECONDS
        if remaining <= 0:
            held = loop.held_back()
            runs = loop.describe_runs()
            text = f"no run ended within {seconds:g} s" + (held and f": {held}")
            raise TimeoutError("\n".join(filter(None, (text, runs))))


class Driver:
    """The subtasks of one operator, and their outputs. A base class of ``OperatorHarness``.

    Attributes:
        outputs: All values of the main output, in order.
        timestamps: The timestamp of each of them, or None; only if event time is held.
        lows: The output watermark of the subtask before each of them; only if event time is
            held. An output is late if its timestamp is not above it.
    """

    outputs: list[Any]
    timestamps: list[int | None]
    lows: list[int]
    _subtasks: list[HarnessSubtask]
    _side: dict[str, list[Any]]
    _side_times: dict[str, list[tuple[int | None, int]]]
    _clock: Clock
    _pauses: Pauses
    _crashes: CrashPoints | None
    _event_time: EventTime
    _max_parallelism: int
    _serialize: bool
    _runs_at_once: bool
    _hang_after: float
    _config: Configuration
    _code: AgentCode

    def side_output(self, tag: str) -> list[Any]:
        """Return all values of the side output ``tag``, in order.

        Raises:
            UnknownSideOutputError: The agent has no such side output.
        """
        check_tag(tag, self._code.side_outputs)
        return self._left(tag)

    def _left(self, tag: str) -> list[Any]:
        return self._side.setdefault(tag, [])

    def _subtask_of(self, key: str) -> HarnessSubtask:
        check_open(bool(self._subtasks))
        group = zlib.crc32(key.encode()) % self._max_parallelism
        return self._subtasks[group * len(self._subtasks) // self._max_parallelism]

    def _to_the_end(self, act: Callable[[], None]) -> None:
        act()
        self._run_at_once()

    def _run_at_once(self) -> None:
        if self._runs_at_once:
            self._run_to_the_end()

    def _run_to_the_end(self, seconds: float | None = None) -> None:
        with self._pauses.ended_at_once():
            self._run_all(seconds)

    def _run_all(self, seconds: float | None) -> None:
        for subtask in self._subtasks:
            while waiting := subtask.due.keys():
                processor = subtask.processor
                loop = processor.waits.loop
                seen = loop.progress
                for key in waiting:
                    # The heartbeat of another key may have left none.
                    if timers := subtask.due.of(subtask.backend.keys[key]):
                        # The last timer of a key may be there to remove the key.
                        at = min(timers) if self._keeps_timers else max(timers)
                        self._fire(key, "processing_timers", at)
                # A heartbeat visits a limited number of keys, and leaves others to the next one.
                if processor.actors and not processor.schedule.is_behind:
                    wait_for_progress(loop, seen, self._hang_after if seconds is None else seconds)

    @cached_property
    def _keeps_timers(self) -> bool:
        """True if timers wait for their time even if there is nothing else to do."""
        return self._event_time.holds or self._config.get(AgentOptions.IDLE_KEY_TTL) is not None

    def _next_due(self, after: int = 0) -> int | None:
        """Return the first time after ``after`` at which a key has a delayed event, or None."""
        states = [state for subtask in self._subtasks for state in subtask.backend.keys.values()]
        heads = [Head.unpack(state.head) for state in states if state.head is not None]
        times = [head.delayed_due for head in heads if head.delayed_due is not None]
        return min((at for at in times if at > after), default=None)

    @property
    def output_watermark(self) -> int | None:
        """The downstream watermark over all subtasks that are not idle; None before the first one."""
        behind = [task.backend.behind for task in self._subtasks]
        watermarks = [view.watermark() for view in behind if view is not None and not view.is_idle]
        low = min(watermarks, default=NO_TIMESTAMP)
        return None if low == NO_TIMESTAMP else low

    def side_times(self, tag: str) -> list[tuple[int | None, int]]:
        """Return the timestamp of each value of a side output, and the output watermark before it."""
        return self._side_times.setdefault(tag, [])

    def _deliver(self, key: str, record: Any, timestamp: int | None) -> None:
        """Deliver a record of a key to its subtask."""
        subtask = self._subtask_of(key)
        subtask.backend.key = key
        if self._crashes is not None:
            self._crashes.delivered()
        self._emit(subtask.processor.process(key, record, timestamp, subtask.backend), subtask.backend)

    def _fire_each(self, kind: str, until: int, fire: Callable[[str, str, int], None]) -> None:
        while (due := self._next_timer(kind, until)) is not None:
            if kind == "processing_timers":
                self._clock.time = max(self._clock.time, due[0])
            fire(due[1], kind, due[0])

    def _next_timer(self, kind: str, until: int) -> tuple[int, str] | None:
        """Return time and key of the first timer that is due; at equal times, the first key's."""
        firsts = (subtask.backend.timers[kind].first() for subtask in self._subtasks)
        first = min((timer for timer in firsts if timer is not None), default=None)
        return first if first is not None and first[0] <= until else None

    def _fire(self, key: str, kind: str, at: int) -> None:
        subtask = self._subtask_of(key)
        subtask.backend.key = key
        getattr(subtask.backend.current, kind).discard(at)
        self._emit(subtask.processor.on_timer(key, at, subtask.backend), subtask.backend)

    def _emit(self, emission: Emission, backend: FakeBackend) -> None:
        crashes = self._crashes
        key = backend.key or ""
        if crashes is not None:
            crashes.commits(key, backend.current.head)
        for tag, value in emission.side_outputs:
            self._left(tag).append(self._through_flink(value, "a value of a side output"))
            if crashes is not None:
                crashes.left(f"side output {tag!r}", key, self._left(tag)[-1])
        outputs = [self._through_flink(value, "an output") for value in emission.outputs]
        self.outputs += outputs
        timestamps: list[int | None] = []
        if backend.behind is not None:
            timestamps = self._pass(emission, backend.behind)
            self.timestamps += timestamps
        if crashes is not None:
            for what, values in (("outputs", outputs), ("timestamps", timestamps)):
                for value in values:
                    crashes.left(what, key, value)
            crashes.committed()

    def _pass(self, emission: Emission, behind: DownstreamView) -> list[int | None]:
        """Pass the rows of an emission downstream, and return the timestamps of the outputs."""
        for (tag, _), at in zip(emission.side_outputs, emission.side_timestamps, strict=True):
            low = behind.watermark(tag) if at is None else behind.row(tag)
            self.side_times(tag).append((at, low))
        self.lows += [behind.watermark() if at is None else behind.row() for at in emission.timestamps]
        behind.carriers()
        return emission.timestamps

    def _through_flink(self, value: Any, what: str) -> Any:
        if not self._serialize:
            return value
        try:
            return pickle.loads(pickle.dumps(value))
        except Exception as error:
            raise UnserializableValueError(
                f"{what} cannot be pickled, as PyFlink does between operators: {error}",
                found=f"{type(value).__module__}.{type(value).__qualname__}",
                fix=_fix_of(error),
            ) from error
