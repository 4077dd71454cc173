"""Folds the actions of a run into its own record, and unfolds them.

Most runs start and end on Flink's thread. If each of their actions succeeded, one record holds all of them.
Readers of the trace get a record for each action, with the id that a record of its own would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from flink_agents.trace.records import TraceRecord, span_id

FOLDED = "actions"
"""The attribute of a run's record that contains its actions."""

_MOST = 1e15


def counted(event_types: Sequence[str]) -> dict[str, int]:
    """Return the number of occurrences of each type."""
    return {event_types[0]: 1} if len(event_types) == 1 else dict(Counter(event_types))


def folded(actions: Iterable[tuple[str, float, Sequence[str]]]) -> list[dict[str, Any]]:
    """Return actions as an attribute: their names, durations in seconds, and the events that they sent."""
    return [
        {"name": name, "seconds": seconds, "sent": counted(sent)}
        if sent
        else {"name": name, "seconds": seconds}
        for name, seconds, sent in actions
    ]


def unfolded(records: Iterable[TraceRecord]) -> Iterator[TraceRecord]:
    """Yield records, with the records of folded actions before the record of their run."""
    for record in records:
        actions = record.attributes.get(FOLDED) if record.kind == "run" else None
        if isinstance(actions, list):
            record = replace(record, attributes=_without(record.attributes))
            yield from _actions(record, cast("list[Any]", actions))
        yield record


def _actions(run: TraceRecord, actions: list[Any]) -> Iterator[TraceRecord]:
    numbers = Counter[str]()
    # One followed the other: on Flink's thread nothing else happens in between.
    at = run.time - (run.seconds or 0.0)
    for one in actions:
        if not isinstance(one, Mapping):
            continue
        action = cast("Mapping[str, Any]", one)
        name, seconds = action.get("name"), action.get("seconds")
        if not isinstance(name, str) or not isinstance(seconds, int | float) or not abs(seconds) < _MOST:
            # The line may come from anywhere.
            continue
        at = min(at + seconds, run.time)
        span = span_id(run.run_id, "action", name, numbers[name])
        numbers[name] += 1
        more = {key: value for key, value in action.items() if key not in ("name", "seconds")}
        yield replace(
            run,
            kind="action",
            name=name,
            outcome="ok",
            span_id=span,
            parent_id=run.span_id,
            time=at,
            seconds=seconds,
            attributes={"inline": True, **more},
        )


def _without(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != FOLDED}
