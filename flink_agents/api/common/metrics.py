"""Metrics that actions record. They appear in Flink's own metric system.

A group belongs to an agent or to one of its actions; the same name always returns the same metric. Metrics
count attempts: those of a failed attempt are not undone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Counter(ABC):
    """A count that you can increase and decrease."""

    @abstractmethod
    def inc(self, n: int = 1) -> None:
        """Add ``n``."""

    @abstractmethod
    def dec(self, n: int = 1) -> None:
        """Subtract ``n``."""

    @abstractmethod
    def get_count(self) -> int:
        """Return the count of this subtask since it started."""


class Meter(ABC):
    """A rate of events per second, over the last minute."""

    @abstractmethod
    def mark(self, n: int = 1) -> None:
        """Record ``n`` events."""

    @abstractmethod
    def get_count(self) -> int:
        """Return the number of events that this subtask marked since it started."""


class Gauge(ABC):
    """The latest value of a quantity."""

    @abstractmethod
    def set(self, value: int | float) -> None:
        """Replace the value. Flink's Python gauges hold integers, so they round it."""

    @abstractmethod
    def get_value(self) -> int | float:
        """Return the latest value; 0 before the first."""


class Histogram(ABC):
    """The distribution of the most recent 1,000 values, as quantile gauges."""

    @abstractmethod
    def update(self, value: int | float) -> None:
        """Record a value."""

    @abstractmethod
    def get_count(self) -> int:
        """Return the number of values that this subtask recorded since it started."""

    @abstractmethod
    def quantile(self, q: float) -> float:
        """Return the value below which a share ``q`` (0 to 1) of the window lies; 0.0 if empty."""


class MetricGroup(ABC):
    """A named set of metrics. The first request for a name creates the metric."""

    @abstractmethod
    def get_sub_group(self, name: str) -> MetricGroup:
        """Return the group ``name`` inside this one; created if there is none."""

    @abstractmethod
    def get_counter(self, name: str) -> Counter:
        """Return the counter ``name``; created with 0 if there is none."""

    @abstractmethod
    def get_meter(self, name: str) -> Meter:
        """Return the meter ``name``; created without events if there is none."""

    @abstractmethod
    def get_gauge(self, name: str) -> Gauge:
        """Return the gauge ``name``; created with 0 if there is none."""

    @abstractmethod
    def get_histogram(self, name: str) -> Histogram:
        """Return the histogram ``name``; created without values if there is none."""
