"""Durations as texts for people, which options read again."""

from __future__ import annotations

from datetime import timedelta

from flink_agents import Configuration
from flink_agents.api.common.durations import duration_text
from tests.suite.tables import each


@each(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (60, "60 s"),
        (90, "90 s"),
        (600, "10 min"),
        (3600, "1 h"),
        (5400, "90 min"),
        (3601, "3601 s"),
        (86_400, "1 d"),
        (259_200.0, "3 d"),
        (604_800, "7 d"),
    ],
)
def test_a_duration_has_the_longest_unit_that_it_is_a_multiple_of(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    if seconds >= 1:
        assert Configuration({"signals.ttl": text}).get("signals.ttl") == timedelta(seconds=seconds)
