"""Reads the metrics of agents from Flink's REST interface, summed up over subtasks.

Flink fetches them only now and then, so rates are computed between the times at which they changed.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from flink_agents.api.errors import ClusterError, ClusterUnavailableError
from flink_agents.runtime.flink.following.rest import (
    ENDED_STATES,
    ClusterRest,
    jobs_in,
    metrics_at,
    vertices_of,
)

_OWN = re.compile(r"(?:^|\.)flink_agents\.(?P<rest>.+)$")
_AT_ONCE = 40
"""Maximum number of metrics per request: their names are part of its URL."""


@dataclass
class AgentMetrics:
    """The metrics of an agent at one moment.

    Attributes:
        job: Name of the job.
        state: State of the job in Flink.
        agent: Name of the agent.
        time: When they were read, in seconds of the monotonic clock.
        sums: Sum over all subtasks, by the name of the metric below the group of the agent.
        most: Maximum over all subtasks, by the same names.
        job_id: Flink's id of the job: several jobs can have one name.
    """

    job: str
    state: str
    agent: str
    time: float
    sums: dict[str, float] = field(default_factory=dict[str, float])
    most: dict[str, float] = field(default_factory=dict[str, float])
    job_id: str = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Key that all readings of one agent share."""
        return self.job_id, self.job, self.agent

    def per_second(self, name: str, previous_metrics: AgentMetrics | None) -> float | None:
        """Return the growth of a counter per second since an earlier reading; None if there is none."""
        if previous_metrics is None or self.time <= previous_metrics.time or name not in self.sums:
            return None
        grown = self.sums[name] - previous_metrics.sums.get(name, 0.0)
        # After a restart, counters start at zero.
        return max(0.0, grown) / (self.time - previous_metrics.time)

    def total_per_second(self, ending: str, previous_metrics: AgentMetrics | None) -> float | None:
        """Return the growth per second of all counters whose names end with ``ending``, as of all models."""
        rates = [self.per_second(name, previous_metrics) for name in self.sums if name.endswith(ending)]
        known_rates = [rate for rate in rates if rate is not None]
        return sum(known_rates) if known_rates else None


def read_metrics(rest_client: ClusterRest) -> Iterator[AgentMetrics]:
    """Yield the metrics of each agent of each job that has not ended.

    Raises:
        ClusterUnavailableError: The cluster does not answer.
    """
    for job in jobs_in(rest_client.get):
        if job["state"] in ENDED_STATES:
            continue
        agents: list[AgentMetrics] = []
        try:
            for vertex in vertices_of(rest_client.get, job["jid"]):
                agents += _read_agents(rest_client, job, vertex["id"])
        except ClusterUnavailableError:
            raise
        except ClusterError:
            # The job has ended meanwhile; others have not.
            continue
        yield from agents


def _read_agents(rest_client: ClusterRest, job: dict[str, Any], vertex: str) -> Iterator[AgentMetrics]:
    place = f"/jobs/{job['jid']}/vertices/{vertex}/subtasks/metrics"
    names = [metric["id"] for metric in metrics_at(rest_client.get, place) if _OWN.search(metric["id"])]
    metrics_by_agent: dict[str, AgentMetrics] = {}
    for start in range(0, len(names), _AT_ONCE):
        for value in _read_values(rest_client, place, names[start : start + _AT_ONCE]):
            match = _OWN.search(value["id"])
            if match is None:
                continue
            agent, _, name = match["rest"].partition(".")
            if agent not in metrics_by_agent:
                metrics_by_agent[agent] = AgentMetrics(
                    job["name"], job["state"], agent, time.monotonic(), job_id=str(job["jid"])
                )
            for figures, kind in (
                (metrics_by_agent[agent].sums, "sum"),
                (metrics_by_agent[agent].most, "max"),
            ):
                if (number := _as_number(value.get(kind, 0.0))) is not None:
                    figures[name] = number
    yield from metrics_by_agent.values()


def _as_number(value: Any) -> float | None:
    """Return the value of a metric as a float; None if it is not a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_values(rest_client: ClusterRest, place: str, names: Sequence[str]) -> list[dict[str, Any]]:
    wanted = ",".join(quote(name, safe="") for name in names)
    return metrics_at(rest_client.get, f"{place}?get={wanted}&agg=sum,max")


FETCH_SECONDS = 10.0
"""Time after which Flink fetches the metrics of TaskManagers again (``metrics.fetcher.update-interval``)."""

IDLE_SECONDS = 2.2 * FETCH_SECONDS
"""Time after which metrics that have not changed are those of an idle cluster."""

WINDOW_SECONDS = 3 * FETCH_SECONDS
"""Time that rates span."""


class Refreshes:
    """Readings at which Flink had fetched new metrics.

    A request makes Flink fetch metrics in the background, and gets the earlier values. So the age of the
    first reading is unknown, and readings in between repeat the last one: rates are computed from neither.
    """

    def __init__(self) -> None:
        self._changed: deque[list[AgentMetrics]] = deque()
        self._latest: list[AgentMetrics] = []
        self._started_at: float | None = None
        self._first: list[AgentMetrics] = []
        self._is_stable = False

    @property
    def latest(self) -> list[AgentMetrics]:
        """The last reading, with the times at which its values were first seen."""
        if not self._changed or self._is_idle:
            return self._latest
        seen = {metrics.identity: metrics.time for metrics in self._changed[-1]}
        return [replace(metrics, time=seen.get(metrics.identity, metrics.time)) for metrics in self._latest]

    @property
    def base(self) -> list[AgentMetrics]:
        """The earlier reading from which rates are computed; empty as long as there is none."""
        if len(self._changed) >= 2:
            return self._changed[0]
        if not self._is_idle:
            return []
        return self._changed[-1] if self._changed else self._first

    @property
    def has_rates(self) -> bool:
        """True if rates can be computed, and the last fetch has ended."""
        return bool(self.base) and self._is_stable

    @property
    def _is_idle(self) -> bool:
        if len(self._changed) >= 2 or not self._latest or self._started_at is None:
            return False
        since = _reading_time(self._changed[-1]) if self._changed else self._started_at
        return _reading_time(self._latest) - since >= IDLE_SECONDS

    def add_reading(self, reading: Sequence[AgentMetrics]) -> None:
        """Add a reading, unless it has no agents or repeats the last one."""
        if not reading:
            return
        now = list(reading)
        if self._started_at is None:
            self._started_at = _reading_time(now)
            self._first = now
        elif _values_of(now) != _values_of(self._latest):
            self._accept_reading(now)
            self._is_stable = False
        else:
            self._is_stable = True
        self._latest = now
        while (
            len(self._changed) > 1 and _reading_time(now) - _reading_time(self._changed[0]) > WINDOW_SECONDS
        ):
            self._changed.popleft()

    def _accept_reading(self, now: list[AgentMetrics]) -> None:
        """Store a reading with new values. Soon after another one, it replaces that: the fetch went on."""
        if self._changed and _reading_time(now) - _reading_time(self._changed[-1]) < FETCH_SECONDS / 2:
            metrics_by_identity = {metrics.identity: metrics for metrics in self._changed[-1]}
            merged = [metrics_by_identity.get(metrics.identity, metrics) for metrics in now]
            self._changed[-1] = [
                old if old.sums == new.sums else new for old, new in zip(merged, now, strict=True)
            ]
        else:
            self._changed.append(now)


def _reading_time(reading: Sequence[AgentMetrics]) -> float:
    return reading[0].time


def _values_of(reading: Sequence[AgentMetrics]) -> dict[Any, Any]:
    return {metrics.identity: metrics.sums for metrics in reading}
