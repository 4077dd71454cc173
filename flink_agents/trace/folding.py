"""Unfolds the records of runs: a short, successful run is one line, which contains its steps.

Readers of the trace get a record for each action and durable call, with the id, parent and times of a record
of its own. ``recording/lines.py`` writes such lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from flink_agents.trace.forms import is_number, well_formed
from flink_agents.trace.operations import operation_of
from flink_agents.trace.records import SpanPath, TraceRecord, call_path, span_id

FOLDED = "steps"
"""The attribute of a run's record that contains its actions and calls, in the order of their ends.

Each is an object with ``name`` of an action, or ``call`` and ``action`` of a call; with ``seconds``; and with
``at``, its end in seconds after the start of the run. Without ``at``, it is an action on Flink's thread that
followed the one before. A call has ``nth``, its number, if it does not follow the one before it, and ``task``
if a task of the action made it. All else are its attributes.
"""

_OWN = ("name", "call", "seconds", "at", "nth", "task")


def count_types(event_types: Sequence[str]) -> dict[str, int]:
    """Count the occurrences of each type of event."""
    return {event_types[0]: 1} if len(event_types) == 1 else dict(Counter(event_types))


def attributes_of_call(action: str, function: str, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the attributes of a durable call's record.

    Args:
        action: Name of the action that made the call.
        function: Name of the function, from which operation and target follow.
        more: Further attributes; None for none.
    """
    attributes: dict[str, Any] = {"action": action}
    if more:
        attributes |= more
    kind, target, request = operation_of(function)
    if kind:
        attributes |= {"operation": kind, "target": target} | ({"request_to": request} if request else {})
    return attributes


def unfold_records(records: Iterable[TraceRecord]) -> Iterator[TraceRecord]:
    """Yield records; the steps in the line of a run become records before the record of the run."""
    for record in records:
        steps = record.attributes.get(FOLDED) if record.kind == "run" else None
        if isinstance(steps, list):
            record = replace(record, attributes=_without_folded(record.attributes))
            yield from _unfold_steps(record, cast("list[Any]", steps))
        yield record


def _unfold_steps(run: TraceRecord, steps: list[Any]) -> Iterator[TraceRecord]:
    """Yield a record for each step in the line of a run. Invalid steps are skipped."""
    actions = Counter[str]()
    nth = 0
    at = start_time = run.time - (run.seconds or 0.0)
    for raw_step in steps:
        # The line may come from anywhere.
        step: Mapping[str, Any] = cast("Mapping[str, Any]", raw_step) if isinstance(raw_step, Mapping) else {}
        function = step.get("call")
        action = step.get("name")
        seconds: Any = step.get("seconds")
        end: Any = step.get("at")
        if function is not None:
            action = step.get("action")
        if not (isinstance(action, str) and is_number(seconds) and (end is None or is_number(end))):
            continue
        at = min(at + seconds if end is None else start_time + end, run.time)
        more = {name: value for name, value in step.items() if name not in _OWN}
        if function is None:
            more["inline"] = end is None
            path: SpanPath = "action", action, actions[action]
            actions[action] += 1
            nth = 0
            yield _step_record(run, "action", action, path, run.span_id, at, seconds, more)
        elif isinstance(function, str):
            parent = span_id(run.run_id, "action", action, actions[action])
            task = str(step.get("task", ""))
            nth = as_whole_number(step.get("nth"), nth)
            path = call_path(action, actions[action], function, task, nth)
            nth += 1
            attributes = attributes_of_call(action, function, more)
            yield _step_record(run, "call", function, path, parent, at, seconds, attributes)


def as_whole_number(value: Any, default: int) -> int:
    """Return an integer of a line; ``default`` for another value, as a line may come from anywhere."""
    return value if isinstance(value, int) else default


def _step_record(
    run: TraceRecord,
    kind: str,
    name: str,
    path: SpanPath,
    parent: str,
    at: float,
    seconds: float,
    attributes: Mapping[str, Any],
) -> TraceRecord:
    return replace(
        run,
        kind=kind,
        name=name,
        outcome="ok",
        span_id=span_id(run.run_id, *path),
        parent_id=parent,
        time=at,
        seconds=seconds,
        attributes=well_formed(attributes),
    )


def _without_folded(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != FOLDED}
