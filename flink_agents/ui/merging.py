"""Rows of runs in the console, which are updated with each record."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from flink_agents.runtime.serde.keys import decode_key
from flink_agents.trace.durations import RunTimes, status_of, take_times
from flink_agents.trace.forms import error_of
from flink_agents.trace.reading import RunTrace
from flink_agents.trace.records import FINAL, TraceRecord

MOST_TEXT = 500

_TIMES = tuple(field.name for field in fields(RunTimes))


@dataclass
class RunRow:
    """A run in the list of runs.

    Attributes:
        run_id: Its id.
        job: Identity of the job.
        agent: Name of the agent.
        key: Canonical text of the key.
        shown_key: The key in the form that pages show.
        sequence: Number of the run within the key.
        status: One of ``STATUSES``.
        begun: Start of its first record, in seconds since the epoch.
        ended: Time of its last record, in seconds since the epoch.
        seconds: Seconds between ``begun`` and ``ended``.
        calls: Number of recorded calls.
        error_class: Class of the last error; empty if there is none.
        error: Message and line of that error.
        waits: What it waits for, as a JSON list, if it is suspended.
        decided: Time of the record that its status comes from, in seconds since the epoch.
        queued: Seconds in the queue, of segments that have ended.
        open_queued: Seconds in the queue, of the segment that has not ended.
        suspended: Seconds between a suspension and the next segment.
        since: Start of the present phase, in seconds since the epoch; 0 if it is not known.
        doing: What it waits for now; empty if it executes code, or if that is not known.
        repeats: True if some of its records are repeated, by a replay or another attempt.
    """

    run_id: str
    job: str = ""
    agent: str = ""
    key: str = ""
    shown_key: str = ""
    sequence: int = 0
    status: str = "running"
    begun: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    calls: int = 0
    error_class: str = ""
    error: str = ""
    waits: str = "[]"
    decided: float = 0.0
    queued: float = 0.0
    open_queued: float = 0.0
    suspended: float = 0.0
    since: float = 0.0
    doing: str = ""
    repeats: bool = False

    @classmethod
    def from_run(cls, run: RunTrace) -> RunRow:
        """Create the row of a run from all of its records, as after a removal or a repeat."""
        row = cls.from_record(run.records[0])
        row.run_id = storable_text(run.run_id)
        for record in run.records:
            row.add_record(record)
        times = run.times
        for name in _TIMES:
            setattr(row, name, getattr(times, name))
        row.doing = storable_text(row.doing)[:MOST_TEXT]
        row.seconds = run.seconds
        row.waits = json.dumps(list(run.last.attributes.get("waits", ())), default=str)
        row.repeats = bool(run.repeats) or any(run_record.replayed for run_record in run.records)
        return row

    @classmethod
    def from_record(cls, record: TraceRecord) -> RunRow:
        """Create the row of a run from its first record."""
        return cls(
            record.run_id,
            storable_text(record.job),
            storable_text(record.agent),
            storable_text(record.key),
            shown_key(record.key),
            record.sequence_number,
            begun=_start_time(record),
            ended=record.time,
        )

    def update_state(self, record: TraceRecord, new: bool = False) -> None:
        """Update status, waits and times from a record.

        Args:
            record: The record, which a replay may have repeated.
            new: True if it is not repeated.
        """
        if record.kind == "run" and self.status not in FINAL:
            is_final = record.outcome in FINAL
            if is_final or record.time >= self.decided:
                if new or not record.is_end:
                    take_times(self, record)
                self.doing = storable_text(self.doing)[:MOST_TEXT]
                previous_status = self.status
                self.status = status_of(record)
                self.waits = json.dumps(list(record.attributes.get("waits", ())), default=str)
                # A replay repeats the record of a suspension: the run waits since the first one.
                if new or self.status != previous_status:
                    self.decided = record.time
        self.ended = max(self.ended, record.time)
        self.seconds = self.ended - self.begun

    def add_record(self, record: TraceRecord) -> None:
        """Update the row from a record that is not repeated."""
        self.begun = min(self.begun, _start_time(record))
        self.calls += record.kind == "call"
        error = error_of(record.attributes)
        if error:
            self.error_class = storable_text(str(error.get("error", "")))[:MOST_TEXT]
            where = f" at {error['where']}" if "where" in error else ""
            self.error = storable_text(f"{error.get('message', '')}{where}")[:MOST_TEXT]
        self.update_state(record, new=True)

    def values(self) -> tuple[Any, ...]:
        """Return the values of all fields, in the order of the columns."""
        return _fields_of(self)


COLUMNS = tuple(field.name for field in fields(RunRow))
# Not by astuple, which copies each value.
_fields_of = attrgetter(*COLUMNS)


def shown_key(text: str) -> str:
    """Return a key as pages show it: a string as it is, another value as JSON, or its canonical text."""
    try:
        # No class is imported: the trace may come from anywhere.
        value = decode_key(text, from_outside=True)
        return storable_text(value if isinstance(value, str) else json.dumps(value))
    except Exception:  # a redacted key, or one of a class
        return storable_text(text)


def storable_text(text: object) -> str:
    """Convert to text that UTF-8 can encode: surrogates become escapes."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _start_time(record: TraceRecord) -> float:
    return record.time - (record.seconds or 0.0)
