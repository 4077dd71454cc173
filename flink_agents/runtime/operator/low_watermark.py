"""The output watermark of a subtask, here *low watermark*: no output up to this event time is still to come.

It is the least timestamp of an uncommitted input, minus one, and at most the watermark of the input. It
travels as data: each row that leaves carries it, and the table after the operator makes it the stream's
watermark. Flink's own watermark passes the operator unchanged, so nothing waits.

With long runs, rows are rare. So a row without an output, a *carrier*, is emitted if a downstream stream has
to learn of progress, or would count as idle. A timer in event time, one after the present watermark, shows
that the watermark has moved. Timers in processing time check the rest.

Only :meth:`LowWatermark.fired` raises it, and only when all inputs of a restored checkpoint are known. An
input with a later timestamp cannot become late, and one with an earlier timestamp is late when it comes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import NoWatermarksError, TimestampRangeError
from flink_agents.api.events import DelayedLineage
from flink_agents.api.events.event_time import LATE_TAG, EventTime, LateOutputs
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import RunEnd
from flink_agents.runtime.operator.services.service import START, Emission, KeyService, is_held
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys, Timers
from flink_agents.runtime.state.pending import read_input

_log = bounded_logger("flink_agents.event_time")

BEHIND = "event_time_behind_ms"
"""Name of the gauge: milliseconds from the low watermark to the watermark of the input."""

LATE_OUTPUTS = "event_time_late_outputs"
"""Name of the counter of runs whose outputs were late."""

NO_TIMESTAMP = -(2**63)
"""Flink's timestamp of a record without one, and its watermark before the first one."""

LAST_WATERMARK = 2**63 - 1
"""The watermark at the end of a bounded input."""

FIRST_MS = -62_167_219_200_000
"""The first millisecond of the year 0. Tables of Flink support no earlier time."""

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999. Tables of Flink support no later time."""

PROGRESS_MS = 20
"""The shortest interval, in milliseconds, between two raises: watermarks may come with every record."""

MOST_STALE = 1000
"""The number of committed inputs that may stay in the heap besides as many as are not committed."""

HELD_MS = 50
"""The interval of checks, in milliseconds, while an input holds the low watermark."""


@dataclass(slots=True)
class _Waiting:
    """The uncommitted inputs of a key, each with its number.

    Attributes:
        holding: Event time of each input that holds the low watermark, by the number of the input.
        passed: Numbers of the inputs that no longer hold it, so that their outputs may be late.
        woken: Numbers of the wake-ups of suspended runs, which never hold it.
    """

    holding: dict[int, int] = field(default_factory=dict[int, int])
    passed: set[int] = field(default_factory=set[int])
    woken: set[int] = field(default_factory=set[int])

    @property
    def has_ended(self) -> bool:
        """True if nothing of the key is left."""
        return not (self.holding or self.passed or self.woken)


class LowWatermark(KeyService):
    """Computes the low watermark of a subtask, and decides when to emit it. Only for Flink's task thread.

    Args:
        event_time: The policy that the agent was applied with.
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        tags: The tags of the side outputs; each is a separate stream.
        watermarks: True if the input stream has a watermark strategy, so that watermarks can come.

    Attributes:
        low: The low watermark in milliseconds; ``NO_TIMESTAMP`` before the first one.
    """

    has_key_timers = True

    def __init__(
        self,
        event_time: EventTime,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        tags: Iterable[str] = (),
        watermarks: bool = True,
    ) -> None:
        self.low = NO_TIMESTAMP
        self._late = event_time.late
        self._codec = shared.codec
        self._state = state
        self._clock = clock
        self._watermarks = watermarks
        self._max_hold_ms = event_time.max_hold // timedelta(milliseconds=1)
        self._alive_ms = max(1, event_time.idle_timeout // timedelta(milliseconds=3))
        metrics = shared.telemetry.run_metrics.group
        self._late_outputs = metrics.get_counter(LATE_OUTPUTS)
        self._warned = False
        self._behind = metrics.get_gauge(BEHIND)
        self._keys: dict[str, _Waiting] = {}
        self._holding = 0
        self._heap: list[tuple[int, int, str]] = []
        # The keys of the restored checkpoint whose inputs are not known yet.
        self._restored: set[str] = set()
        # The times at which watermarks of the input were seen, and the last one whose max_hold has passed.
        self._seen: deque[tuple[int, int]] = deque()
        self._watermark = self._expired = NO_TIMESTAMP
        self._emitted: dict[str, int] = dict.fromkeys(("", *tags), NO_TIMESTAMP)
        self._emitted_at: dict[str, int | None] = dict.fromkeys(self._emitted)
        self._raised = False
        self._next_check: int | None = None
        self._last_check: int | None = None
        self._awaited_event_time: int | None = None

    def check_arrival(self, timestamp: int | None, timers: Timers) -> None:
        """Reject a record with an event time that downstream streams do not support; None is accepted.

        Raises:
            NoWatermarksError: The input has timestamps and no watermarks.
            TimestampRangeError: Tables do not support the time.
        """
        self._begin_checks(timers)
        if timestamp is None:
            return
        if not self._watermarks:
            raise NoWatermarksError(
                "EventTime.hold_watermarks needs watermarks, and the input has none",
                expected="a stream with a watermark strategy",
                found=f"a record with timestamp {timestamp}, of a stream without watermarks",
                fix="give the source or the stream a strategy such as "
                "WatermarkStrategy.for_bounded_out_of_orderness(...), or apply the agent with "
                "EventTime.ignore()",
            )
        if not FIRST_MS <= timestamp <= LAST_MS:
            raise TimestampRangeError(
                "EventTime.hold_watermarks cannot emit results with the timestamp of a record",
                expected="milliseconds since 1970, of the years 0 to 9999",
                found=f"a record with timestamp {timestamp}",
                fix="see that the timestamp assigner gives milliseconds, or apply the agent with "
                "EventTime.ignore()",
            )

    # -- inputs that wait -------------------------------------------------------------

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Note the keys with restored inputs: until those are noted, nothing raises the low watermark."""
        self._restored = set(waiting)
        if waiting and timers is not None:
            self._begin_checks(timers)
        return False

    def note_restored_inputs(self, head: Head | None, key_text: str) -> None:
        """Note the restored inputs and wake-ups of the current key; for a head of None, that it has none."""
        if head is not None:
            inputs, wake_ups = self._state.inputs_and_wake_ups(head)
            for number in wake_ups:
                self.woken(key_text, number)
            for number, packed in inputs:
                self.stored(key_text, number, read_input(self._codec, packed)[1])
        # Last: while a key is expected, nothing raises the low watermark past its inputs.
        self._restored.discard(key_text)

    def stored(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Note that input ``number`` of a key waits for its run. It holds nothing if it is late."""
        if timestamp is None or timestamp <= self.low:
            return
        waiting = self._keys.get(key_text)
        if waiting is None:
            waiting = self._keys[key_text] = _Waiting()
        if number in waiting.holding or number in waiting.passed:
            return
        waiting.holding[number] = timestamp
        self._holding += 1
        heapq.heappush(self._heap, (timestamp, number, key_text))
        if len(self._heap) > 2 * self._holding + MOST_STALE:
            # Committed inputs pile up in the heap if the watermark of the input does not move.
            self._heap = [
                (event_time, input_number, key)
                for key, inputs in self._keys.items()
                for input_number, event_time in inputs.holding.items()
            ]
            heapq.heapify(self._heap)

    def woken(self, key_text: str, number: int) -> None:
        """Note wake-up ``number`` of a key. It holds nothing, so outputs of its run may be late."""
        self._keys.setdefault(key_text, _Waiting()).woken.add(number)

    def delayed(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Note that a delayed event becomes input ``number`` of a key.

        Its outputs are late if the time of its sender has passed.
        """
        self.stored(key_text, number, timestamp)
        if timestamp is not None and timestamp <= self.low:
            self._keys.setdefault(key_text, _Waiting()).passed.add(number)

    # -- runs that have ended -----------------------------------------------------------

    def stamp_outputs(self, ended: RunEnd, out: Emission) -> None:
        """Add the event time of each output of a run, after the policy was applied to late ones."""
        run = ended.run
        if ended.frees_key:
            self._end_run(run, ended.number)
        else:
            self._suspend_run(run, ended.number)
        out.timestamps += [run.timestamp] * len(run.outputs)
        out.side_timestamps += [run.timestamp] * len(run.side_outputs)

    def _suspend_run(self, run: Run, number: int | None) -> None:
        """Apply the policy to late outputs of a run that blocks its key now, and stop waiting for the run."""
        waiting = self._keys.get(run.key_text)
        if waiting is not None and number in waiting.passed and self._is_late(run):
            if run.outputs or run.side_outputs:
                self._late_outputs.inc()
                self._apply_late_policy(run)
        self.blocked(run.key_text)

    def blocked(self, key_text: str, head: Head | None = None) -> None:
        """Stop holding the low watermark for the inputs of a key: its run is suspended, maybe for days."""
        waiting = self._keys.get(key_text)
        if waiting is not None:
            self._holding -= len(waiting.holding)
            waiting.passed.update(waiting.holding)
            waiting.holding.clear()

    def _end_run(self, run: Run, number: int | None) -> None:
        """Forget the input of a run that has ended, and apply the policy if its outputs are late."""
        waiting = self._keys.get(run.key_text)
        if waiting is not None and number is not None:
            if waiting.holding.pop(number, None) is not None:
                self._holding -= 1
            elif number in waiting.passed or number in waiting.woken:
                waiting.passed.discard(number)
                waiting.woken.discard(number)
                if self._is_late(run):
                    self._late_outputs.inc()
                    if not isinstance(run.lineage, DelayedLineage):
                        self._log_late(run)
                    self._apply_late_policy(run)
            if waiting.has_ended:
                del self._keys[run.key_text]

    def _is_late(self, run: Run) -> bool:
        """Return True if the low watermark has passed the event time of a run's input."""
        return run.timestamp is not None and run.timestamp <= self.low

    def _log_late(self, run: Run) -> None:
        """Log once what late outputs are and what helps; later ones are counted."""
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "key %r: a run with event time %s ended after the output watermark had passed it, which waits "
            "for %g s (max_hold) at most: its outputs are late, and the policy is late=%r. Raise max_hold "
            "above what runs take, with their retries and what is queued before them in a key, or let "
            "actions and calls end sooner by timeout=...; late='side' keeps such outputs. Further ones are "
            "counted in %s",
            run.key,
            run.timestamp,
            self._max_hold_ms / 1000,
            self._late.value,
            LATE_OUTPUTS,
        )

    def _apply_late_policy(self, run: Run) -> None:
        """Emit, drop or move late outputs of a run to the side output, as ``EventTime.late`` says."""
        if self._late is LateOutputs.SIDE:
            run.side_outputs += [(LATE_TAG, value) for value in run.outputs]
        if self._late is not LateOutputs.EMIT:
            run.outputs = []

    # -- timers -----------------------------------------------------------------------

    def _begin_checks(self, timers: Timers) -> None:
        """Register the first timer, at the first input or timer."""
        if self._next_check is None:
            self._look_at(self._clock(), timers)

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Raise the low watermark as far as possible if a check is due. The timer may have another use."""
        if at >= START:
            return
        now = self._clock()
        if at == self._awaited_event_time:
            self._awaited_event_time = None
            if self._last_check is not None and now < self._last_check + PROGRESS_MS:
                self._look_at(self._last_check + PROGRESS_MS, timers)
                return
        elif self._next_check is not None and now < self._next_check != at:
            return
        watermark = timers.current_watermark()
        ends = False
        if is_held(watermark):
            # The input has ended, and the job waits for the last runs: their outputs are not late.
            watermark = self._watermark
            ends = True
        self._next_check = None
        self._last_check = now
        self._note_watermark(watermark, now)
        # Before, an unknown input of the restored checkpoint may hold it.
        if not self._restored:
            low = self._lowest(watermark)
            self._raised = self._raised or low > self.low
            self.low = max(self.low, low)
        self._behind.set(watermark - self.low if self.low != NO_TIMESTAMP else 0)
        if self._awaited_event_time is None and watermark < LAST_WATERMARK and not ends:
            self._awaited_event_time = watermark + 1
            timers.register_event_time_timer(watermark + 1)
        self._look_at(now + min(self._alive_ms, HELD_MS if self.low < watermark else self._alive_ms), timers)

    def _look_at(self, at: int, timers: Timers) -> None:
        """Schedule a check at a wall-clock time in milliseconds, unless there is an earlier one."""
        if self._next_check is None or at < self._next_check:
            self._next_check = at
            timers.register_processing_time_timer(at)

    def _note_watermark(self, watermark: int, now: int) -> None:
        """Note when a watermark of the input was first seen, and the last that ``max_hold`` has passed."""
        if watermark > self._watermark:
            self._watermark = watermark
            self._seen.append((now, watermark))
        while self._seen and self._seen[0][0] <= now - self._max_hold_ms:
            self._expired = self._seen.popleft()[1]

    def _lowest(self, watermark: int) -> int:
        """Return the low watermark for one of the input; inputs that hold it for too long stop doing so."""
        heap = self._heap
        while heap:
            at, number, key_text = heap[0]
            waiting = self._keys.get(key_text)
            if waiting is not None and waiting.holding.get(number) == at:
                if at > watermark:
                    break
                # Inputs queued after a late one cannot be in time either.
                if not (waiting.passed or at <= self._expired or self.operator.is_held_back(key_text)):
                    return at - 1
                del waiting.holding[number]
                self._holding -= 1
                waiting.passed.add(number)
            heapq.heappop(heap)
        return watermark

    # -- rows -------------------------------------------------------------------------

    def take_for_row(self, tag: str = "") -> int | None:
        """Return the low watermark for a row that leaves to ``tag``; None if that stream has it already."""
        self._emitted_at[tag] = self._clock()
        if self._emitted[tag] == self.low:
            return None
        self._emitted[tag] = self.low
        return min(self.low, LAST_MS) if self.low >= FIRST_MS else None

    def due(self) -> Sequence[str]:
        """Return the tags of the streams that need a row without an output (a carrier) now."""
        if self._raised:
            self._raised = False
            return [tag for tag, last in self._emitted.items() if last < self.low or self._is_silent(tag)]
        return [tag for tag in self._emitted if self._is_silent(tag)]

    @property
    def alive_seconds(self) -> float:
        """The longest time, in seconds, for which a stream may be without a row."""
        return self._alive_ms / 1000

    def _is_silent(self, tag: str) -> bool:
        """Return True if a stream got no row for so long that it would soon count as idle."""
        at = self._emitted_at[tag]
        return at is None or self._clock() - at >= self._alive_ms
