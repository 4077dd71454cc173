"""Reads the metrics of agents from Flink's REST interface, summed up over subtasks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from flink_agents.runtime.flink.following.rest import ClusterRest

_OWN = re.compile(r"(?:^|\.)flink_agents\.(?P<rest>.+)$")
_AT_ONCE = 40
"""Maximum number of metrics per request: their names are part of its URL."""


@dataclass
class AgentMetrics:
    """The metrics of an agent at one moment.

    Attributes:
        job: Name of the job.
        state: Its state.
        agent: Name of the agent.
        time: When they were read, in seconds of a clock that never goes back.
        sums: The sum over all subtasks, by name below the group of the agent.
        most: The greatest value of any subtask.
    """

    job: str
    state: str
    agent: str
    time: float
    sums: dict[str, float] = field(default_factory=dict[str, float])
    most: dict[str, float] = field(default_factory=dict[str, float])

    def per_second(self, name: str, before: AgentMetrics | None) -> float | None:
        """Return the growth of a counter a second since an earlier reading; None if that is not known."""
        if before is None or self.time <= before.time or name not in self.sums:
            return None
        grown = self.sums[name] - before.sums.get(name, 0.0)
        # After a restart, counters start at zero.
        return max(0.0, grown) / (self.time - before.time)

    def total_per_second(self, ending: str, before: AgentMetrics | None) -> float | None:
        """Return the same for all counters whose names end so, such as those of several chat models."""
        rates = [self.per_second(name, before) for name in self.sums if name.endswith(ending)]
        known = [one for one in rates if one is not None]
        return sum(known) if known else None


def read_metrics(rest: ClusterRest) -> Iterator[AgentMetrics]:
    """Yield the metrics of each agent of each job that has not ended.

    Raises:
        ClusterUnavailableError: The cluster does not answer.
        ClusterError: A job has ended meanwhile.
    """
    for job in rest.get("/jobs/overview").get("jobs", ()):
        if job["state"] in ("FINISHED", "CANCELED", "FAILED"):
            continue
        for vertex in rest.get(f"/jobs/{job['jid']}").get("vertices", ()):
            yield from _agents(rest, job, str(vertex["id"]))


def _agents(rest: ClusterRest, job: dict[str, Any], vertex: str) -> Iterator[AgentMetrics]:
    place = f"/jobs/{job['jid']}/vertices/{vertex}/subtasks/metrics"
    names = [one["id"] for one in rest.get(place) if _OWN.search(one["id"])]
    found: dict[str, AgentMetrics] = {}
    for start in range(0, len(names), _AT_ONCE):
        for value in _values(rest, place, names[start : start + _AT_ONCE]):
            own = _OWN.search(value["id"])
            if own is None:
                continue
            agent, _, name = own["rest"].partition(".")
            if agent not in found:
                found[agent] = AgentMetrics(job["name"], job["state"], agent, time.monotonic())
            found[agent].sums[name] = float(value.get("sum", 0.0))
            found[agent].most[name] = float(value.get("max", 0.0))
    yield from found.values()


def _values(rest: ClusterRest, place: str, names: Sequence[str]) -> list[dict[str, Any]]:
    wanted = ",".join(quote(name, safe="") for name in names)
    return rest.get(f"{place}?get={wanted}&agg=sum,max")
