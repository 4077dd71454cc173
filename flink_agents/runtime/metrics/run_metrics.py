"""Metrics of a subtask: those that actions use, and those of its runs.

All of them live in this process: ``runtime.flink.metrics`` reports them to Flink, and the harness reads them
as they are. Frequent events of runs are counted in plain numbers, which become metrics when they are read: an
event costs two readings of a clock per action.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Counts, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from flink_agents.api.agents.observers import ObservedRun, RunObserver
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.metrics import Counter, Gauge, Histogram, Meter, MetricGroup
from flink_agents.api.errors import ActionTimeoutError
from flink_agents.api.events.approvals import APPROVAL_SIGNAL

WINDOW = 1000
"""The number of latest values from which a histogram computes quantiles."""

MOST_REASONS = 50
"""The number of dead letter reasons that have their own metric; all others share one."""

OTHER_REASONS = "Others@"

TIMER = "timer"
SIGNAL = "signal"
APPROVAL = "approval"
"""The kinds of durable waits that the gauges ``waits_...`` count."""

clock = time.monotonic
"""Returns the time in seconds by which the runtime measures durations."""

M = TypeVar("M")

_log = bounded_logger("flink_agents.metrics")


def is_number(value: object, metric: Counter | Meter | Gauge | Histogram) -> bool:
    """Return True if ``value`` is an int or a finite float; log another one, once per metric.

    Args:
        value: The value that an action, or its library, passes to a metric.
        metric: The metric that gets the value.
    """
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return True
    if not getattr(metric, "has_warned", False):
        metric.has_warned = True  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
        text = f"{type(value).__qualname__} {value!r}"[:200]
        _log.warning("a %s ignores a value that is not a number: %s", type(metric).__name__, text)
    return False


class LocalCounter(Counter):
    """A counter in this process.

    Attributes:
        count: Its value; to be changed with ``lock`` held.
        lock: Guards the value.
    """

    def __init__(self) -> None:
        self.count = 0
        self.lock = Lock()

    @override
    def inc(self, n: int = 1) -> None:
        if type(n) is int or is_number(n, self):
            with self.lock:
                self.count += n

    @override
    def dec(self, n: int = 1) -> None:
        self.inc(-n)

    @override
    def get_count(self) -> int:
        return self.count


class LocalMeter(Meter):
    """A meter in this process, which keeps the total of marked events."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    @override
    def mark(self, n: int = 1) -> None:
        if is_number(n, self):
            with self._lock:
                self._count += n

    @override
    def get_count(self) -> int:
        return self._count


class LocalGauge(Gauge):
    """A gauge in this process, which keeps the last value."""

    def __init__(self) -> None:
        self._value: int | float = 0

    @override
    def set(self, value: int | float) -> None:
        if is_number(value, self):
            self._value = value

    @override
    def get_value(self) -> int | float:
        return self._value


class LocalHistogram(Histogram):
    """A histogram over the last :data:`WINDOW` values."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()
        self._window: deque[float] = deque(maxlen=WINDOW)

    @override
    def update(self, value: int | float) -> None:
        if is_number(value, self):
            self.add(value)

    def add(self, value: float) -> None:
        """Record a value that is a number."""
        with self._lock:
            self._count += 1
            self._window.append(value)

    @override
    def get_count(self) -> int:
        return self._count

    @override
    def quantile(self, q: float) -> float:
        """Return the value at a share ``q`` (0 to 1) of the sorted latest values; 0.0 if there are none."""
        with self._lock:
            values = sorted(self._window)
        if not values:
            return 0.0
        return float(values[min(len(values) - 1, int(q * len(values)))])


class LocalMetricGroup(MetricGroup):
    """A thread-safe group of metrics in this process.

    Args:
        name: The name of the group in its parent.
        before_read: Called before all values are read, to update them; or None.

    Attributes:
        before_read: Called before all values are read, to update them; or None.
    """

    def __init__(self, name: str = "", before_read: Callable[[], None] | None = None) -> None:
        self.name = name
        self.before_read = before_read
        self.metrics: dict[str, Counter | Meter | Gauge | Histogram] = {}
        self.groups: dict[str, LocalMetricGroup] = {}

    @override
    def get_sub_group(self, name: str) -> LocalMetricGroup:
        return self.groups.get(name) or self.groups.setdefault(name, LocalMetricGroup(name))

    @override
    def get_counter(self, name: str) -> LocalCounter:
        return self._metric(name, LocalCounter)

    @override
    def get_meter(self, name: str) -> Meter:
        return self._metric(name, LocalMeter)

    @override
    def get_gauge(self, name: str) -> Gauge:
        return self._metric(name, LocalGauge)

    @override
    def get_histogram(self, name: str) -> LocalHistogram:
        return self._metric(name, LocalHistogram)

    def values(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield dotted name and value of each metric here and below: its count, or the value of a gauge."""
        if self.before_read is not None:
            self.before_read()
        for name, metric in list(self.metrics.items()):
            yield prefix + name, metric.get_value() if isinstance(metric, Gauge) else metric.get_count()
        for name, group in list(self.groups.items()):
            yield from group.values(f"{prefix}{name}.")

    def _metric(self, name: str, kind: type[M]) -> M:
        """Return the metric with a name, created at its first use.

        Raises:
            ValueError: A metric of another kind has the name.
        """
        create: Any = kind
        metric: Any = self.metrics.get(name) or self.metrics.setdefault(name, create())
        if not isinstance(metric, kind):
            raise ValueError(f"metric {name!r} is a {type(metric).__name__}, not a {kind.__name__}")
        return metric


class RunMetrics(RunObserver):
    """The runtime's metrics of a subtask: the first observer of its runs.

    Args:
        actions: Names of the agent's actions.

    Attributes:
        group: The group with all metrics.
        events: The number of committed runs. Only for Flink's thread.
        backpressure: Seconds for which Flink's thread took no input. Only for Flink's thread.
        open_waits: Counts suspended runs by the kinds of their waits. Only for Flink's thread.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        self.group = LocalMetricGroup("runtime", self._update_group)
        self.events = 0
        self.backpressure = 0.0
        self._commit_delay = self.group.get_histogram("commit_delay_us")
        self.open_waits = OpenWaitGauge()
        self._latencies = {name: self._action_group(name).get_histogram("latency_us") for name in actions}
        self._gauges: list[tuple[str, Callable[[], Mapping[str, int]]]] = []
        self._counters: dict[tuple[str, str | None], list[LocalCounter]] = {}
        self._update_group()

    def count(self, name: str, action: str | None = None, number: int = 1) -> None:
        """Add to a counter of events, in total and for an action. Thread-safe.

        Args:
            name: Name of the counter; those of actions begin with ``action_``.
            action: Name of the action; None to count in total only.
            number: The number of events.
        """
        counters = self._counters.get((name, action))
        if counters is None:
            counters = self._counters[name, action] = [self.group.get_counter(name)]
            if action is not None:
                counters.append(self._action_group(action).get_counter(name.removeprefix("action_")))
        for counter in counters:
            # What ``inc`` does, without a call: many events of a run are counted.
            with counter.lock:
                counter.count += number

    def add_gauges(self, prefix: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Add gauges with values that another part of the subtask measures.

        Args:
            prefix: Prefix of the gauges' names, before an underscore.
            read: Returns their values by name; any thread may call it at any time.
        """
        self._gauges.append((prefix, read))

    # -- events of runs ---------------------------------------------------------------

    def action_ended(self, run: ObservedRun, action: str, seconds: float, inline: bool) -> None:
        """Add to the latencies of the action."""
        self._latencies[action].add(1e6 * seconds)

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Count a failure, and a timeout if it was one."""
        self.count("action_failures", action)
        if isinstance(error, ActionTimeoutError):
            self.count("action_timeouts", action)

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Count a further attempt of an action."""
        self.count("action_retries", action)

    def action_replayed(self, run: ObservedRun, action: str, calls: Any, letter: Any) -> None:
        """Count an action that was replayed from its record."""
        self.count("action_replays", action)

    def action_mismatched(self, run: ObservedRun, action: str) -> None:
        """Count a replay that did not match its records."""
        self.count("action_mismatches", action)

    def event_given_up(self, run: ObservedRun, event_type: str, dead_letter: bool) -> None:
        """Count an event that a run ignores after a failure."""
        self.count("events_dead_lettered" if dead_letter else "events_ignored")

    def count_letter(self, action: str | None, error: BaseException) -> None:
        """Count a dead letter by its reason: the class of the error, and the action. Thread-safe."""
        letters = self.group.get_sub_group("dead_letters")
        reason = f"{type(error).__name__}@{action or ''}"
        if reason not in letters.metrics and len(letters.metrics) >= MOST_REASONS:
            reason = OTHER_REASONS
        letters.get_counter(reason).inc()

    def call_begun(self, run: ObservedRun, action: str, function: str, number: Any, again: bool) -> None:
        """Count a call if a replay makes it again: it was begun before and has no recorded outcome."""
        if again:
            self.count("action_calls_reexecuted", action)

    def call_retried(self, run: ObservedRun, action: str, function: str, number: Any, attempt: int) -> None:
        """Count a further attempt of a call."""
        self.count("action_call_retries", action)

    def call_recorded(self, run: ObservedRun, action: str, function: str, number: Any) -> None:
        """Count a call whose outcome was recorded."""
        self.count("action_calls_recorded", action)

    def call_replayed(self, run: ObservedRun, action: str, function: str, number: Any, outcome: Any) -> None:
        """Count a call that got its recorded outcome."""
        self.count("action_calls_replayed", action)

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        """Count a commit, and the time from its run's end to it. Only for Flink's thread."""
        self.events += 1
        if seconds is not None:
            self._commit_delay.add(1e6 * seconds)

    # -- results ----------------------------------------------------------------------

    def _update_group(self) -> None:
        """Set the metrics of the group from the plain numbers, before they are read."""
        self._set_total("events", self.events)
        self._set_total("backpressure_ms", int(self.backpressure * 1000))
        self._set_total("actions", sum(latency.get_count() for latency in self._latencies.values()))
        for prefix, read in self._gauges:
            for name, value in read().items():
                self.group.get_gauge(f"{prefix}_{name}").set(value)

    def _action_group(self, name: str) -> LocalMetricGroup:
        """Return the group with the metrics of an action."""
        return self.group.get_sub_group("action").get_sub_group(name)

    def _set_total(self, name: str, total: int) -> None:
        """Raise a counter to ``total``, and mark the meter of its rate if it has one."""
        counter = self.group.get_counter(name)
        new = total - counter.get_count()
        counter.inc(new)
        if name in ("events", "actions"):
            self.group.get_meter(f"{name}_per_second").mark(new)


class _Suspended(NamedTuple):
    """A suspended run.

    Attributes:
        since: The time at which it was suspended, in seconds since the epoch.
        kinds: The kinds of its waits, each once.
    """

    since: float
    kinds: tuple[str, ...]


class OpenWaitGauge:
    """Counts the suspended runs that this attempt has seen. Only Flink's thread writes; any thread may read.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        # In the order of their suspension: the first one has waited longest.
        self._runs: dict[tuple[str, int], _Suspended] = {}
        self._counts: Counts[str] = Counts()

    def suspended(self, key_text: str, seq: int, waits: Iterable[Any], since: float | None = None) -> None:
        """Note a suspended run.

        Args:
            key_text: Its key.
            seq: Its sequence number.
            waits: Its open waits, each with its ``kind`` and ``name``; see ``runtime.state.suspended``.
            since: The time of its suspension in seconds, if that was in an earlier attempt; None for now.
        """
        self.resumed(key_text, seq)
        kinds = tuple({APPROVAL if wait.name == APPROVAL_SIGNAL else wait.kind for wait in waits})
        self._counts.update(kinds)
        self._runs[key_text, seq] = _Suspended(since or self._now(), kinds)

    def resumed(self, key_text: str, seq: int) -> None:
        """Stop counting a run, which resumes or has ended."""
        if (suspended := self._runs.pop((key_text, seq), None)) is not None:
            self._counts.subtract(suspended.kinds)

    def read(self) -> dict[str, int]:
        """Return the gauges: runs by kind of wait, and the age of the oldest wait in milliseconds."""
        try:
            first = next(iter(self._runs.values()), None)
        except RuntimeError:
            # Flink's thread has just changed it. The next reading comes soon.
            first = None
        oldest = 0 if first is None else max(0, int(1000 * (self._now() - first.since)))
        counts = dict.fromkeys((TIMER, SIGNAL, APPROVAL), 0) | dict(self._counts)
        return counts | {"suspended": len(self._runs), "oldest_ms": oldest}
