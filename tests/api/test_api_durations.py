"""Durations as texts for people, which options read again, and as services request them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from flink_agents import Configuration
from flink_agents.api.common import durations
from flink_agents.api.common.durations import LONGEST, duration_text, requested_pause
from tests.suite.tables import each_case


@each_case(
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


NOW = 784111777 - 9
"""Nine seconds before the time that the examples of RFC 9110 show."""

REQUESTED: dict[Any, float | None] = {
    # Seconds.
    "0": 0,
    "9": 9,
    " 9 ": 9,
    "+9": 9,
    "2.5": 2.5,
    ".5": 0.5,
    "-1": 0,
    "9" * 400: LONGEST.total_seconds(),
    7: 7,
    -3: 0,
    1e300: LONGEST.total_seconds(),
    timedelta(minutes=1): 60,
    timedelta.max: LONGEST.total_seconds(),
    # Dates.
    "Sun, 06 Nov 1994 08:49:37 GMT": 9,
    "Sunday, 06-Nov-94 08:49:37 GMT": 9,
    "Sun Nov  6 08:49:37 1994": 9,
    "Sun, 06 Nov 1994 08:49:37 -0000": 9,
    "Sun, 06 Nov 1994 08:49:37": 9,
    "Sun, 06 Nov 1994 08:49:37 UTC": 9,
    "Sun, 06 Nov 1994 10:49:37 +0200": 9,
    "Sun, 06 Nov 1994 03:49:37 EST": 9,
    "sun, 06 nov 1994 08:49:37 gmt": 9,
    "Sun, 06 Nov 1994 08:49:60 GMT": 32,
    "Sun, 06 Nov 1994 08:49:00 GMT": 0,
    "Sunday, 06-Nov-94 08:49:00 GMT": 0,
    "Sun Nov  6 08:49:00 1994": 0,
    "Tue, 15 Nov 1994 12:45:26 GMT": 791758,
    "Fri, 31 Dec 9999 23:59:59 -0500": LONGEST.total_seconds(),
    # Neither.
    None: None,
    True: None,
    object(): None,
    "": None,
    "soon": None,
    "nan": None,
    "inf": None,
    "1_0": None,
    "9 s": None,
    "Mon, 99 Foo 2020": None,
    "Sun, 99 Nov 1994 08:49:37 GMT": None,
    "1994-11-06T08:49:37Z": None,
    float("nan"): None,
    float("inf"): None,
}


@pytest.fixture
def zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(durations, "time", SimpleNamespace(time=lambda: NOW))
    yield ["UTC", "America/New_York", "Asia/Kolkata", "EST5EDT"]
    monkeypatch.undo()
    time.tzset()


@each_case(("value", "seconds"), REQUESTED.items())
def test_a_service_requests_a_pause_in_any_time_zone(
    monkeypatch: pytest.MonkeyPatch, zones: list[str], value: Any, seconds: float | None
) -> None:
    for zone in zones:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert requested_pause(value) == seconds, zone
