"""How a subtask keeps the watermark behind the runs that it has not committed yet.

Each input that waits has an event-time timer at its own timestamp. Flink fires it before the
watermark that reaches it goes on; whoever waits inside of the timer holds the watermark back.
So no output is late as long as its run ends within the hold timeout.

A watermark may pass a run that takes longer, a *straggler*. What is queued behind it in the key
cannot come in time either and is not waited for, so one endless run costs one timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from flink_agents.api.errors import NoWatermarksError
from flink_agents.api.event_time import LATE_TAG, EventTime, LateOutputs
from flink_agents.api.logs import bounded_logger
from flink_agents.api.metrics import MetricGroup
from flink_agents.runtime.execution.run import Run

_log = bounded_logger("flink_agents.event_time")

HELD = "event_time_held_ms"
STRAGGLERS = "event_time_stragglers"
NO_TIMESTAMP = -(2**63)
"""What Flink gives as the timestamp of a record that has none."""

ADVICE_SECONDS = 10.0
"""The time over which holds are summed up before they are judged."""

ADVICE_SHARE = 0.1
"""Share of that time above which a log line gives advice."""


@dataclass
class Emission:
    """What leaves the operator after a commit.

    Attributes:
        outputs: Values for the main output, in order.
        side_outputs: Pairs of tag and value, in order.
        timestamps: Timestamp of each output, where event time is held.
        side_timestamps: Timestamp of each side output, where event time is held.
    """

    outputs: list[object] = field(default_factory=list)
    side_outputs: list[tuple[str, object]] = field(default_factory=list)
    timestamps: list[int | None] = field(default_factory=list)
    side_timestamps: list[int | None] = field(default_factory=list)


@dataclass
class _Waiting:
    """Inputs of a key that are not committed.

    Attributes:
        noted: Number of the first input whose timestamp was not looked at.
        numbers: Number of the last input of each timestamp.
        passed: Inputs below this number were not held for.
    """

    noted: int
    numbers: dict[int, int] = field(default_factory=dict)
    passed: int = 0


class Hold:
    """The watermark's view of what a subtask has to do.

    Args:
        event_time: What the agent was applied with.
        metrics: The agent's metrics.
        watermarks: Whether the input can have watermarks.
        monotonic: A clock in seconds.
    """

    def __init__(
        self,
        event_time: EventTime,
        metrics: MetricGroup,
        watermarks: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.event_time = event_time
        self._watermarks = watermarks
        self._monotonic = monotonic
        self._keys: dict[str, _Waiting] = {}
        self._held = metrics.get_counter(HELD)
        self._stragglers = metrics.get_counter(STRAGGLERS)
        self._watermark: int | None = None
        self._deadline = 0.0
        self._rest_ms = 0.0
        self._period = monotonic()
        self._held_in_period = 0.0

    def check(self, timestamp: int | None) -> None:
        """Refuse a record for which no watermark will ever come.

        Raises:
            NoWatermarksError: The input has timestamps and no watermarks.
        """
        if timestamp is not None and not self._watermarks:
            raise NoWatermarksError(
                "EventTime.hold needs watermarks, and the input has none",
                expected="a stream with a watermark strategy",
                found=f"a record with timestamp {timestamp}, of a stream without watermarks",
                fix="give the source or the stream a strategy such as "
                "WatermarkStrategy.for_bounded_out_of_orderness(...), or apply the agent with "
                "EventTime.none()",
            )

    # -- inputs that wait -------------------------------------------------------------

    def noted(self, key_text: str, first_pending: int) -> int:
        """Number of the first input of the key that is not known here."""
        waiting = self._keys.get(key_text)
        if waiting is None:
            waiting = self._keys[key_text] = _Waiting(first_pending)
        waiting.noted = max(waiting.noted, first_pending)
        return waiting.noted

    def note(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Learn that input ``number`` of the key waits. Only for the next number."""
        waiting = self._keys[key_text]
        waiting.noted = number + 1
        if timestamp is not None:
            waiting.numbers[timestamp] = number

    def last(self, key_text: str, timestamp: int) -> int:
        """Number of the last input that has to be committed before ``timestamp`` may pass; or -1."""
        numbers = self._keys[key_text].numbers
        return max((number for at, number in numbers.items() if at <= timestamp), default=-1)

    def forget(self, key_text: str) -> None:
        """Nothing of the key waits any more."""
        self._keys.pop(key_text, None)

    # -- waiting ----------------------------------------------------------------------

    def may_wait(self, key_text: str, first_pending: int, watermark: int) -> bool:
        """Whether ``watermark`` still waits for the key. The first call begins its time."""
        if first_pending < self._keys[key_text].passed:
            return False
        now = self._monotonic()
        if self._watermark != watermark:
            self._watermark = watermark
            self._deadline = now + self.event_time.hold_timeout.total_seconds()
        return now < self._deadline

    def give_up(self, key_text: str, last: int) -> None:
        """Let the watermark pass the inputs of the key up to number ``last``."""
        waiting = self._keys[key_text]
        waiting.passed = max(waiting.passed, last + 1)
        for at in [at for at, number in waiting.numbers.items() if number <= last]:
            del waiting.numbers[at]

    def waited(self, since: float) -> None:
        """Count a wait that began at ``since``, and give advice where waits take too long."""
        now = self._monotonic()
        self._held_in_period += now - since
        # Waits can be shorter than the counter's unit.
        self._rest_ms += (now - since) * 1000
        whole = int(self._rest_ms)
        self._rest_ms -= whole
        self._held.inc(whole)
        period = now - self._period
        if period >= ADVICE_SECONDS:
            if self._held_in_period > period * ADVICE_SHARE:
                self._advise(period)
            self._period, self._held_in_period = now, 0.0

    def now(self) -> float:
        """The clock that :meth:`waited` reads."""
        return self._monotonic()

    def _advise(self, period: float) -> None:
        _log.warning(
            "watermarks were held for %.1f s of the last %.1f s; the subtask takes no input meanwhile. "
            "Raise expected_latency (now %g s) to what most runs take, queueing included",
            self._held_in_period,
            period,
            self.event_time.expected_latency / timedelta(seconds=1),
        )

    # -- outputs ----------------------------------------------------------------------

    def take(self, run: Run, emission: Emission) -> None:
        """Let a run's outputs leave with the timestamp of its input."""
        emission.outputs += run.outputs
        emission.timestamps += [run.timestamp] * len(run.outputs)
        emission.side_outputs += run.side_outputs
        emission.side_timestamps += [run.timestamp] * len(run.side_outputs)

    def commit(self, run: Run, number: int, emission: Emission) -> bool:
        """Let the outputs of input ``number`` leave, or do with them as stragglers are dealt with.

        Returns:
            Whether no other input of the key needs the timer at its timestamp.
        """
        waiting, at = self._keys.get(run.key_text), run.timestamp
        unneeded = False
        if waiting is not None and at is not None:
            unneeded = waiting.numbers.get(at) == number
            if unneeded:
                del waiting.numbers[at]
            if number < waiting.passed:
                self._stragglers.inc()
                self._straggle(run)
        self.take(run, emission)
        return unneeded

    def _straggle(self, run: Run) -> None:
        late = self.event_time.late
        if late is LateOutputs.SIDE:
            run.side_outputs += [(LATE_TAG, value) for value in run.outputs]
        if late is not LateOutputs.EMIT:
            run.outputs = []
