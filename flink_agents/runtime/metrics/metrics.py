"""Metrics that live in this process: the counts behind Flink's, and the test kit's.

``runtime.flink.metrics`` reports them to Flink; the harness reads them as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any, TypeVar

from flink_agents.api.metrics import Counter, Gauge, Histogram, Meter, MetricGroup

WINDOW = 1000
"""How many values a histogram keeps."""

M = TypeVar("M")


class LocalCounter(Counter):
    """A counter in this process."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    def inc(self, n: int = 1) -> None:
        """See :class:`Counter`."""
        with self._lock:
            self._count += n

    def dec(self, n: int = 1) -> None:
        """See :class:`Counter`."""
        self.inc(-n)

    def get_count(self) -> int:
        """See :class:`Counter`."""
        return self._count


class LocalMeter(Meter):
    """A meter in this process."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    def mark(self, n: int = 1) -> None:
        """See :class:`Meter`."""
        with self._lock:
            self._count += n

    def get_count(self) -> int:
        """See :class:`Meter`."""
        return self._count


class LocalGauge(Gauge):
    """A gauge in this process."""

    def __init__(self) -> None:
        self._value: int | float = 0

    def set(self, value: int | float) -> None:
        """See :class:`Gauge`."""
        self._value = value

    def get_value(self) -> int | float:
        """See :class:`Gauge`."""
        return self._value


class LocalHistogram(Histogram):
    """A histogram over the last :data:`WINDOW` values."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()
        self._window: deque[float] = deque(maxlen=WINDOW)

    def update(self, value: int | float) -> None:
        """See :class:`Histogram`."""
        with self._lock:
            self._count += 1
            self._window.append(value)

    def extend(self, values: Iterable[float], count: int) -> None:
        """Record ``count`` values, of which ``values`` are the latest."""
        with self._lock:
            self._count += count
            self._window.extend(values)

    def get_count(self) -> int:
        """See :class:`Histogram`."""
        return self._count

    def quantile(self, q: float) -> float:
        """See :class:`Histogram`; the nearest-rank method."""
        with self._lock:
            values = sorted(self._window)
        if not values:
            return 0.0
        return float(values[min(len(values) - 1, int(q * len(values)))])


class LocalMetricGroup(MetricGroup):
    """A group of metrics in this process, which any thread may use.

    Args:
        name: Its name in the group around it.
        before_read: Called before all values are read, and may bring them up to date; or None.

    Attributes:
        before_read: See above.
    """

    def __init__(self, name: str = "", before_read: Callable[[], None] | None = None) -> None:
        self.name = name
        self.before_read = before_read
        self.metrics: dict[str, Counter | Meter | Gauge | Histogram] = {}
        self.groups: dict[str, LocalMetricGroup] = {}

    def get_sub_group(self, name: str) -> LocalMetricGroup:
        """See :class:`MetricGroup`."""
        return self.groups.setdefault(name, LocalMetricGroup(name))

    def get_counter(self, name: str) -> Counter:
        """See :class:`MetricGroup`."""
        return self._metric(name, LocalCounter)

    def get_meter(self, name: str) -> Meter:
        """See :class:`MetricGroup`."""
        return self._metric(name, LocalMeter)

    def get_gauge(self, name: str) -> Gauge:
        """See :class:`MetricGroup`."""
        return self._metric(name, LocalGauge)

    def get_histogram(self, name: str) -> LocalHistogram:
        """See :class:`MetricGroup`."""
        return self._metric(name, LocalHistogram)

    def values(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Dotted names and values of all metrics: counts, or the value of a gauge."""
        if self.before_read is not None:
            self.before_read()
        for name, metric in list(self.metrics.items()):
            yield prefix + name, metric.get_value() if isinstance(metric, Gauge) else metric.get_count()
        for name, group in list(self.groups.items()):
            yield from group.values(f"{prefix}{name}.")

    def _metric(self, name: str, kind: type[M]) -> M:
        made: Any = kind
        metric: Any = self.metrics.get(name) or self.metrics.setdefault(name, made())
        if not isinstance(metric, kind):
            raise ValueError(f"metric {name!r} is a {type(metric).__name__}, not a {kind.__name__}")
        return metric
