"""The time that a run spends queued, running and suspended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flink_agents.trace.forms import is_number
from flink_agents.trace.records import FINAL, QUEUED_FOR, RUNNING, STARTED, WAITING, TraceRecord


class Timed(Protocol):
    """The times of a run, from its records in the order of time.

    Attributes:
        status: Its status.
        begun: When its first record began, in seconds since the epoch.
        ended: When its last record was made.
        decided: When the record was made that the status comes from.
        queued: Seconds in the queue, of segments that have ended.
        open_queued: Seconds in the queue, of the segment that has not ended.
        suspended: Seconds between a suspension and the next segment.
        since: Begin of the present phase; 0 if it is not known.
        doing: What it waits for now; empty if it executes code, or if that is not known.
    """

    status: str
    begun: float
    ended: float
    decided: float
    queued: float
    open_queued: float
    suspended: float
    since: float
    doing: str


@dataclass
class RunTimes:
    """The times of one run. See :class:`Timed`."""

    status: str = RUNNING
    begun: float = 0.0
    ended: float = 0.0
    decided: float = 0.0
    queued: float = 0.0
    open_queued: float = 0.0
    suspended: float = 0.0
    since: float = 0.0
    doing: str = ""


@dataclass(frozen=True)
class Spent:
    """Seconds that a run has spent so far.

    Attributes:
        queued: Behind earlier runs of its key.
        running: With its own code and calls.
        suspended: Suspended.
    """

    queued: float
    running: float
    suspended: float

    @property
    def total(self) -> float:
        """Seconds since its begin."""
        return self.queued + self.running + self.suspended


def status_of(record: TraceRecord) -> str:
    """Return the status of a run whose latest record this is."""
    return RUNNING if record.kind != "run" or record.outcome == STARTED else record.outcome


def take_times(times: Timed, record: TraceRecord) -> None:
    """Add a record of the run itself, before its status and the time of that are changed."""
    if record.kind != "run":
        return
    begin = record.time - (record.seconds or 0.0)
    since = as_number(record.attributes.get("since"))
    if times.status == "suspended":
        resumed = begin if record.is_end else since or record.time
        times.suspended += max(0.0, resumed - times.decided)
    if record.is_end:
        if times.doing == QUEUED_FOR or times.open_queued:
            # Its input waited in state before the segment began.
            times.queued += max(0.0, begin - times.begun)
        phases = record.attributes.get("phases")
        times.queued += as_number(phases.get("queued")) if isinstance(phases, Mapping) else 0.0
        times.open_queued = times.since = 0.0
        times.doing = ""
    elif record.outcome in (WAITING, RUNNING):
        if times.doing == QUEUED_FOR and times.since:
            times.open_queued += max(0.0, (since or record.time) - times.since)
        times.doing = str(record.attributes.get("for") or "")
        times.since = since or (record.time if times.doing == QUEUED_FOR else 0.0)


def time_spent(times: Timed, now: float) -> Spent:
    """Return the time that a run has spent, until now if it has not ended."""
    open_ = times.status not in (*FINAL, "failed")
    until = max(times.ended, now) if open_ else times.ended
    queued = times.queued + times.open_queued
    if times.status == WAITING and times.doing == QUEUED_FOR and times.since:
        queued += max(0.0, until - times.since)
    suspended = times.suspended
    if times.status == "suspended":
        suspended += max(0.0, until - times.decided)
    return Spent(queued, max(0.0, until - times.begun - queued - suspended), suspended)


def as_number(value: Any) -> float:
    """Return a number of a record, which may come from anywhere; 0 if it is none."""
    return float(value) if is_number(value) else 0.0
