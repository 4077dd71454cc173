"""How metrics appear in Flink's metric system."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents.runtime.flink.metrics import FlinkMetrics
from flink_agents.runtime.metrics.run_metrics import LocalMetricGroup


class Flink:
    """PyFlink's metric group, as far as it may be used.

    It has no ``gauge``: a gauge of PyFlink calls Python in the thread that reads it, and that call ends the
    process where the task has just failed.
    """

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.groups: dict[str, Flink] = {}

    def add_group(self, name: str) -> Flink:
        return self.groups.setdefault(name, Flink())

    def counter(self, name: str) -> Any:
        return _Metric(self.values, name)

    meter = distribution = counter


class _Metric:
    def __init__(self, values: dict[str, int], name: str) -> None:
        self.values = values
        self.name = name
        values[name] = 0

    def inc(self, n: int = 1) -> None:
        self.values[self.name] += n

    mark_event = inc

    def update(self, value: int) -> None:
        self.values[self.name] = value


def test_gauges_show_what_the_last_report_read() -> None:
    local = LocalMetricGroup()
    flink = Flink()
    metrics = FlinkMetrics((local, flink))
    local.get_gauge("last").set(2.6)
    local.get_counter("orders").inc(3)
    for value in (1, 2, 3):
        local.get_sub_group("calls").get_histogram("ms").update(value)
    metrics.report()
    local.get_gauge("last").set(7)
    local.get_counter("orders").inc()
    assert flink.values == {"last": 3, "orders": 3}
    metrics.report()
    assert flink.values == {"last": 7, "orders": 4}
    assert flink.groups["calls"].values == {"ms_p50": 2, "ms_p95": 3, "ms_p99": 3, "ms_count": 3}


class _Refusing(_Metric):
    """A metric of Java: whole numbers of 64 bits."""

    def inc(self, n: int = 1) -> None:
        if not -(2**63) <= n < 2**63:
            raise OverflowError("int too large to convert")
        super().inc(n)

    def update(self, value: int) -> None:
        self.inc(value)


class OfJava(Flink):
    def counter(self, name: str) -> Any:
        if name == "refused":
            raise ValueError("no such name")
        return _Refusing(self.values, name)

    meter = distribution = counter

    def add_group(self, name: str) -> Flink:
        return self.groups.setdefault(name, OfJava())


ABSURD: list[Any] = [10**30, -(10**30), float("inf"), float("nan"), "many", None]


def test_no_number_fails_a_report(caplog: pytest.LogCaptureFixture) -> None:
    local = LocalMetricGroup()
    flink = OfJava()
    metrics = FlinkMetrics((local, flink))
    for number, value in enumerate(ABSURD):
        local.get_counter(f"counter{number}").inc(value)
        local.get_meter(f"meter{number}").mark(value)
        local.get_gauge(f"gauge{number}").set(value)
        local.get_histogram(f"histogram{number}").update(value)
    local.get_counter("refused").inc()
    local.get_counter("good").inc(2)
    metrics.report()
    metrics.report()
    assert flink.values["good"] == 2
    # Each problem is logged once.
    assert caplog.text.count("'refused' is not reported") == 1
    assert caplog.text.count("LocalGauge ignores a value that is not a number: str 'many'") == 1
