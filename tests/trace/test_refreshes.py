"""Rates of ``flink-agents top``: from readings of a Flink that fetches metrics every ten seconds."""

from __future__ import annotations

import pytest

from flink_agents.cli.runs.metrics import AgentMetrics, Refreshes
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions


def fetched(second: float, stale: float, rate: float) -> float:
    """What Flink answers at a second: the count at its last fetch, at first one of long ago."""
    return 0.0 if second < 1 else rate * (1000 + 10 * ((second - 0.5) // 10)) if stale else rate * second


@each_case("stop, expected", [(1, None), (5, None), (10, None), (12, 5.0), (22, 5.0), (40, 5.0), (100, 5.0)])
def test_a_rate_is_of_what_was_fetched_twice(stop: int, expected: float | None) -> None:
    readings = Refreshes()
    for second in range(stop + 1):
        counts = {"runtime.events": fetched(second, 600, 5.0)}
        readings.add_reading([AgentMetrics("j", "RUNNING", "a", float(second), counts)])
    base = readings.base
    rate = readings.latest[0].per_second("runtime.events", base[0] if base else None)
    assert rate == (None if expected is None else pytest.approx(expected, rel=0.15))


@each_case("stop, expected", [(1, None), (20, None), (23, 0.0), (100, 0.0)])
def test_an_idle_job_has_a_rate_of_nothing_once_that_is_known(stop: int, expected: float | None) -> None:
    readings = Refreshes()
    for second in range(stop + 1):
        readings.add_reading([AgentMetrics("j", "RUNNING", "a", float(second), {"runtime.events": 7.0})])
    base = readings.base
    assert readings.latest[0].per_second("runtime.events", base[0] if base else None) == expected


def test_a_job_that_stops_comes_to_nothing_again() -> None:
    readings = Refreshes()
    rates = list[float | None]()
    for second in range(100):
        counts = {"runtime.events": fetched(min(second, 30), 600, 5.0)}
        readings.add_reading([AgentMetrics("j", "RUNNING", "a", float(second), counts)])
        base = readings.base
        rates.append(readings.latest[0].per_second("runtime.events", base[0] if base else None))
    assert rates[25] == pytest.approx(5.0, rel=0.15) and rates[-1] == 0.0


def test_a_cluster_without_agents_has_no_rates() -> None:
    readings = Refreshes()
    readings.add_reading([])
    assert (readings.latest, readings.base) == ([], [])


def test_a_fetch_that_has_not_ended_counts_once() -> None:
    readings = Refreshes()
    for second in range(26):
        # The values of one job come in a second after those of the other one.
        counts = [fetched(second, 600, 5.0), fetched(max(0, second - 1), 600, 3.0)]
        readings.add_reading(
            [
                AgentMetrics("j", "RUNNING", name, float(second), {"runtime.events": count})
                for name, count in zip("ab", counts, strict=True)
            ]
        )
    rates = [
        latest_metrics.per_second("runtime.events", base_metrics)
        for latest_metrics, base_metrics in zip(readings.latest, readings.base, strict=True)
    ]
    assert rates == [pytest.approx(5.0, rel=0.15), pytest.approx(3.0, rel=0.15)] and readings.has_rates
