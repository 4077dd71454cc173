"""Rates of metrics that Flink fetches only now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flink_agents.cli.runs.metrics import AgentMetrics

FETCH_SECONDS = 10.0
"""Time after which Flink fetches the metrics of TaskManagers again (``metrics.fetcher.update-interval``)."""

IDLE_SECONDS = 2.2 * FETCH_SECONDS
"""Time after which metrics that have not changed are those of an idle cluster."""

WINDOW_SECONDS = 3 * FETCH_SECONDS
"""Time that rates span."""


class Refreshes:
    """Readings at which Flink had fetched new values.

    A request makes Flink fetch in the background, and is answered with the values from before. So the first
    reading can be of any age, and readings in between repeat the last one: both are no base of a rate.
    """

    def __init__(self) -> None:
        self._changed: deque[list[AgentMetrics]] = deque()
        self._latest: list[AgentMetrics] = []
        self._begun: float | None = None
        self._first: list[AgentMetrics] = []
        self._settled = False

    @property
    def latest(self) -> list[AgentMetrics]:
        """The last reading. Its times are those at which its values were first seen."""
        if not self._changed or self._is_idle:
            return self._latest
        seen = {(one.job, one.agent): one.time for one in self._changed[-1]}
        return [replace(one, time=seen.get((one.job, one.agent), one.time)) for one in self._latest]

    @property
    def base(self) -> list[AgentMetrics]:
        """The reading from which rates count; empty if they are not known yet."""
        if len(self._changed) >= 2:
            return self._changed[0]
        if not self._is_idle:
            return []
        return self._changed[-1] if self._changed else self._first

    @property
    def known(self) -> bool:
        """True if rates are known, and the last fetch has ended."""
        return bool(self.base) and self._settled

    @property
    def _is_idle(self) -> bool:
        if len(self._changed) >= 2 or not self._latest or self._begun is None:
            return False
        since = _time(self._changed[-1]) if self._changed else self._begun
        return _time(self._latest) - since >= IDLE_SECONDS

    def add(self, reading: Sequence[AgentMetrics]) -> None:
        """Add a reading. One without agents is left out."""
        if not reading:
            return
        now = list(reading)
        if self._begun is None:
            self._begun, self._first = _time(now), now
        elif _values(now) != _values(self._latest):
            self._take(now)
            self._settled = False
        else:
            self._settled = True
        self._latest = now
        while len(self._changed) > 1 and _time(now) - _time(self._changed[0]) > WINDOW_SECONDS:
            self._changed.popleft()

    def _take(self, now: list[AgentMetrics]) -> None:
        """Take a reading with new values. One soon after another completes that: the fetch had not ended."""
        if self._changed and _time(now) - _time(self._changed[-1]) < FETCH_SECONDS / 2:
            known = {(one.job, one.agent): one for one in self._changed[-1]}
            merged = [known.get((one.job, one.agent), one) for one in now]
            self._changed[-1] = [
                old if old.sums == new.sums else new for old, new in zip(merged, now, strict=True)
            ]
        else:
            self._changed.append(now)


def _time(reading: Sequence[AgentMetrics]) -> float:
    return reading[0].time


def _values(reading: Sequence[AgentMetrics]) -> dict[Any, Any]:
    return {(one.job, one.agent): one.sums for one in reading}
