"""Metrics in this process."""

from __future__ import annotations

import pytest

from flink_agents.runtime.metrics.run_metrics import WINDOW, LocalMetricGroup


@pytest.fixture
def group() -> LocalMetricGroup:
    return LocalMetricGroup("agent")


def test_a_name_is_one_metric(group: LocalMetricGroup) -> None:
    assert group.get_counter("a") is group.get_counter("a")
    assert group.get_sub_group("g") is group.get_sub_group("g")
    assert group.get_sub_group("g").get_counter("a") is not group.get_counter("a")


def test_a_name_has_one_kind(group: LocalMetricGroup) -> None:
    group.get_counter("a")
    for get in (group.get_meter, group.get_gauge, group.get_histogram):
        with pytest.raises(ValueError, match="'a' is a LocalCounter"):
            get("a")


def test_values(group: LocalMetricGroup) -> None:
    counter = group.get_counter("c")
    meter = group.get_meter("m")
    gauge = group.get_gauge("g")
    assert (counter.get_count(), meter.get_count(), gauge.get_value()) == (0, 0, 0)
    counter.inc()
    counter.inc(5)
    counter.dec()
    counter.dec(2)
    meter.mark()
    meter.mark(3)
    gauge.set(1)
    gauge.set(0.5)
    group.get_sub_group("s").get_sub_group("t").get_counter("c").inc()
    assert dict(group.values()) == {"c": 3, "m": 4, "g": 0.5, "s.t.c": 1}


@pytest.mark.parametrize(("q", "expected"), [(0, 1.0), (0.5, 3.0), (0.99, 5.0), (1, 5.0)])
def test_quantiles(group: LocalMetricGroup, q: float, expected: float) -> None:
    histogram = group.get_histogram("h")
    assert histogram.quantile(q) == 0.0
    for value in (5, 1, 4, 2, 3):
        histogram.update(value)
    assert histogram.quantile(q) == expected


def test_histogram_counts_all_and_keeps_the_latest(group: LocalMetricGroup) -> None:
    histogram = group.get_histogram("h")
    for value in range(WINDOW + 10):
        histogram.update(value)
    assert histogram.get_count() == WINDOW + 10
    assert histogram.quantile(0) == 10
