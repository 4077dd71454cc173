"""The timeline of a run: bars on an axis that shortens long pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.trace.durations import as_number
from flink_agents.trace.reading import RunTrace
from flink_agents.trace.records import RUNNING, WAITING, TraceRecord
from flink_agents.trace.rendering import waits_for

WIDTH = 1000.0
SQUEEZED = 0.12
"""Share of the axis for a long pause."""

LONG = 0.3
"""A pause is long if it takes more than this share of the remaining time."""

MOST_BARS = 500

MOST_PAUSES = 4
"""Maximum number of pauses that are shortened."""


@dataclass(frozen=True)
class Bar:
    """A row of the timeline.

    Attributes:
        label: Its text.
        kind: Kind of the record; ``waiting`` for a pause between two segments.
        outcome: Its outcome.
        depth: Its depth in the tree of records.
        x: Start of the bar, on an axis of 1000.
        width: Width of the bar, on an axis of 1000.
        seconds: Duration in seconds; None if it is unknown.
        replayed: True if all of its work came from the journal.
        attributes: Further facts of its record.
    """

    label: str
    kind: str
    outcome: str
    depth: int
    x: float
    width: float
    seconds: float | None
    replayed: bool
    attributes: Any


@dataclass(frozen=True)
class Timeline:
    """The timeline of a run.

    Attributes:
        bars: Its rows, from top to bottom.
        breaks: Middle of each shortened pause, on an axis of 1000, and its seconds.
        left_out: Number of rows beyond the limit, which are not shown.
        phases: Seconds that the run waited before and between its calls, by reason.
    """

    bars: Sequence[Bar]
    breaks: Sequence[tuple[float, float]]
    left_out: int
    phases: dict[str, float]


class _Axis:
    """Maps times to positions from 0 to 1000, with long pauses shortened.

    Args:
        intervals: Start and end of each span, in seconds since the epoch.
        begin: Start of the axis.
        end: End of the axis.
    """

    def __init__(self, intervals: Sequence[tuple[float, float]], begin: float, end: float) -> None:
        edges = sorted([(begin, begin), *intervals, (end, end)])
        pauses: list[tuple[float, float]] = []
        reached = begin
        for start, stop in edges:
            if start > reached:
                pauses.append((reached, start))
            reached = max(reached, stop)
        total_seconds = end - begin
        # The longest first: what is left is the time that the others are measured by.
        long_pauses: list[tuple[float, float]] = []
        for pause in sorted(pauses, key=lambda interval: interval[0] - interval[1])[:MOST_PAUSES]:
            remaining_seconds = total_seconds - sum(stop - start for start, stop in [*long_pauses, pause])
            if pause[1] - pause[0] > LONG * max(remaining_seconds, 1e-6):
                long_pauses.append(pause)
        self._long = sorted(long_pauses)
        remaining_seconds = total_seconds - sum(stop - start for start, stop in long_pauses)
        self._squeezed = SQUEEZED * WIDTH if long_pauses else 0.0
        remaining_width = WIDTH - self._squeezed * len(long_pauses)
        self._scale = remaining_width / remaining_seconds if remaining_seconds > 1e-9 else 0.0
        self._begin = begin

    @property
    def long_pauses(self) -> list[tuple[float, float]]:
        """Middle of each shortened pause on the axis, and its length in seconds."""
        return [(self.x(start) + self._squeezed / 2, stop - start) for start, stop in self._long]

    def x(self, time: float) -> float:
        """Return the position of a time, given in seconds since the epoch."""
        position = 0.0
        reached = self._begin
        for start, stop in self._long:
            if time <= start:
                break
            position += (start - reached) * self._scale
            inside = min(time, stop) - start
            position += self._squeezed * inside / (stop - start)
            reached = stop
            if time <= stop:
                return position
        return min(WIDTH, max(0.0, position + (time - reached) * self._scale))


def create_timeline(run: RunTrace, now: float) -> Timeline:
    """Lay out the records of a run as bars; an unfinished run extends to ``now``."""
    end_records = [record for record in run.records if record.is_end]
    segments = sorted((record for record in end_records if record.kind == "run"), key=_start_time)
    # A segment of a replay repeats what an earlier one did.
    other_records = [record for record in end_records if record.kind != "run"]
    spans = [(_start_time(record), record.time) for record in [*segments, *other_records]]
    activity = _open_activity(run)
    axis = _Axis(spans, run.begun, max(run.ended, now) if activity else run.ended)
    bars = [_create_bar(axis, segment, 0) for segment in segments]
    for previous_segment, after in zip(segments, segments[1:], strict=False):
        if previous_segment.outcome == "suspended" and _start_time(after) > previous_segment.time:
            bars.append(_create_pause(axis, previous_segment, _start_time(after)))
    if activity:
        label, begin = activity
        x = axis.x(begin)
        width = max(axis.x(now) - x, 2.0)
        attributes = {name: value for name, value in run.last.attributes.items() if name != "phases"}
        bars.append(Bar(label, "waiting", run.status, 0, x, width, max(0.0, now - begin), False, attributes))
    bars.sort(key=lambda bar: (bar.x, bar.kind == "waiting"))
    tree_records = _order_records(run, other_records)
    bars += [_create_bar(axis, record, depth) for record, depth in tree_records]
    phases: dict[str, float] = {}
    for run_segment in segments:
        for name, seconds in _as_mapping(run_segment.attributes.get("phases")).items():
            if isinstance(seconds, int | float):
                phases[str(name)] = phases.get(str(name), 0.0) + seconds
    return Timeline(bars[:MOST_BARS], axis.long_pauses, max(0, len(bars) - MOST_BARS), phases)


def _open_activity(run: RunTrace) -> tuple[str, float] | None:
    """Return the activity of an unfinished run, and its start; None if it is unknown or the run has ended."""
    last = run.last
    if run.status == "suspended":
        return "suspended", last.time
    since = as_number(last.attributes.get("since"))
    if run.status not in (RUNNING, WAITING) or not since:
        return None
    return waits_for(last.attributes) or "your code", since


def _order_records(run: RunTrace, records: Sequence[TraceRecord]) -> list[tuple[TraceRecord, int]]:
    """Return records in the order of their tree, the parent first, each with its depth from 1."""
    spans = {span_record.span_id for span_record in records}
    children: dict[str, list[TraceRecord]] = {}
    roots: list[TraceRecord] = []
    for record in sorted(records, key=_start_time):
        inside = record.parent_id in spans and record.parent_id != record.span_id
        (children.setdefault(record.parent_id or "", []) if inside else roots).append(record)
    ordered_records: list[tuple[TraceRecord, int]] = []
    seen: set[str] = set()
    stack = [(root, 1) for root in reversed(roots)]
    while stack:
        record, depth = stack.pop()
        ordered_records.append((record, depth))
        if record.span_id not in seen:
            # Once: a record from anywhere may name itself as its part.
            seen.add(record.span_id)
            stack += [(child, min(depth + 1, 8)) for child in reversed(children.get(record.span_id, []))]
    return ordered_records


def _create_bar(axis: _Axis, record: TraceRecord, depth: int) -> Bar:
    x = axis.x(_start_time(record))
    label = "run" if record.kind == "run" else record.name
    width = max(axis.x(record.time) - x, 2.0)
    return Bar(
        label,
        record.kind,
        record.outcome,
        depth,
        min(x, WIDTH - 2),
        width,
        record.seconds,
        record.replayed,
        {name: value for name, value in record.attributes.items() if name != "phases"},
    )


def _create_pause(axis: _Axis, previous_segment: TraceRecord, until: float) -> Bar:
    x = axis.x(previous_segment.time)
    waits = {"waits": previous_segment.attributes.get("waits", [])}
    width = max(axis.x(until) - x, 2.0)
    return Bar("suspended", "waiting", "suspended", 0, x, width, until - previous_segment.time, False, waits)


def _start_time(record: TraceRecord) -> float:
    return record.time - (record.seconds or 0.0)


def _as_mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
