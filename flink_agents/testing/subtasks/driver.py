"""Drives the subtasks of an operator by hand: inputs, timers, clock and outputs."""

from __future__ import annotations

import pickle
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.events.event_time import EventTime
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import AgentCode
from flink_agents.runtime.concurrency.bridge import FLINK_SLICE_SECONDS
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.operator.heartbeat import Heartbeat
from flink_agents.runtime.operator.low_watermark import NO_TIMESTAMP
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.services.service import NOTHING, Emission
from flink_agents.runtime.serde.raised_texts import AWAIT_IT
from flink_agents.testing.fakes.clock import START as START, Clock
from flink_agents.testing.fakes.pauses import Pauses
from flink_agents.testing.fakes.state import DownstreamView, FakeBackend
from flink_agents.testing.subtasks.crash_points import CrashPoints
from flink_agents.testing.subtasks.due_timers import DueTimers
from flink_agents.testing.subtasks.given import check_open, check_tag
from flink_agents.testing.subtasks.hangs import check_hang, hang_error


def output_taker(driver: Driver, backend: FakeBackend) -> Callable[[Emission], None]:
    """Return a function that emits the outputs of a heartbeat; it refers to ``driver`` weakly."""
    reference = weakref.ref(driver)

    def emit_outputs(emission: Emission) -> None:
        live_driver = reference()
        if live_driver is not None:
            live_driver._emit_outputs(emission, backend)

    return emit_outputs


@dataclass
class HarnessSubtask:
    """One subtask of the operator of a harness.

    Attributes:
        processor: The operator's core.
        heartbeat: Its timer for all keys.
        backend: The fake of Flink's state and timers.
        shared: What its runs share.
        due: Finds the keys whose timers the harness fires before their time.
    """

    processor: AgentProcessor
    heartbeat: Heartbeat
    backend: FakeBackend
    shared: RunEnvironment
    due: DueTimers


def _fix_of(error: Exception) -> str:
    """Return the fix for a value that cannot be pickled, by the exception of ``pickle``."""
    if "'coroutine'" in str(error):
        return AWAIT_IT
    if isinstance(error, TypeError):
        return "emit plain data: a list instead of a generator, a name or URL instead of an open resource"
    return "use values whose classes are at the top level of a module"


def wait_for_progress(loop: AgentLoop, seen: int, seconds: float, clock: Clock) -> None:
    """Wait until a loop has made progress.

    Args:
        loop: The agent loop.
        seen: Value of its ``progress`` to exceed.
        seconds: Timeout in real seconds.
        clock: The clock of the harness.

    Raises:
        HarnessHangError: It made none in time, or nothing can end what its runs wait for.
    """
    remaining = seconds
    with clock.while_waiting():
        while not loop.wait_for_progress(seen, min(remaining, FLINK_SLICE_SECONDS)):
            check_hang(clock)
            # Counted: a test may freeze or move the clocks of ``time``, but not those of locks.
            remaining -= FLINK_SLICE_SECONDS
            if remaining <= 0:
                raise hang_error(f"no run ended within {seconds:g} s", loop)


class Driver:
    """Drives the subtasks of one operator, and collects their outputs. A base class of ``OperatorHarness``.

    Attributes:
        outputs: All values of the main output, in order.
        timestamps: The timestamp of each of them, or None. Empty unless the agent holds event time.
        lows: The output watermark of the subtask before each of them; an output is late if its timestamp is
            not above it. Empty unless the agent holds event time.
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
        """Return all values of a side output, in order.

        Raises:
            UnknownSideOutputError: The agent does not declare the side output ``tag``.
        """
        check_tag(tag, self._code.side_outputs)
        return self._outputs_of(tag)

    def _outputs_of(self, tag: str) -> list[Any]:
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
        self._clock.is_real = seconds is not None
        try:
            self._run_in_time(seconds)
        finally:
            self._clock.is_real = False

    def _run_in_time(self, seconds: float | None) -> None:
        began = self._clock.time
        self._run_all(seconds)
        # Time has passed for waits in memory, and with it for runs and events that wait in state.
        while self._clock.time > began and (due := self._next_timer("processing_timers", self._clock.time)):
            self._fire_timer(due[1], "processing_timers", due[0])
            self._run_all(seconds)

    def catch_up_to(self, time_ms: int) -> None:
        """Let time pass to ``time_ms`` if it is later than now, and run what is due to its end."""
        if time_ms > self._clock.time:
            self._fire_each("processing_timers", time_ms, self._fire_to_the_end)
            self._pass_to(time_ms)

    def _fire_to_the_end(self, *timer: *tuple[str, str, int]) -> None:
        self._to_the_end(partial(self._fire_timer, *timer))

    def _run_all(self, seconds: float | None) -> None:
        """Fire timers and wait for runs until no key has work.

        None: each wait may take ``hang_after`` seconds.
        """
        for subtask in self._subtasks:
            while waiting := subtask.due.keys():
                processor = subtask.processor
                loop = processor.loop_access.loop
                seen = loop.progress
                for key in waiting:
                    # The heartbeat of another key may have left none.
                    if timers := subtask.due.timers_of(subtask.backend.keys[key]):
                        # The last timer of a key may be there to remove the key.
                        at = min(timers) if self._keeps_timers else max(timers)
                        self._fire_timer(key, "processing_timers", at)
                # A heartbeat visits a limited number of keys, and leaves others to the next one.
                if processor.actors and not subtask.heartbeat.is_behind:
                    patience = self._hang_after if seconds is None else seconds
                    wait_for_progress(loop, seen, patience, self._clock)

    @cached_property
    def _keeps_timers(self) -> bool:
        """True if timers wait for their time even if there is nothing else to do."""
        return self._event_time.holds or self._config.get(AgentOptions.IDLE_KEY_TTL) is not None

    def _next_due(self, after: int = 0) -> int | None:
        """Return the first time after ``after`` at which any delayed event is due; None if there is none."""
        times = [subtask.due.first_delayed(after) for subtask in self._subtasks]
        return min((at for at in times if at is not None), default=None)

    @property
    def output_watermark(self) -> int | None:
        """The watermark that downstream operators see; None before the first one."""
        behind = [task.backend.downstream for task in self._subtasks]
        watermarks = [view.watermark() for view in behind if view is not None and not view.is_idle]
        low = min(watermarks, default=NO_TIMESTAMP)
        return None if low == NO_TIMESTAMP else low

    def side_times(self, tag: str) -> list[tuple[int | None, int]]:
        """Return the timestamp of each value of a side output, and the output watermark before it."""
        return self._side_times.setdefault(tag, [])

    def _deliver_to_subtask(self, key: str, record: Any, timestamp: int | None) -> None:
        """Pass an input of a key to the subtask that has the key."""
        subtask = self._subtask_of(key)
        subtask.backend.key = key
        if self._crashes is not None:
            self._crashes.count_delivery()
        self._emit_outputs(
            subtask.processor.process(key, record, timestamp, subtask.backend), subtask.backend
        )

    def _fire_each(self, kind: str, until: int, fire: Callable[[str, str, int], None]) -> None:
        while (due := self._next_timer(kind, until)) is not None:
            if kind == "processing_timers":
                self._pass_to(due[0])
            fire(due[1], kind, due[0])

    def _pass_to(self, time_ms: int) -> None:
        """Let time pass to ``time_ms``; timers of runs in flight fire at their times."""
        if self._runs_at_once or time_ms <= self._clock.time:
            # Nothing is in flight between two steps of a test.
            self._clock.time = max(self._clock.time, time_ms)
        else:
            self._clock.pass_to(time_ms, self._hang_after)

    def _next_timer(self, kind: str, until: int) -> tuple[int, str] | None:
        """Return time and key of the first timer up to ``until``; at equal times, the first key.

        None if none.
        """
        firsts = (subtask.backend.timers[kind].first_timer() for subtask in self._subtasks)
        first = min((timer for timer in firsts if timer is not None), default=None)
        return first if first is not None and first[0] <= until else None

    def _fire_timer(self, key: str, kind: str, at: int) -> None:
        subtask = self._subtask_of(key)
        subtask.backend.key = key
        getattr(subtask.backend.current, kind).discard(at)
        subtask.heartbeat.fire(at, subtask.backend)
        self._emit_outputs(NOTHING, subtask.backend)

    def _emit_outputs(self, emission: Emission, backend: FakeBackend) -> None:
        """Append the outputs of a commit to the lists of the harness; the crash points see each of them."""
        crashes = self._crashes
        key = backend.key or ""
        if crashes is not None:
            crashes.note_commit(key, backend.current.head)
        for tag, value in emission.side_outputs:
            self._outputs_of(tag).append(self._through_flink(value, "a value of a side output"))
            if crashes is not None:
                crashes.record_output(f"side output {tag!r}", key, self._outputs_of(tag)[-1])
        outputs = [self._through_flink(value, "an output") for value in emission.outputs]
        self.outputs += outputs
        timestamps: list[int | None] = []
        if backend.downstream is not None:
            timestamps = self._pass_downstream(emission, backend.downstream)
            self.timestamps += timestamps
        if crashes is not None:
            for what, values in (("outputs", outputs), ("timestamps", timestamps)):
                for value in values:
                    crashes.record_output(what, key, value)
            crashes.note_outputs_left()

    def _pass_downstream(self, emission: Emission, behind: DownstreamView) -> list[int | None]:
        """Pass the rows of an emission to the downstream view; return the timestamps of the main outputs."""
        for (tag, _), at in zip(emission.side_outputs, emission.side_timestamps, strict=True):
            low = behind.watermark(tag) if at is None else behind.accept_row(tag)
            self.side_times(tag).append((at, low))
        self.lows += [behind.watermark() if at is None else behind.accept_row() for at in emission.timestamps]
        behind.accept_carriers()
        return emission.timestamps

    def _through_flink(self, value: Any, what: str) -> Any:
        """Return a copy of an output, pickled as between operators of PyFlink, if the harness serializes.

        Raises:
            UnserializableValueError: It cannot be pickled.
        """
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
