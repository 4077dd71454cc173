"""Carries an agent's metrics to Flink's metric system.

Actions may use metrics on any thread, but a thread that Flink did not start must not call Java.
So all metrics live in this process, and Flink's thread reports them now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flink_agents.runtime.metrics.metrics import (
    LocalCounter,
    LocalGauge,
    LocalHistogram,
    LocalMeter,
    LocalMetricGroup,
)

INTERVAL_SECONDS = 0.5


class FlinkMetrics:
    """Reports groups of metrics.

    Args:
        groups: Pairs of a group and PyFlink's metric group that it appears in.
    """

    def __init__(self, *groups: tuple[LocalMetricGroup, Any]) -> None:
        self._groups = [_Group(local, group) for local, group in groups]
        self._due = 0.0

    def report_if_due(self) -> None:
        """Report where the last time is half a second ago."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + INTERVAL_SECONDS
            self.report()

    def report(self) -> None:
        """Tell Flink what is new. Only for Flink's thread."""
        for group in self._groups:
            group.report()


class _Group:
    """Reports the metrics of a group and its sub-groups.

    PyFlink has no histogram in its metric system, so quantiles are gauges over the last values; and its
    gauges are whole numbers.

    PyFlink's ``gauge`` calls Python in the thread that reads it, which ends the process (SIGSEGV in
    ``take_gil``) where the task's interpreter has just been closed. Its ``distribution`` is a gauge of Java
    that keeps the last value that it was given.

    Args:
        local: The metrics.
        group: PyFlink's metric group.
    """

    def __init__(self, local: LocalMetricGroup, group: Any) -> None:
        self._local = local
        self._group = group
        self._followed: dict[str, Any] = {}
        self._reported: dict[str, int] = {}
        self._shown: list[tuple[Any, Callable[[], float]]] = []
        self._groups: dict[str, _Group] = {}

    def report(self) -> None:
        """Tell Flink what is new."""
        if self._local.before_read is not None:
            self._local.before_read()
        for name, metric in list(self._local.metrics.items()):
            if name not in self._followed:
                self._followed[name] = self._register(name, metric)
            if isinstance(metric, LocalCounter | LocalMeter):
                self._add(name, metric.get_count())
        for update, read in self._shown:
            update(round(read()))
        for name, group in list(self._local.groups.items()):
            if name not in self._groups:
                self._groups[name] = _Group(group, self._group.add_group(name))
            self._groups[name].report()

    def _add(self, name: str, count: int) -> None:
        change = count - self._reported.get(name, 0)
        if change:
            self._reported[name] = count
            self._followed[name](change)

    def _show(self, name: str, read: Callable[[], float]) -> None:
        """Make a gauge of Flink's, which shows what was read at the last report."""
        self._shown.append((self._group.distribution(name).update, read))

    def _register(self, name: str, metric: Any) -> Any:
        """Make Flink's metric; what adds to it, for those that count."""
        if isinstance(metric, LocalCounter):
            return self._group.counter(name).inc
        if isinstance(metric, LocalMeter):
            return self._group.meter(name).mark_event
        if isinstance(metric, LocalGauge):
            return self._show(name, metric.get_value)
        if isinstance(metric, LocalHistogram):
            for percent in (50, 95, 99):
                self._show(f"{name}_p{percent}", lambda q=percent / 100: metric.quantile(q))
            return self._show(f"{name}_count", metric.get_count)
        raise TypeError(f"metric {name!r} is a {type(metric).__name__}")
