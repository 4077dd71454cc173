"""Reports an agent's metrics to Flink's metric system.

Actions may use metrics on any thread, but a thread that Flink did not start must not call Java.
So all metrics live in this process, and Flink's thread reports them regularly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.metrics.run_metrics import (
    LocalCounter,
    LocalGauge,
    LocalHistogram,
    LocalMeter,
    LocalMetricGroup,
)

INTERVAL_SECONDS = 0.5
"""The shortest time between two reports."""

_MOST = 2**63 - 1
"""The largest number that Flink's metrics take."""

_log = bounded_logger("flink_agents.metrics")


def _java_long(value: float) -> int:
    """Return the nearest integer to ``value`` that fits into a Java long."""
    return max(-_MOST, min(_MOST, round(value)))


def _show_value(update: Callable[[int], None], read: Callable[[], float]) -> None:
    update(_java_long(read()))


class FlinkMetrics:
    """Reports groups of metrics.

    Args:
        groups: Pairs of a group and PyFlink's metric group that it appears in.
    """

    def __init__(self, *groups: tuple[LocalMetricGroup, Any]) -> None:
        self._groups = [_Group(local, group) for local, group in groups]
        self._due = 0.0

    def report_if_due(self) -> None:
        """Report if the last report was at least half a second ago. Only for Flink's thread."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + INTERVAL_SECONDS
            self.report()

    def report(self) -> None:
        """Report new values to Flink. Only for Flink's thread."""
        for group in self._groups:
            group.report()


class _Group:
    """Reports the metrics of a group and its sub-groups.

    PyFlink has no histogram in its metric system, so quantiles are gauges over the last values; its
    gauges are whole numbers.

    PyFlink's ``gauge`` calls Python in the thread that reads it, which crashes the process (SIGSEGV in
    ``take_gil``) if the task's interpreter has just been closed. Its ``distribution`` is a Java gauge
    that holds the last value that it got.

    Args:
        local: The metrics.
        group: PyFlink's metric group.
    """

    def __init__(self, local: LocalMetricGroup, group: Any) -> None:
        self._local = local
        self._group = group
        self._followed: dict[str, Any] = {}
        self._reported: dict[str, int] = {}
        self._shown: list[tuple[str, Any, Callable[[], float]]] = []
        self._failed: set[str] = set()
        self.errors = 0
        """The number of values that could not be reported."""
        self._groups: dict[str, _Group] = {}

    def report(self) -> None:
        """Report new values to Flink."""
        if self._local.before_read is not None:
            self._local.before_read()
        for name, metric in list(self._local.metrics.items()):
            self._report_safely(name, self._report_metric, name, metric)
        for name, update, read in self._shown:
            self._report_safely(name, _show_value, update, read)
        for name, group in list(self._local.groups.items()):
            self._report_safely(name, self._report_group, name, group)

    def _report_safely(self, name: str, report: Callable[..., None], *arguments: Any) -> None:
        """Report a value. A metric must not fail the job: an error is counted, and logged once."""
        try:
            report(*arguments)
        except Exception:  # Whatever Flink raises for a value that an action gave to the metric.
            self.errors += 1
            if name not in self._failed:
                self._failed.add(name)
                _log.exception("the metric %r is not reported; further errors are only counted", name)

    def _report_metric(self, name: str, metric: Any) -> None:
        if name not in self._followed:
            self._followed[name] = self._register(name, metric)
        if isinstance(metric, LocalCounter | LocalMeter):
            self._add_counts(name, metric.get_count())

    def _report_group(self, name: str, group: LocalMetricGroup) -> None:
        if name not in self._groups:
            self._groups[name] = _Group(group, self._group.add_group(name))
        self._groups[name].report()

    def _add_counts(self, name: str, count: int) -> None:
        change = count - self._reported.get(name, 0)
        if change:
            self._reported[name] = count
            self._followed[name](_java_long(change))

    def _show_gauge(self, name: str, read: Callable[[], float]) -> None:
        """Create a gauge in Flink, which shows the value of the last report."""
        self._shown.append((name, self._group.distribution(name).update, read))

    def _register(self, name: str, metric: Any) -> Any:
        """Create Flink's metric; return the function that adds to it, for counters and meters."""
        if isinstance(metric, LocalCounter):
            return self._group.counter(name).inc
        if isinstance(metric, LocalMeter):
            return self._group.meter(name).mark_event
        if isinstance(metric, LocalGauge):
            return self._show_gauge(name, metric.get_value)
        if isinstance(metric, LocalHistogram):
            for percent in (50, 95, 99):
                self._show_gauge(f"{name}_p{percent}", lambda q=percent / 100: metric.quantile(q))
            return self._show_gauge(f"{name}_count", metric.get_count)
        raise TypeError(f"metric {name!r} is a {type(metric).__name__}")
