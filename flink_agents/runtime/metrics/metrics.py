"""Metrics in this process: the values that Flink reports, and those of the test kit.

``runtime.flink.metrics`` reports them to Flink; the harness reads them as they are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any, TypeVar

from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.metrics import Counter, Gauge, Histogram, Meter, MetricGroup

WINDOW = 1000
"""Number of values that a histogram holds."""

M = TypeVar("M")


_log = bounded_logger("flink_agents.metrics")


def is_number(value: object, where: Counter | Meter | Gauge | Histogram) -> bool:
    """True if a metric accepts ``value``; else it is ignored, which is logged once per metric.

    Args:
        value: The value that an action, or its library, passes to a metric.
        where: The metric.
    """
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return True
    if not getattr(where, "has_warned", False):
        where.has_warned = True  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
        text = f"{type(value).__qualname__} {value!r}"[:200]
        _log.warning("a %s ignores a value that is not a number: %s", type(where).__name__, text)
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
        if type(n) is not int and not is_number(n, self):
            return
        with self.lock:
            self.count += n

    @override
    def dec(self, n: int = 1) -> None:
        self.inc(-n)

    @override
    def get_count(self) -> int:
        return self.count


class LocalMeter(Meter):
    """A meter in this process."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    @override
    def mark(self, n: int = 1) -> None:
        if not is_number(n, self):
            return
        with self._lock:
            self._count += n

    @override
    def get_count(self) -> int:
        return self._count


class LocalGauge(Gauge):
    """A gauge in this process."""

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
        if not is_number(value, self):
            return
        with self._lock:
            self._count += 1
            self._window.append(value)

    def extend(self, values: Iterable[float], count: int) -> None:
        """Record ``count`` values; ``values`` are the latest of them."""
        with self._lock:
            self._count += count
            self._window.extend(values)

    @override
    def get_count(self) -> int:
        return self._count

    @override
    def quantile(self, q: float) -> float:
        """Return a quantile by the nearest-rank method."""
        with self._lock:
            values = sorted(self._window)
        if not values:
            return 0.0
        return float(values[min(len(values) - 1, int(q * len(values)))])


class LocalMetricGroup(MetricGroup):
    """A thread-safe group of metrics in this process.

    Args:
        name: Its name in the parent group.
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
        return self.groups.setdefault(name, LocalMetricGroup(name))

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
        """Dotted names and values of all metrics: counts, or the value of a gauge."""
        if self.before_read is not None:
            self.before_read()
        for name, metric in list(self.metrics.items()):
            yield prefix + name, metric.get_value() if isinstance(metric, Gauge) else metric.get_count()
        for name, group in list(self.groups.items()):
            yield from group.values(f"{prefix}{name}.")

    def _metric(self, name: str, kind: type[M]) -> M:
        create: Any = kind
        metric: Any = self.metrics.get(name) or self.metrics.setdefault(name, create())
        if not isinstance(metric, kind):
            raise ValueError(f"metric {name!r} is a {type(metric).__name__}, not a {kind.__name__}")
        return metric
