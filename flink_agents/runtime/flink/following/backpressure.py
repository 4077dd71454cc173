"""Finds the operator that slows a job down, from the backpressure that Flink's REST interface reports.

Flink says of each vertex which share of its time it waits for downstream vertices, is busy, and is idle. A
vertex under backpressure is not the slow one: that is the first vertex downstream of it that Flink does not
report, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flink_agents.api.errors import ClusterError

Ask = Callable[[str], Any]
"""Returns Flink's answer for a path."""

UNKNOWN = (ClusterError, OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of an answer that is missing, or that another version of Flink gives."""

SETTLE_SECONDS = 1.0
"""Time in which Flink fetches metrics from its TaskManagers."""

BUSY = 0.5
IDLE = 0.9
"""Shares from which a task counts as busy, and as idle."""

MOST_NAME = 100
"""Maximum number of characters of a vertex's name in a message."""

MOST_NAMES = 8
"""Maximum number of slow vertices that are found for one vertex, and of names that a message has."""

_AGENT = "agent "
_END = "end of input of "


@dataclass(frozen=True)
class Vertex:
    """A vertex of a job, as Flink measured it.

    Attributes:
        name: Its name.
        level: ``ok``, ``low`` or ``high``; empty if Flink did not report it.
        blocked: The greatest share of time that one of its subtasks waited for downstream vertices.
        busy: The greatest share of time that one of its subtasks was busy.
        idle: The least share of time that one of its subtasks was idle.
        subtasks: The number of its subtasks, and of those under backpressure.
        time: When Flink last started to fetch metrics, in milliseconds; None if it did not say.
    """

    name: str
    level: str = ""
    blocked: float | None = None
    busy: float | None = None
    idle: float | None = None
    subtasks: tuple[int, int] = (0, 0)
    time: float | None = None

    @property
    def is_blocked(self) -> bool:
        """True if it waits for downstream vertices."""
        return self.level not in ("", "ok")

    @property
    def agents(self) -> list[str]:
        """The names of its agents."""
        parts = self.name.split(" -> ")
        return [part.removeprefix(_AGENT) for part in parts if part.startswith(_AGENT)]

    @property
    def shown(self) -> str:
        """Its name, cut if it is long."""
        return self.name if len(self.name) <= MOST_NAME else f"{self.name[: MOST_NAME - 4]} ..."


@dataclass(frozen=True)
class Bottleneck:
    """A slow vertex, and what waits for it.

    Attributes:
        slow: The slow vertices, the busiest first; empty if they are not known.
        blocked: The vertices under backpressure, the nearest first.
        late: The agents downstream of the slow vertices.
    """

    slow: tuple[Vertex, ...]
    blocked: tuple[Vertex, ...]
    late: tuple[str, ...] = ()

    @property
    def agents(self) -> list[str]:
        """The names of the agents that wait."""
        return [name for vertex in self.blocked for name in vertex.agents]

    @property
    def slow_agents(self) -> list[str]:
        """The names of the agents that do not keep up."""
        return [name for vertex in self.slow for name in vertex.agents]

    @property
    def meaning(self) -> str:
        """The consequence for keys of agents."""
        sentences: list[str] = []
        if self.agents:
            sentences.append(
                f"Outputs and next inputs of the agent {_join_names(self.agents)} wait for {self._cause}."
            )
        if self.slow_agents:
            room = "its tasks are busy, or have no room for more runs"
            sentences.append(f"Inputs wait upstream of the agent {_join_names(self.slow_agents)}: {room}.")
        if self.late:
            sentences.append(f"Inputs of the agent {_join_names(self.late)} come late.")
        return " ".join(sentences)

    @property
    def advice(self) -> str:
        """The change that helps."""
        if self.slow_agents:
            return "raise the parallelism of the agent, run.max-in-flight or queue.max-total"
        return f"make {self._cause} faster, or raise its parallelism; options of the agent change nothing"

    @property
    def _cause(self) -> str:
        return _join_names((vertex.shown for vertex in self.slow), "or") or "downstream operators"

    def __str__(self) -> str:
        waiting = _join_names(vertex.shown for vertex in self.blocked)
        verb = "are" if len(self.blocked) > 1 else "is"
        level = "high" if any(vertex.level == "high" for vertex in self.blocked) else "low"
        counts = [vertex.subtasks for vertex in self.blocked if 0 < vertex.subtasks[1] < vertex.subtasks[0]]
        part = f" in {counts[0][1]} of {counts[0][0]} subtasks" if counts else ""
        if not self.slow:
            return f"{waiting} {verb} under {level} backpressure{part}: downstream operators do not keep up."
        slow = _join_names(map(_busy_text, self.slow), "or")
        return f"{waiting} {verb} under {level} backpressure{part}, caused downstream by {slow}."


@dataclass(frozen=True)
class JobFlow:
    """The vertices of a running job, and how its data flows.

    Attributes:
        vertices: The vertices by id.
        downstream: The ids of the vertices that read a vertex, by its id.
        asked_at: The cluster's clock at the time of the request, in milliseconds; None if unknown.
        job: The id of the job.
    """

    vertices: dict[str, Vertex]
    downstream: dict[str, tuple[str, ...]]
    asked_at: float | None = None
    job: str = ""

    @property
    def is_old(self) -> bool:
        """True if Flink fetches newer metrics just now, or has none yet.

        Meanwhile, it answers with those of the last request, which can be hours old.
        """
        times = [vertex.time for vertex in self.vertices.values() if vertex.time is not None]
        if self.asked_at is None or not times:
            return False
        return max(times) >= self.asked_at - 1000 * SETTLE_SECONDS

    def bottlenecks(self, agents: Collection[str] = ()) -> list[Bottleneck]:
        """Return the slow vertices that cause backpressure, with the vertices that wait for each.

        Args:
            agents: If it is not empty, only those that matter to one of these agents.
        """
        blocked_by_cause: dict[tuple[str, ...], list[tuple[int, Vertex]]] = {}
        causes = self._distances()
        for name, vertex in self.vertices.items():
            if vertex.is_blocked and _END not in vertex.name:
                distance, slow = causes.get(name, (0, ()))
                blocked_by_cause.setdefault(slow, []).append((distance, vertex))
        bottlenecks = [
            Bottleneck(
                tuple(self.vertices[vertex_id] for vertex_id in slow),
                tuple(vertex for _, vertex in sorted(blocked, key=lambda pair: pair[0])),
                tuple(self._agents_downstream(slow)),
            )
            for slow, blocked in blocked_by_cause.items()
        ]
        return [
            bottleneck
            for bottleneck in bottlenecks
            if not agents or {*bottleneck.agents, *bottleneck.slow_agents, *bottleneck.late} & {*agents}
        ]

    def idle_agents(self) -> list[str]:
        """Return the agents whose tasks have nothing to do: no input arrives."""
        return [
            name
            for vertex in self.vertices.values()
            if (vertex.idle or 0.0) >= IDLE and not vertex.is_blocked
            for name in vertex.agents
        ]

    def blocked_share(self, agent: str) -> float | None:
        """Return the share of time that an agent waits for downstream vertices; None if it is not known."""
        shares = [vertex.blocked for vertex in self.vertices.values() if agent in vertex.agents]
        return max((share for share in shares if share is not None), default=None)

    def _agents_downstream(self, slow: tuple[str, ...]) -> Iterator[str]:
        reached = {*slow}
        edge = [*slow]
        while edge:
            edge = [
                reader for name in edge for reader in self.downstream.get(name, ()) if reader not in reached
            ]
            reached.update(edge)
            for vertex_id in dict.fromkeys(edge):
                yield from self.vertices[vertex_id].agents

    def _distances(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return for each vertex under backpressure the distance to its slow vertices, and their ids.

        The search goes upstream from each vertex that keeps up, the busiest first. A vertex that has enough
        causes ends it: those upstream of it have the same ones.
        """
        upstream: dict[str, list[str]] = {}
        for name, readers in self.downstream.items():
            if self.vertices[name].is_blocked:
                for reader in readers:
                    upstream.setdefault(reader, []).append(name)
        causes: dict[str, list[tuple[int, str]]] = {}
        ends = [name for name, vertex in self.vertices.items() if vertex.level and not vertex.is_blocked]
        for end in sorted(ends, key=lambda end_id: -(self.vertices[end_id].busy or 0.0)):
            # One output can keep up although another does not.
            most = MOST_NAMES if (self.vertices[end].busy or 0.0) >= BUSY else 1
            reached = {end}
            edge = [end]
            distance = 0
            while edge:
                distance += 1
                above = dict.fromkeys(
                    source_id for edge_id in edge for source_id in upstream.get(edge_id, ())
                )
                edge = [
                    source_id
                    for source_id in above
                    if source_id not in reached and len(causes.get(source_id, ())) < most
                ]
                reached.update(edge)
                for vertex_id in edge:
                    causes.setdefault(vertex_id, []).append((distance, end))
        return {
            name: (min(distance for distance, _ in slow), tuple(end for _, end in slow))
            for name, slow in causes.items()
        }


def _join_names(names: Iterable[str], word: str = "and") -> str:
    all_names = list(names)
    more = [f"{len(all_names) - MOST_NAMES} more"] if len(all_names) > MOST_NAMES else []
    return f" {word} ".join([*all_names[:MOST_NAMES], *more])


def _busy_text(vertex: Vertex) -> str:
    share = "" if vertex.busy is None else f" ({100 * vertex.busy:.0f} % busy)"
    return f"{vertex.shown}{share}"


def read_flow(ask: Ask, job: str) -> JobFlow:
    """Return the data flow of a running job. A vertex that Flink does not report has no level.

    Args:
        ask: Asks the cluster.
        job: The id of the job.
    """
    place = f"/jobs/{job}"
    details = ask(place)
    vertex_names = {str(vertex["id"]): str(vertex["name"]) for vertex in details.get("vertices", ())}
    vertices = {
        name: _read_vertex(ask, f"{place}/vertices/{name}", shown) for name, shown in vertex_names.items()
    }
    readers: dict[str, list[str]] = {}
    for reader, read in _read_edges(details.get("plan")):
        if reader in vertices and read in vertices:
            readers.setdefault(read, []).append(reader)
    downstream = {read: tuple(dict.fromkeys(reader_ids)) for read, reader_ids in readers.items()}
    return JobFlow(vertices, downstream, _as_number(details.get("now")), job)


def settled_flow(ask: Ask, job: str) -> JobFlow:
    """Return the data flow of a running job, according to new metrics. See :func:`read_flow`.

    If Flink answers with old metrics while it fetches new ones, this waits for a second and reads again.
    """
    flow = read_flow(ask, job)
    if flow.is_old:
        time.sleep(SETTLE_SECONDS)
        flow = read_flow(ask, job)
    return flow


def running_flows(ask: Ask) -> Iterator[tuple[str, JobFlow]]:
    """Yield the name of each running job, and how its data flows."""
    for job in ask("/jobs/overview").get("jobs", ()):
        if job["state"] == "RUNNING":
            try:
                flow = read_flow(ask, str(job["jid"]))
            except UNKNOWN:
                continue  # The job ended meanwhile; others did not.
            yield str(job["name"]), flow


def _read_edges(plan: Any) -> Iterator[tuple[str, str]]:
    """Yield an edge of a job's plan as the ids of the vertex that reads and of the one that it reads."""
    try:
        for node in plan["nodes"]:
            for read in node.get("inputs") or ():
                yield str(node["id"]), str(read["id"])
    except UNKNOWN:
        return


def _read_vertex(ask: Ask, place: str, name: str) -> Vertex:
    try:
        reply = ask(f"{place}/backpressure")
        level = reply.get("backpressureLevel") or reply.get("backpressure-level") or ""
        subtasks: list[dict[str, Any]] = reply.get("subtasks") or []
        levels = [str(subtask.get("backpressureLevel", "ok")) for subtask in subtasks]
        return Vertex(
            name,
            str(level),
            max(_read_shares(subtasks, "ratio"), default=None),
            # Flink says of "end of input", which does nothing, that it is busy.
            None if _END in name else max(_read_shares(subtasks, "busyRatio"), default=None),
            min(_read_shares(subtasks, "idleRatio"), default=None),
            (len(levels), sum(subtask_level != "ok" for subtask_level in levels)),
            _as_number(reply.get("end-timestamp")),
        )
    except UNKNOWN:
        return Vertex(name)


def _read_shares(subtasks: Iterable[dict[str, Any]], name: str) -> list[float]:
    """Return the values of a share; Flink has none of a source of its old interface, which is NaN."""
    shares = [_as_number(subtask.get(name)) for subtask in subtasks]
    return [share for share in shares if share is not None]


def _as_number(value: Any) -> float | None:
    """Return ``value`` if it is a finite number, otherwise None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
