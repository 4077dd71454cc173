"""Formats a job's answers about a key, as JSON and as text, and the lines of its watchdog."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flink_agents.api.resources.sendable_text import with_number_texts
from flink_agents.trace.rendering import format_duration, format_time, wait_text

_LONG = ("memory", "signals", "delayed", "waits", "suspended")
"""Parts of an answer that are omitted if it is too long, in this order."""


def answer_line(answer: Mapping[str, Any], most: int) -> str:
    """Return an answer as a line of JSON; long parts are omitted if it has more than ``most`` characters."""
    answer = with_number_texts(answer)
    line = json.dumps(answer, separators=(",", ":"), default=str)
    for name in _LONG:
        if len(line) <= most:
            break
        if answer.get(name):
            answer = {**answer, name: f"{len(answer[name])}, left out"}
            line = json.dumps(answer, separators=(",", ":"), default=str)
    return line


def describe_answer(answer: Mapping[str, Any]) -> list[str]:
    """Return a job's answer about a key as sentences.

    An answer of another form, such as one that another program wrote, becomes one sentence that says so.
    """
    try:
        return list(_answer_lines(answer))
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, OSError) as error:
        return [f"An answer has a form that this version cannot explain: {error!r}"]


def _answer_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if not answer.get("known", True):
        yield f"The job has nothing of this key in agent {answer.get('agent')}."
        return
    run = answer.get("run")
    if isinstance(run, Mapping):
        yield from _run_lines(run)
    for suspended_run in _suspended_runs(answer):
        yield from _wait_lines(suspended_run)
    if answer.get("replays"):
        yield f"The key is replayed after a restart: {answer['replays']}."
    if answer.get("without_input"):
        numbers = ", ".join(map(str, answer["without_input"]))
        yield f"The journal has runs whose inputs have not come again: sequence {numbers}."
    yield from _queue_lines(answer)
    if not (run or answer.get("suspended") or answer.get("inputs")):
        runs = answer.get("runs", answer.get("sequence", 0))
        yield f"Nothing of the key is unfinished. {runs} runs have ended."
    memory = answer.get("memory")
    if isinstance(memory, Mapping) and memory:
        shown = ", ".join(f"{name} ({size} bytes)" for name, size in memory.items())
        yield f"It remembers {shown}."


def _run_lines(run: Mapping[str, Any]) -> Iterator[str]:
    name = f"Run {run.get('run')} (sequence {run.get('sequence')})"
    where = f" in action {run['action']} at {run['where']}" if "action" in run else ""
    since = f" for {format_duration(run['seconds'])}" if run.get("seconds") else ""
    what = f"waits for {run['for']}" if run.get("for") else f"is {run.get('phase')}"
    yield f"{name} {what}{where}{since}."
    if "attempt" in run:
        yield f"It is attempt {run['attempt']}; the one before failed: {run.get('error')}"
    for wait in run.get("waits", ()):
        yield f"It also waits for {wait_text(wait)}."


def _suspended_runs(answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    suspended_runs = answer.get("suspended")
    for suspended_run in suspended_runs if isinstance(suspended_runs, list) else ():
        if isinstance(suspended_run, Mapping):
            yield suspended_run


def _wait_lines(suspended_run: Mapping[str, Any]) -> Iterator[str]:
    start_text = (
        f", which began at {format_time(suspended_run['begun'] / 1000)},"
        if suspended_run.get("begun")
        else ""
    )
    run_text = f"Run {suspended_run.get('run')} (sequence {suspended_run.get('sequence')})"
    yield f"{run_text}{start_text} is suspended."
    waits = [f"{wait_text(wait)} [{wait.get('id')}]" for wait in suspended_run.get("waits", ())]
    if waits:
        yield "It resumes at: " + "; or ".join(waits) + "."


def inputs_behind(answer: Mapping[str, Any]) -> int:
    """Return the number of inputs of the key that wait behind its first unfinished run."""
    inputs = answer.get("inputs")
    is_blocked = any(suspended_run.get("blocks") for suspended_run in _suspended_runs(answer))
    first = 1 if answer.get("run") or is_blocked else 0
    return max(0, inputs - first) if isinstance(inputs, int) else 0


def _queue_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if behind := inputs_behind(answer):
        yield f"{behind} input(s) of the key wait behind it."
    signals = answer.get("signals")
    if isinstance(signals, Mapping) and signals:
        shown = ", ".join(f"{name!r} ({number})" for name, number in signals.items())
        yield f"Signals that no run has taken: {shown}."
    delayed = answer.get("delayed")
    if isinstance(delayed, Mapping):
        yield f"{delayed['events']} delayed event(s), the first at {format_time(delayed['due'] / 1000)}."


def describe_watched(line: Mapping[str, Any]) -> str:
    """Describe a line that the watchdog logged about a long run; an invalid line raises nothing."""
    try:
        return _watched_text(line)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, OSError) as error:
        return f"A line of the watchdog has a form that this version cannot explain: {error!r}"


def _watched_text(line: Mapping[str, Any]) -> str:
    at = format_time(line["time"]) if "time" in line else "an unknown time"
    name = f"the run with sequence {line.get('sequence')} of agent {line.get('agent')}"
    if line.get("ended"):
        return f"At {at}, {name} ended after {format_duration(line.get('seconds'))}."
    action = f" in action {line['action']} at {line['where']}" if "action" in line else ""
    duration = format_duration(line.get("seconds"))
    return f"At {at}, {name} had run for {duration}{action}; it waited for {line.get('for')}."
