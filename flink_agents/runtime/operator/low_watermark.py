"""The low watermark of a subtask: the event time up to which nothing is left to put out.

It is the least timestamp of an input that is not committed, less one, and at most the watermark of the
input. It travels as data: each row that leaves carries it, and the table behind the operator makes it the
stream's watermark, in place of Flink's own, which passes the operator unhindered. So nobody waits.

Rows are rare where runs are long, so a row without an output, a *carrier*, goes where a stream behind has to
learn of progress, or would be taken for idle. A timer in event time, one behind the present watermark, tells
that the watermark has moved; timers in processing time look.

The low watermark is raised by :meth:`LowWatermark.look` alone, and not before all inputs that a checkpoint
brought are known. An input of a later timestamp cannot get behind it, an earlier one is late as it comes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.metrics import MetricGroup
from flink_agents.api.errors import NoWatermarksError, TimestampRangeError
from flink_agents.api.events import DelayedLineage
from flink_agents.api.events.event_time import LATE_TAG, EventTime, LateOutputs
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.operator.end_times import is_held
from flink_agents.runtime.state.keyed_state import Timers

_log = bounded_logger("flink_agents.event_time")

BEHIND = "event_time_behind_ms"
STRAGGLERS = "event_time_late_outputs"
NO_TIMESTAMP = -(2**63)
"""What Flink gives as the timestamp of a record that has none, and as the watermark before the first."""

LAST_WATERMARK = 2**63 - 1
"""The watermark at the end of a bounded input."""

FIRST_MS = -62_167_219_200_000
"""The first millisecond of the year 0, and the last one of the year 9999: tables know no other times."""
LAST_MS = 253_402_300_799_999

PROGRESS_MS = 20
"""The least time between two raises: watermarks may come with every record."""

HELD_MS = 50
"""How often to look as long as an input holds the low watermark."""

SETTLING_MS = 5000
"""After a start, how long a timer of a restored key may take to tell of the key.

Where nobody says which keys a checkpoint brought, each that has inputs has a timer in processing time, at
most ``harvest.MAX_DELAY_OF_MANY_MS`` ahead of the clock of the attempt before.
"""


@dataclass(slots=True)
class _Waiting:
    """Inputs of a key that are not committed, each with its number.

    Attributes:
        holding: Timestamps of those that hold the low watermark.
        passed: Those that hold it no longer.
        woken: Wake-ups of released runs, which never hold it.
    """

    holding: dict[int, int] = field(default_factory=dict[int, int])
    passed: set[int] = field(default_factory=set[int])
    woken: set[int] = field(default_factory=set[int])

    @property
    def is_over(self) -> bool:
        """Whether nothing of the key is left."""
        return not (self.holding or self.passed or self.woken)


class LowWatermark:
    """Computes the low watermark of a subtask, and says when to tell it. Only Flink's thread uses it.

    Args:
        event_time: What the agent was applied with.
        metrics: The agent's metrics.
        clock: The wall-clock time in milliseconds.
        tags: The side outputs; each is a stream of its own.
        watermarks: Whether the input can have watermarks.

    Attributes:
        event_time: See above.
        low: The low watermark; ``NO_TIMESTAMP`` before the first.
    """

    def __init__(
        self,
        event_time: EventTime,
        metrics: MetricGroup,
        clock: Callable[[], int],
        tags: Iterable[str] = (),
        watermarks: bool = True,
    ) -> None:
        self.event_time = event_time
        self.low = NO_TIMESTAMP
        self._clock = clock
        self._watermarks = watermarks
        self._timeout = event_time.max_hold // timedelta(milliseconds=1)
        self._alive = max(1, event_time.idle_timeout // timedelta(milliseconds=3))
        self._stragglers = metrics.get_counter(STRAGGLERS)
        self._warned = False
        self._behind = metrics.get_gauge(BEHIND)
        self._keys: dict[str, _Waiting] = {}
        self._holding = 0
        self._heap: list[tuple[int, int, str]] = []
        # Which keys a checkpoint brought is not known as long as this is None.
        self._restored: set[str] | None = None
        self._settled: int | None = None
        # When each watermark of the input was seen, and the last one that waits for nobody.
        self._seen: deque[tuple[int, int]] = deque()
        self._watermark = self._expired = NO_TIMESTAMP
        self._told: dict[str, int] = dict.fromkeys(("", *tags), NO_TIMESTAMP)
        self._told_at: dict[str, int | None] = dict.fromkeys(self._told)
        self._raised = False
        self._at: int | None = None
        self._looked: int | None = None
        self._awaited: int | None = None

    def check(self, timestamp: int | None) -> None:
        """Refuse a record whose time no stream behind the agent could have.

        Raises:
            NoWatermarksError: The input has timestamps and no watermarks.
            TimestampRangeError: Tables do not know the time.
        """
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
                "EventTime.hold_watermarks cannot put out results with the timestamp of a record",
                expected="milliseconds since 1970, of the years 0 to 9999",
                found=f"a record with timestamp {timestamp}",
                fix="see that the timestamp assigner gives milliseconds, or apply the agent with "
                "EventTime.ignore()",
            )

    # -- inputs that wait -------------------------------------------------------------

    def restored(self, keys: Collection[str]) -> None:
        """Learn that these keys, and no others, have inputs from before the start."""
        self._restored = set(keys)

    def found(self, key_text: str, inputs: Iterable[tuple[int, int | None]]) -> None:
        """Learn numbers and timestamps of all inputs of a key that a checkpoint brought."""
        for number, timestamp in inputs:
            self.stored(key_text, number, timestamp)
        if self._restored:
            self._restored.discard(key_text)

    def stored(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Learn that an input waits for its run. One that is late holds nothing."""
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
        if len(self._heap) > 2 * self._holding + 1000:
            # Committed inputs are left where the watermark of the input stands still.
            self._heap = [
                (at, number, key) for key, one in self._keys.items() for number, at in one.holding.items()
            ]
            heapq.heapify(self._heap)

    def woken(self, key_text: str, number: int) -> None:
        """Learn of a wake-up: what its run puts out may be late, and nothing waits for it."""
        self._keys.setdefault(key_text, _Waiting()).woken.add(number)

    def delayed(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Learn that a delayed event comes in. It is a straggler where the time of its sender has passed."""
        self.stored(key_text, number, timestamp)
        if timestamp is not None and timestamp <= self.low:
            self._keys.setdefault(key_text, _Waiting()).passed.add(number)

    def leave(self, run: Run, number: int | None) -> None:
        """See what a run has put out that is suspended now, and wait for it no longer.

        Args:
            run: The run.
            number: Number of its input among those of its key that wait.
        """
        waiting = self._keys.get(run.key_text)
        if waiting is not None and number in waiting.passed:
            self._leave_late(run)
        self.park(run.key_text)

    def _leave_late(self, run: Run) -> None:
        if run.timestamp is not None and run.timestamp <= self.low and (run.outputs or run.side_outputs):
            self._stragglers.inc()
            self._straggle(run)

    def park(self, key_text: str) -> None:
        """Let the inputs of a key hold the low watermark no longer: its run is suspended, maybe for days."""
        waiting = self._keys.get(key_text)
        if waiting is not None:
            self._holding -= len(waiting.holding)
            waiting.passed.update(waiting.holding)
            waiting.holding.clear()

    def commit(self, run: Run, number: int | None) -> None:
        """See what an input put out, and do with that of a straggler as the policy says.

        Args:
            run: The run of the input.
            number: Number of the input among those of its key that wait; None where it never waited.
        """
        waiting = self._keys.get(run.key_text)
        if waiting is not None and number is not None:
            if waiting.holding.pop(number, None) is not None:
                self._holding -= 1
            elif number in waiting.passed or number in waiting.woken:
                waiting.passed.discard(number)
                waiting.woken.discard(number)
                if run.timestamp is not None and run.timestamp <= self.low:
                    self._stragglers.inc()
                    if not isinstance(run.lineage, DelayedLineage):
                        self._tell(run)
                    self._straggle(run)
            if waiting.is_over:
                del self._keys[run.key_text]

    def _tell(self, run: Run) -> None:
        """Say once what a straggler is and what helps; the others are counted."""
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "key %r: a run with event time %s came to its end behind the low watermark, which waits for %g s "
            "(max_hold) at most: its outputs are late, and the policy is late=%r. Raise max_hold "
            "above what runs take, with their retries and what is queued before them in a key, or let "
            "actions and calls end sooner by timeout=...; late='side' keeps such outputs. Further ones are "
            "counted in %s",
            run.key,
            run.timestamp,
            self._timeout / 1000,
            self.event_time.late.value,
            STRAGGLERS,
        )

    def _straggle(self, run: Run) -> None:
        late = self.event_time.late
        if late is LateOutputs.SIDE:
            run.side_outputs += [(LATE_TAG, value) for value in run.outputs]
        if late is not LateOutputs.EMIT:
            run.outputs = []

    # -- timers -----------------------------------------------------------------------

    def begin(self, timers: Timers) -> None:
        """Have somebody look, from the first input or timer on."""
        if self._at is None:
            self._look_at(self._clock(), timers)

    def look(self, fired: int, timers: Timers, is_held_back: Callable[[str], bool]) -> None:
        """Raise the low watermark as far as it goes, if it is time to.

        Args:
            fired: Time of the timer in which this is called; of any timer.
            timers: Timers of whichever key is current.
            is_held_back: Whether the inputs of a key wait for another input, which may be behind the
                watermark.
        """
        now, moved = self._clock(), fired == self._awaited
        if moved:
            self._awaited = None
            if self._looked is not None and now < self._looked + PROGRESS_MS:
                self._look_at(self._looked + PROGRESS_MS, timers)
                return
        elif self._at is not None and now < self._at != fired:
            return
        watermark, ends = timers.current_watermark(), False
        if is_held(watermark):
            # The input has ended, and the job waits for the last runs: what they put out is not late.
            watermark, ends = self._watermark, True
        self._at, self._looked = None, now
        self._note(watermark, now)
        if self._is_settled(now):
            low = self._lowest(watermark, is_held_back)
            self._raised = self._raised or low > self.low
            self.low = max(self.low, low)
        self._behind.set(watermark - self.low if self.low != NO_TIMESTAMP else 0)
        if self._awaited is None and watermark < LAST_WATERMARK and not ends:
            self._awaited = watermark + 1
            timers.register_event_time_timer(watermark + 1)
        self._look_at(now + min(self._alive, HELD_MS if self.low < watermark else self._alive), timers)

    def _look_at(self, at: int, timers: Timers) -> None:
        if self._at is None or at < self._at:
            self._at = at
            timers.register_processing_time_timer(at)

    def _is_settled(self, now: int) -> bool:
        """Whether all inputs that a checkpoint brought are known."""
        if self._restored is not None:
            return not self._restored
        if self._settled is None:
            self._settled = now + SETTLING_MS
        return now >= self._settled

    def _note(self, watermark: int, now: int) -> None:
        if watermark > self._watermark:
            self._watermark = watermark
            self._seen.append((now, watermark))
        while self._seen and self._seen[0][0] <= now - self._timeout:
            self._expired = self._seen.popleft()[1]

    def _lowest(self, watermark: int, is_held_back: Callable[[str], bool]) -> int:
        heap = self._heap
        while heap:
            at, number, key_text = heap[0]
            waiting = self._keys.get(key_text)
            if waiting is not None and waiting.holding.get(number) == at:
                if at > watermark:
                    break
                # What is queued behind a straggler cannot come in time either.
                if not (waiting.passed or at <= self._expired or is_held_back(key_text)):
                    return at - 1
                del waiting.holding[number]
                self._holding -= 1
                waiting.passed.add(number)
            heapq.heappop(heap)
        return watermark

    # -- rows -------------------------------------------------------------------------

    def take(self, tag: str = "") -> int | None:
        """The low watermark for a row that leaves to ``tag``; None where the stream knows it already."""
        self._told_at[tag] = self._clock()
        if self._told[tag] == self.low:
            return None
        self._told[tag] = self.low
        return min(self.low, LAST_MS) if self.low >= FIRST_MS else None

    def due(self) -> Sequence[str]:
        """Tags of the streams that need a carrier now."""
        if self._raised:
            self._raised = False
            return [tag for tag, told in self._told.items() if told < self.low or self._is_silent(tag)]
        return [tag for tag in self._told if self._is_silent(tag)]

    @property
    def alive_seconds(self) -> float:
        """How long a stream may be without a row."""
        return self._alive / 1000

    def _is_silent(self, tag: str) -> bool:
        at = self._told_at[tag]
        return at is None or self._clock() - at >= self._alive
