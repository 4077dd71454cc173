"""Writes the lines of runs that ended soon and well, with their steps, in the thread that ends the runs.

Nearly all runs are of this kind, so this path is short: parts of lines are kept, times are whole microseconds
or nanoseconds (a float takes five times as long to write), and no record is made. The writer's thread would
hold the interpreter while Flink's thread wants it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pydantic_core import to_json

from flink_agents import redaction
from flink_agents.api.agents.observers import ObservedRun
from flink_agents.api.resources.sendable_text import with_number_texts
from flink_agents.trace.folding import FOLDED, count_types
from flink_agents.trace.recording.attributes import WRITTEN, origin_of, written_of
from flink_agents.trace.recording.making import TracedSubtask
from flink_agents.trace.recording.segments import Segment
from flink_agents.trace.records import RUN_ID_BYTES, SCHEMA_VERSION, run_path, trace_of
from flink_agents.trace.target import TraceLine

_MOST_KEPT = 2000
_LONGEST_KEPT = 1000
"""Maximum number of kept parts of a kind, and of characters in one of them."""

EndedRun = tuple[ObservedRun, Segment, float]
"""A run that ended soon and well, its notes, and its end."""

_END = f',"version":{SCHEMA_VERSION}}}\n'


class LineMaker:
    """Encodes runs that ended soon and well as lines of JSON, with their steps.

    Args:
        subtask: The fields that all records share.
    """

    def __init__(self, subtask: TracedSubtask) -> None:
        self._subtask = subtask
        self._secrets: Any = None
        self._keys: dict[str, str] = {}
        self._parts: dict[tuple[Any, ...], str] = {}
        self._use_job("")

    def _use_job(self, job: str) -> None:
        subtask = self._subtask
        self._job = job
        self._head = (
            f'{{"kind":"run","name":{_quoted(subtask.agent)},"outcome":"completed","job":{_quoted(job)},'
            f'"agent":{_quoted(subtask.agent)},"subtask":{subtask.subtask},"attempt":{subtask.attempt},"key":'
        )
        self._digest = blake2b(run_path(job), digest_size=RUN_ID_BYTES)

    def __call__(self, ended: Iterable[EndedRun], failed: Callable[[Exception], None]) -> list[TraceLine]:
        """Return the line of each run, after the id of the run. Only one thread at a time may call this.

        Args:
            ended: The runs, with their notes and ends.
            failed: Called with the exception for a run whose line cannot be made.
        """
        if redaction.known_secrets.pattern is not self._secrets:
            # A further secret became known, which kept keys could hold.
            self._secrets = redaction.known_secrets.pattern
            self._keys.clear()
        lines: list[TraceLine] = []
        for run in ended:
            try:
                lines.append(self._run_line(*run))
            except Exception as error:
                failed(error)
        return lines

    def _run_line(self, run: ObservedRun, segment: Segment, now: float) -> TraceLine:
        """Return the line of a run, after its id. A float takes five times as long to write as an integer."""
        job = run.identity or self._subtask.job
        key_text = run.key_text
        number = run.sequence_number
        parent = run.parent
        context = run.traceparent
        if job != self._job:
            self._use_job(job)
        digest = self._digest.copy()
        digest.update(f"\x00{key_text}\x00{number}".encode("utf-8", "surrogatepass"))
        run_id = digest.hexdigest()
        end = int(now * 1e6)
        # The clock can have been set back meanwhile.
        start = min(int(segment.begun * 1e6), end)
        attributes = self._steps_text(segment, start) if segment.steps else ""
        if segment.executed or segment.waits:
            attributes += self._waits_text(segment)
        if segment.written:
            attributes += self._written_text(segment.written)
        trace = ""
        if parent or context:
            attributes += f",{_members(origin_of(parent, context))}"
            trace = f',"trace":{_quoted(trace_of(context) or "")}' if context else ""
        line = (
            f'{self._head}{self._keys.get(key_text) or self._quote(key_text)},"sequence_number":{number},'
            f'"run_id":"{run_id}","time":{end}e-6,"seconds":{end - start}e-6,'
            f'"attributes":{{{attributes[1:]}}}{trace}{_END}'
        )
        return run_id, line.encode()

    def _steps_text(self, segment: Segment, start_micros: int) -> str:
        """Return the steps of a run as a member of its attributes.

        Args:
            segment: The notes about the run.
            start_micros: Start of the run, in microseconds since the epoch.
        """
        cached_parts = self._parts
        step_texts: list[str] = []
        for function, action, ended, seconds, more in segment.steps:
            if ended is None:
                part = cached_parts.get((action, more)) or self._action_step(action, more)
                step_texts.append(f"{part}{int(seconds * 1e9)}e-9}}")
            else:
                step_texts.append(
                    self._timed_step(function, action, int(ended * 1e6) - start_micros, seconds, more)
                )
        return f',"{FOLDED}":[{",".join(step_texts)}]'

    def _timed_step(
        self, function: str | None, action: str, end_micros: int, seconds: float, more: Any
    ) -> str:
        """Return the start of the JSON of a step of the event loop, up to its times.

        Args:
            function: Name of the function of a durable call; None for an action.
            action: Name of the action.
            end_micros: End of the step, in microseconds after the start of the run.
            seconds: Duration in seconds.
            more: Attributes of the call, or the types of the events that the action sent.
        """
        if function is None:
            part = self._parts.get((action, more)) or self._action_step(action, more)
            return f'{part}{int(seconds * 1e6)}e-6,"at":{end_micros}e-6}}'
        part = self._parts.get((function, action, None))
        if part is None:
            text = f'{{"call":{_quoted(function)},"action":{_quoted(action)},"seconds":'
            part = _cache_part(self._parts, (function, action, None), text)
        members_text = f",{_members(more)}" if more else ""
        return f'{part}{int(seconds * 1e6)}e-6,"at":{end_micros}e-6{members_text}}}'

    def _action_step(self, action: str, sent: tuple[str, ...]) -> str:
        events = f'"sent":{json.dumps(count_types(sent))},' if sent else ""
        return _cache_part(self._parts, (action, sent), f'{{"name":{_quoted(action)},{events}"seconds":')

    def _waits_text(self, segment: Segment) -> str:
        """Return the durations of waits and the number of durable calls as members of the attributes."""
        attributes = f',"calls":{segment.executed},"replayed":0' if segment.executed else ""
        if segment.waits:
            waits = [f'"{what}":{int(seconds * 1e6)}e-6' for what, seconds in segment.phases().items()]
            attributes += f',"phases":{{{",".join(waits)}}}'
        return attributes

    def _written_text(self, written: Mapping[str, int]) -> str:
        if len(written) == 1:
            ((name, size),) = written.items()
            return f',"{WRITTEN}":{{{self._keys.get(name) or self._quote(name)}:{size}}}'
        return f',"{WRITTEN}":{{{_members(written_of(written))}}}'

    def _quote(self, text: str) -> str:
        return _cache_part(self._keys, text, _quoted(redaction.hide(text)))


def _cache_part(cache: dict[Any, str], name: Any, part: str) -> str:
    if len(part) <= _LONGEST_KEPT:
        if len(cache) >= _MOST_KEPT:
            cache.clear()
        cache[name] = part
    return part


def _members(values: Mapping[str, Any]) -> str:
    """Return a mapping as members of a JSON object, without the braces."""
    try:
        return to_json(values, inf_nan_mode="strings", fallback=str)[1:-1].decode()
    except ValueError:
        # Text that is no Unicode: JSON can escape it.
        return json.dumps(with_number_texts(values), separators=(",", ":"), default=str)[1:-1]
