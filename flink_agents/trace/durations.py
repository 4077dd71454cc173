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
        status: Status of the run.
        begun: Start of its first record, in seconds since the epoch.
        ended: Time of its last record, in seconds since the epoch.
        decided: Time of the record that its status comes from, in seconds since the epoch.
        queued: Seconds in the queue of the key, in segments that have ended.
        open_queued: Seconds in the queue of the key, in the segment that has not ended.
        suspended: Seconds between suspensions and the segments after them.
        since: Start of the present phase, in seconds since the epoch; 0 if it is not known.
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
    """The times of one run; see :class:`Timed`."""

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
        queued: Seconds behind earlier runs of its key.
        running: Seconds with its own code and calls.
        suspended: Seconds in suspension.
    """

    queued: float
    running: float
    suspended: float

    @property
    def total(self) -> float:
        """Seconds since the start of the run."""
        return self.queued + self.running + self.suspended


def status_of(record: TraceRecord) -> str:
    """Return the status that a run has after a record about the run itself."""
    return RUNNING if record.kind != "run" or record.outcome == STARTED else record.outcome


def take_times(times: Timed, record: TraceRecord) -> None:
    """Add the times in a record of the run itself. Call this before its status is updated from the record."""
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
    """Divide the time of a run into parts, until ``now`` if it has not ended."""
    is_open = times.status not in (*FINAL, "failed")
    until = max(times.ended, now) if is_open else times.ended
    queued = times.queued + times.open_queued
    if times.status == WAITING and times.doing == QUEUED_FOR and times.since:
        queued += max(0.0, until - times.since)
    suspended = times.suspended
    if times.status == "suspended":
        suspended += max(0.0, until - times.decided)
    return Spent(queued, max(0.0, until - times.begun - queued - suspended), suspended)


def as_number(value: Any) -> float:
    """Return a number of a record as a float; 0 for another value, as a record may come from anywhere."""
    return float(value) if is_number(value) else 0.0
