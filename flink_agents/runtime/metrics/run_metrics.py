"""Metrics of a subtask's runs: rates, latencies, and the number and age of waiting runs.

Frequent events are counted in plain numbers, each written by one thread, and become metrics
when they are read: an event costs two readings of a clock per action.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from flink_agents.api.agents.observers import ObservedRun, RunObserver
from flink_agents.api.errors import ActionTimeoutError
from flink_agents.api.events.approvals import APPROVAL_SIGNAL
from flink_agents.runtime.metrics.metrics import WINDOW, LocalCounter, LocalMetricGroup

clock = time.monotonic


class Durations:
    """Durations of one kind. One thread adds, any thread may read.

    Attributes:
        count: The number of durations.
    """

    __slots__ = ("_latest", "count")

    def __init__(self) -> None:
        self.count = 0
        self._latest = [0.0] * WINDOW

    def add(self, seconds: float) -> None:
        """Add one."""
        self._latest[self.count % WINDOW] = seconds
        self.count += 1

    def since(self, seen: int) -> tuple[int, list[float]]:
        """Return the number of durations, and those after the first ``seen``, as far as they are kept."""
        count = self.count
        latest = range(max(seen, count - WINDOW), count)
        return count, [self._latest[number % WINDOW] for number in latest]


MOST_REASONS = 50
"""The number of dead letter reasons that have their own metric; all others share one."""

OTHER_REASONS = "Others@"


class RunMetrics(RunObserver):
    """The runtime's metrics of a subtask: the first observer of its runs.

    Args:
        actions: Names of the agent's actions.

    Attributes:
        group: The group with all of them.
        events: Committed runs. Only for Flink's thread.
        backpressure: Seconds for which Flink's thread took no input. Only for Flink's thread.
        commit_delay: Time from the end of a run to its commit. Only for Flink's thread.
        open_waits: The suspended runs. Only for Flink's thread.
        on_task_thread: Executions on Flink's thread, by action.
        on_loop: Executions on the agent loop, by action.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        self.group = LocalMetricGroup("runtime", self._read)
        self.events = 0
        self.backpressure = 0.0
        self.commit_delay = Durations()
        self.open_waits = OpenWaitGauge()
        names = list(actions)
        self.on_task_thread = {name: Durations() for name in names}
        self.on_loop = {name: Durations() for name in names}
        self._gauges: list[tuple[str, Callable[[], Mapping[str, int]]]] = []
        self._seen: dict[Durations, int] = {}
        self._counters: dict[tuple[str, str | None], list[LocalCounter]] = {}
        self._read()

    def count(self, name: str, action: str | None = None, number: int = 1) -> None:
        """Count ``number`` events of a kind, in total and for an action. Thread-safe."""
        counters = self._counters.get((name, action))
        if counters is None:
            counters = self._counters[name, action] = [self.group.get_counter(name)]
            if action is not None:
                counters.append(self._action(action).get_counter(name.removeprefix("action_")))
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
        """Add to the latencies of the action; each thread has separate numbers."""
        (self.on_task_thread if inline else self.on_loop)[action].add(seconds)

    def action_failed(self, run: ObservedRun, action: str, error: BaseException) -> None:
        """Count a failure, and a timeout if it was one."""
        self.count("action_failures", action)
        if isinstance(error, ActionTimeoutError):
            self.count("action_timeouts", action)

    def action_retried(self, run: ObservedRun, action: str, attempt: int) -> None:
        """Count a further attempt."""
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
        """Count a call that a replay makes again."""
        if again:
            self.count("action_calls_reexecuted", action)

    def call_retried(self, run: ObservedRun, action: str, function: str, number: Any, attempt: int) -> None:
        """Count a further attempt of a call."""
        self.count("action_call_retries", action)

    def call_recorded(self, run: ObservedRun, action: str, function: str, number: Any) -> None:
        """Count a recorded result."""
        self.count("action_calls_recorded", action)

    def call_replayed(self, run: ObservedRun, action: str, function: str, number: Any, outcome: Any) -> None:
        """Count a call that got its recorded outcome."""
        self.count("action_calls_replayed", action)

    def committed(self, run: ObservedRun, seconds: float | None) -> None:
        """Count a commit, and the time from its run's end to it. Only for Flink's thread."""
        self.events += 1
        if seconds is not None:
            self.commit_delay.add(seconds)

    # -- results ----------------------------------------------------------------------

    def _read(self) -> None:
        """Update the group."""
        self._total("events", self.events)
        self._total("backpressure_ms", int(self.backpressure * 1000))
        self._spread(self.group, "commit_delay_us", self.commit_delay)
        executed = 0
        for name in self.on_task_thread:
            action = self._action(name)
            for durations in (self.on_task_thread[name], self.on_loop[name]):
                self._spread(action, "latency_us", durations)
            executed += action.get_histogram("latency_us").get_count()
        self._total("actions", executed)
        for prefix, read in self._gauges:
            for name, value in read().items():
                self.group.get_gauge(f"{prefix}_{name}").set(value)

    def _action(self, name: str) -> LocalMetricGroup:
        return self.group.get_sub_group("action").get_sub_group(name)

    def _total(self, name: str, total: int) -> None:
        counter = self.group.get_counter(name)
        new = total - counter.get_count()
        counter.inc(new)
        if name in ("events", "actions"):
            self.group.get_meter(f"{name}_per_second").mark(new)

    def _spread(self, group: LocalMetricGroup, name: str, durations: Durations) -> None:
        """Add the durations since the last time to a histogram, in microseconds."""
        seen = self._seen.get(durations, 0)
        self._seen[durations], new = durations.since(seen)
        histogram = group.get_histogram(name)
        histogram.extend([1e6 * seconds for seconds in new], self._seen[durations] - seen)


TIMER = "timer"
SIGNAL = "signal"
APPROVAL = "approval"


class _Suspended(NamedTuple):
    since: float
    kinds: tuple[str, ...]


class OpenWaitGauge:
    """The suspended runs that this attempt has seen. Only Flink's thread writes; any thread may read.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        # In the order of their suspension: the first one has waited longest.
        self._runs: dict[tuple[str, int], _Suspended] = {}
        self._counts: Counter[str] = Counter()

    def suspended(self, key_text: str, seq: int, waits: Iterable[Any], since: float | None = None) -> None:
        """Note a suspended run.

        Args:
            key_text: Its key.
            seq: Its sequence number.
            waits: Its waits, each with its ``kind`` and ``name``; see ``runtime.state.suspended``.
            since: When it was suspended, if that was in an earlier attempt.
        """
        self.resumed(key_text, seq)
        kinds = tuple({_kind(wait) for wait in waits})
        self._counts.update(kinds)
        self._runs[key_text, seq] = _Suspended(since or self._now(), kinds)

    def resumed(self, key_text: str, seq: int) -> None:
        """Record that a run resumes, or has ended."""
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


def _kind(wait: Any) -> str:
    return APPROVAL if wait.name == APPROVAL_SIGNAL else wait.kind
