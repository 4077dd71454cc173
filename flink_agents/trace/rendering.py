"""Renders traces as text and HTML: tables, trees, timelines, and explanations of waits."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flink_agents.api.events.approvals import APPROVAL_SIGNAL
from flink_agents.trace.durations import Spent
from flink_agents.trace.forms import error_of, is_time
from flink_agents.trace.operations import operation_of
from flink_agents.trace.reading import RunTrace
from flink_agents.trace.records import QUEUED_FOR, RUNNING, STARTED, UNFINISHED, WAITING, TraceRecord

RESTARTS = "Flink restarts the task if its restart strategy allows it, and repeats the run."
"""The consequence of a failure, if the job runs."""

MOST_INDENT = 300
"""Maximum indentation of a tree."""


def format_time(seconds: float) -> str:
    """Format seconds since the epoch as UTC, or as a number if the calendar does not have that time."""
    if not is_time(seconds):
        return f"{seconds} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def format_duration(seconds: float | None) -> str:
    """Format seconds in h, min, s or ms; None becomes an empty string."""
    if seconds is None:
        return ""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.1f} ms"


def escape_controls(text: str) -> str:
    """Escape the control characters of a text, which a terminal would execute."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def run_row(run: RunTrace) -> dict[str, Any]:
    """Return the columns of a run for a table, as text and numbers by name."""
    last = run.last
    error = error_of(last.attributes)
    return {
        "run": run.run_id,
        "agent": last.agent,
        "key": last.key,
        "sequence": last.sequence_number,
        "status": run.status,
        "begun": format_time(run.begun),
        **times_row(run.spent()),
        "calls": sum(record.kind == "call" for record in run.records),
        "error": _error_line(error) if error else "",
        "now": describe_activity(run),
    }


def run_object(run: RunTrace) -> dict[str, Any]:
    """Return a run for ``--json``: times with their units in the names. None stands for unknown or absent."""
    last = run.last
    spent = run.spent()
    error = error_of(last.attributes)
    unfinished = run.status in UNFINISHED
    since = last.time if run.status == "suspended" else run.times.since
    return {
        "run": run.run_id,
        "job": last.job,
        "agent": last.agent,
        "key": last.key,
        "sequence": last.sequence_number,
        "status": run.status,
        "begun_at_ms": _milliseconds(run.begun),
        "last_record_at_ms": _milliseconds(run.ended),
        "running_seconds": round(spent.running, 6),
        "queued_seconds": round(spent.queued, 6),
        "suspended_seconds": round(spent.suspended, 6),
        "calls": sum(record.kind == "call" for record in run.records),
        "error": {name: error.get(name) for name in ("error", "message", "where")} if error else None,
        "waits_for": waits_for(last.attributes) or None if unfinished else None,
        "waits": [_wait_object(wait) for wait in last.attributes.get("waits", ())] if unfinished else [],
        "since_at_ms": _milliseconds(since) if unfinished and since else None,
    }


def _wait_object(wait: Mapping[str, Any]) -> dict[str, Any]:
    """Return a wait for ``--json``: its kind, the name and id of the signal, and its deadline."""
    name = wait.get("name")
    return {
        "kind": "approval" if name == APPROVAL_SIGNAL else _kind_of(wait),
        "name": name,
        "id": wait.get("id"),
        "deadline_at_ms": wait.get("deadline"),
    }


def _kind_of(wait: Mapping[str, Any]) -> str:
    """Return the kind of a wait. Older records have none: then a wait with a name is for a signal."""
    return wait.get("kind") or ("timer" if wait.get("name") is None else "signal")


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _error_line(error: Mapping[str, Any]) -> str:
    """Return class, first line and source line of an error as one line."""
    where = f" at {error['where']}" if error.get("where") else ""
    return f"{error['error']}: {str(error.get('message', '')).strip().partition(chr(10))[0]}{where}"


def times_row(spent: Spent) -> dict[str, str]:
    """Return the durations of a run as text: ``took`` for its code and calls, the others if not zero."""
    return {
        "took": format_duration(spent.running),
        "queued": format_duration(spent.queued) if spent.queued >= 0.001 else "",
        "suspended": format_duration(spent.suspended) if spent.suspended else "",
    }


def describe_activity(run: RunTrace) -> str:
    """Return the wait or the activity of an unfinished run, and its start; empty for other runs."""
    last = run.last
    if run.status == "suspended":
        waits = last.attributes.get("waits")
        ends = "; or ".join(wait_text(wait) for wait in waits or () if isinstance(wait, dict))
        return f"until {ends or 'an event that the trace lacks'}, since {format_time(last.time)}"
    if last.kind != "run" or last.outcome not in (RUNNING, WAITING):
        return ""
    since = run.times.since
    what = waits_for(last.attributes)
    return (f"waits for {what}" if what else "executes your code") + (
        f", since {format_time(since)}" if since else ""
    )


def waits_for(attributes: Mapping[str, Any]) -> str:
    """Return the reason of a wait, from the attributes of a record; empty if the run does not wait."""
    return shorten_name(str(attributes.get("for") or ""))


def shorten_name(text: str) -> str:
    """Shorten the last word of a text, ``module:qualname`` of a function, to the name of the function."""
    start, space, name = text.rpartition(" ")
    match = space and re.fullmatch(r"[\w.]+:(?:[\w.<>]+\.)?(\w+)", name)
    return f"{start} {match[1]}" if match and not operation_of(name).kind else text


def tree_lines(run: RunTrace, shown: Callable[[str], str] = str) -> Iterator[str]:
    """Yield the lines of a run's tree, and the waits of an unfinished run.

    Args:
        run: The run with its records.
        shown: Returns a canonical key in the form that commands take.
    """
    last = run.last
    spent = times_row(run.spent())
    wait_texts = "".join(f"  {name} {spent[name]}" for name in ("queued", "suspended") if spent[name])
    yield escape_controls(
        f"run {run.run_id}  {last.agent}  key {shown(last.key)}  sequence {last.sequence_number}  "
        f"{run.status}  {format_time(run.begun)}  {spent['took']}{wait_texts}"
        + (f"  from {last.attributes['parent']}" if "parent" in last.attributes else "")
    )
    children = run.children()
    tops: list[TraceRecord] = []
    for root in run.roots():
        tops += children.pop(root.span_id, ()) if root.kind == "run" and root.parent_id is None else (root,)
    tops.sort(key=lambda record: record.time - (record.seconds or 0.0))
    yield from _branch_lines(children, tops)
    if run.status in UNFINISHED:
        yield from map(escape_controls, list(_unfinished_lines(run))[1:])


def _branch_lines(children: dict[str, list[TraceRecord]], tops: Sequence[TraceRecord]) -> Iterator[str]:
    # Not recursive, and each span once: a trace may come from anywhere.
    """Yield the lines of a tree, depth first; ``children`` loses the records that were shown."""
    stack = [(tops, 0, "")]
    while stack:
        records, position, indent = stack.pop()
        if position == len(records):
            continue
        record = records[position]
        is_last = position + 1 == len(records)
        stack.append((records, position + 1, indent))
        yield escape_controls(f"{indent}{'└─' if is_last else '├─'} {line_of(record)}")
        child_records = children.pop(record.span_id, ())
        stack.append((child_records, 0, (indent + ("   " if is_last else "│  "))[:MOST_INDENT]))


def line_of(record: TraceRecord) -> str:
    """Format a record as one line: kind, name, outcome, duration and details."""
    kind, target, request = operation_of(record.name) if record.kind == "call" else ("", record.name, "")
    what = "segment" if record.kind == "run" else kind or record.kind
    name = "" if record.kind == "run" else f" {' '.join(filter(None, (target, request)))}"
    parts = [f"{what}{name}", record.outcome, format_duration(record.seconds), *_detail_lines(record)]
    return "  ".join(part for part in parts if part)


def _detail_lines(record: TraceRecord) -> Iterator[str]:
    """Yield what the attributes of a record say: error, decision, model, memory, waits, content."""
    attributes = record.attributes
    error = error_of(attributes)
    if error:
        yield f"{error['error']}: {error.get('message', '')}".split("\n")[0]
        yield f"at {error['where']}" if "where" in error else ""
    if record.kind == "approval":
        yield decision_text(attributes)
    if "model" in attributes:
        yield model_text(attributes)
    if "results" in attributes:
        yield f"{attributes['results']} results"
    if "parent" in attributes:
        yield f"from {attributes['parent']}"
    for name, size in attributes.get("memory", {}).items():
        yield f"wrote {name} ({size} bytes)" if size else f"removed {name}"
    if "attempt" in attributes:
        yield f"attempt {attributes['attempt']}"
    for wait in attributes.get("waits", ()):
        yield f"until {wait_text(wait)}"
    for name in ("request", "result"):
        if name in attributes:
            yield f"{name} {attributes[name]}"


def decision_text(facts: Mapping[str, Any]) -> str:
    """Format who decided on an approval, and how, from the attributes of its record."""
    parts = (("by", "by"), ("changed", "with other values of"), ("reason", "because:"))
    return " ".join(f"{word} {facts[name]}" for name, word in parts if facts.get(name))


def model_text(facts: Mapping[str, Any]) -> str:
    """Format model, tokens and price of a request, from the attributes of its record."""
    used = f"{facts.get('input_tokens', 0)} tokens in, {facts.get('output_tokens', 0)} out"
    cost = f", {facts['cost']:.6g} USD" if "cost" in facts else ""
    ended = f", ended by {facts['finish_reason']}" if "finish_reason" in facts else ""
    return f"model {facts['model']}, {used}{cost}{ended}"


def wait_text(wait: dict[str, Any]) -> str:
    """Format a wait: the signal, timer or approval that ends it, and its deadline."""
    deadline = wait.get("deadline")
    deadline_text = format_time(deadline / 1000) if deadline is not None else ""
    if wait.get("for"):
        return str(wait["for"]) + (f" since {format_time(wait['since'])}" if wait.get("since") else "")
    name = wait.get("name")
    kind = _kind_of(wait)
    if kind == "timer":
        return f"the timer at {deadline_text}" if deadline_text else "a timer"
    if kind == "signal":
        what = "an approval" if name == APPROVAL_SIGNAL else f"the signal {name!r}"
    else:
        what = f"the {kind}" if name is None else f"the {kind} {name!r}"
    return what + (f", at most until {deadline_text}" if deadline_text else "")


def explain_key(runs: Iterable[RunTrace], key: str) -> list[str]:
    """Explain what a key is doing: its first unfinished run, queued inputs, and dead letters.

    Args:
        runs: All recorded runs of the key, in the order of their start.
        key: The key as text, for the case that it has no runs.
    """
    all_runs = list(runs)
    if not all_runs:
        return [
            f"The trace has no run of the key {key}.",
            "Perhaps it had no input yet, is not sampled, or its files were removed.",
        ]
    unfinished = [run for run in all_runs if run.status in UNFINISHED]
    if not unfinished:
        return [
            "Nothing of the key is unfinished.",
            *_ended_lines(all_runs[-1]),
            *_dead_letter_lines(all_runs, all_runs[-1]),
        ]
    unfinished.sort(key=lambda run: run.last.sequence_number)
    lines = [line for run in unfinished[:1] for line in _unfinished_lines(run)]
    queued = sum(run.last.attributes.get("for") == QUEUED_FOR for run in unfinished[1:])
    if queued:
        lines.append(f"{queued} input(s) of the key wait behind it.")
    if other_count := len(unfinished) - 1 - queued:
        lines.append(f"{other_count} further run(s) of the key have not ended, and may wait for it.")
    return lines + _dead_letter_lines(all_runs)


def _dead_letter_lines(runs: Sequence[RunTrace], explained: RunTrace | None = None) -> list[str]:
    """Count the runs that became dead letters, and describe the last one unless it is ``explained``."""
    dead = [run for run in runs if run.status == "dead-lettered"]
    if not dead:
        return []
    last = max(dead, key=lambda run: run.ended)
    count = f"{len(dead)} of its {len(runs)} recorded runs"
    if last is explained:
        return [f"{count} became dead letters."] if len(dead) > 1 else []
    return [
        f"{count} became dead letters, the last at {format_time(last.ended)}: run {last.run_id}.",
        *_error_lines(last.last),
    ]


def _ended_lines(run: RunTrace) -> list[str]:
    last = run.last
    status = f"Its last run, {run.run_id} (sequence {last.sequence_number}), is {run.status}"
    return [f"{status} since {format_time(last.time)}.", *_error_lines(last)]


def _unfinished_lines(run: RunTrace) -> Iterator[str]:
    last = run.last
    name = f"Run {run.run_id} (sequence {last.sequence_number}) of agent {last.agent}"
    if run.status == "suspended":
        waits = [wait_text(wait) for wait in last.attributes.get("waits", ())] or [
            "an event that the trace lacks"
        ]
        yield f"{name} is suspended since {format_time(last.time)}."
        yield "It resumes at: " + "; or ".join(waits) + "."
        return
    if run.status == "failed":
        yield f"{name} failed at {format_time(last.time)}, and the task attempt {last.attempt} with it."
        yield from _error_lines(last)
        yield RESTARTS
        return
    began, ended = map(format_time, (run.begun, run.ended))
    yield f"{name} has not ended. It began at {began}; its last record is from {ended}."
    yield from activity_lines(run)
    failed = [record for record in run.records if record.outcome == "failed" and record.kind != "run"]
    if failed:
        kind = "Durable call" if failed[-1].kind in ("call", "attempt") else failed[-1].kind.capitalize()
        yield f"{kind} {failed[-1].name} failed {len(failed)} time(s)."
        yield from _error_lines(failed[-1])


def activity_lines(run: RunTrace) -> Iterator[str]:
    """Yield sentences about what an unfinished run does, waits for and calls."""
    last = run.last
    if last.outcome == STARTED:
        yield "Its phase is recorded after 5 seconds: ask again then."
    if last.outcome not in (RUNNING, WAITING):
        return
    attributes = last.attributes
    since = f" since {format_time(attributes['since'])}" if attributes.get("since") else ""
    calls = attributes.get("calls")
    if last.outcome == RUNNING:
        yield f"It executes your code{since}, or awaits something that is not a durable call."
    else:
        yield f"It waits for {waits_for(attributes)}{since}."
    for function, attempt in calls.items() if isinstance(calls, Mapping) else ():
        yield f"Its {shorten_name(f'durable call {function}')} is in attempt {attempt}."


def _error_lines(record: TraceRecord) -> list[str]:
    """Return the error of a record as lines, indented after the first one; empty without an error."""
    error = error_of(record.attributes)
    if not error:
        return []
    first, *remaining_lines = str(error.get("message", "")).strip().splitlines() or [""]
    where = f" at {error['where']}" if "where" in error else ""
    return [
        f"The error was {error['error']}: {first}{where}.",
        *(f"  {line.strip()}" for line in remaining_lines),
    ]


_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:1200px}h2{font-size:1em;margin:2em 0 .3em}"
    ".r{display:grid;grid-template-columns:45% 55%;border-top:1px solid #ddd;padding:2px 0}"
    ".r span{overflow-wrap:anywhere}.t{position:relative;background:#f4f4f4;min-height:1.2em}"
    ".b{position:absolute;top:.2em;height:.8em;min-width:2px;background:#3b7dd8}.bad .b{background:#c33}"
)


def render_page(runs: Sequence[RunTrace], shown: Callable[[str], str] = str) -> str:
    """Return a page of HTML with the timeline of each run. It needs no network and no scripts.

    Args:
        runs: The runs with their records.
        shown: Returns a canonical key in the form that commands take.
    """
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Trace</title>"
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body><h1>Trace</h1>"
    ]
    for run in runs:
        parts.append(f"<h2>{html.escape(next(tree_lines(run, shown)))}</h2>")
        start = run.begun
        run_seconds = max(run.seconds, 1e-9)
        ends = [run_record for run_record in run.records if run_record.is_end]
        for record in sorted(ends, key=lambda end: end.time - (end.seconds or 0.0)):
            parts.append(_render_bar(record, start, run_seconds))
    return "".join([*parts, "</body></html>\n"])


def _render_bar(record: TraceRecord, start_seconds: float, run_seconds: float) -> str:
    offset_percent = 100 * (record.time - (record.seconds or 0.0) - start_seconds) / run_seconds
    width = 100 * (record.seconds or 0.0) / run_seconds
    bad = " bad" if record.outcome in ("failed", "dead-lettered") else ""
    return (
        f"<div class='r{bad}'><span>{html.escape(escape_controls(line_of(record)))}</span><span class='t'>"
        f"<span class='b' style='left:{offset_percent:.3f}%;width:{width:.3f}%'></span></span></div>"
    )
