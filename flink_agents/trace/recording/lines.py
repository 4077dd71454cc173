"""Writes the line of a run that ended soon and well, with its steps, in the thread that ends the run.

Nearly all runs are of this kind, so this path is short: parts of lines are kept, times are whole microseconds
or nanoseconds (a float takes five times as long to write), and no record is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any

from pydantic_core import to_json

from flink_agents import redaction
from flink_agents.api.agents.observers import ObservedRun
from flink_agents.trace.folding import FOLDED, counted
from flink_agents.trace.recording.attributes import WRITTEN, origin_of, written_of
from flink_agents.trace.recording.making import TracedSubtask
from flink_agents.trace.recording.segments import Segment
from flink_agents.trace.records import RUN_ID_BYTES, SCHEMA_VERSION, run_path, trace_of
from flink_agents.trace.target import TraceLine

_MOST_KEPT = 2000
"""Maximum number of kept parts of a kind."""

_END = f',"version":{SCHEMA_VERSION}}}\n'


class LineMaker:
    """Writes lines of runs. Called by Flink's thread.

    Args:
        subtask: The fields that all records share.
    """

    def __init__(self, subtask: TracedSubtask) -> None:
        self._subtask = subtask
        self._secrets: Any = None
        self._keys: dict[str, str] = {}
        self._steps: dict[tuple[Any, ...], str] = {}
        self._of_job("")

    def _of_job(self, job: str) -> None:
        subtask = self._subtask
        self._job = job
        self._head = (
            f'{{"kind":"run","name":{_quoted(subtask.agent)},"outcome":"completed","job":{_quoted(job)},'
            f'"agent":{_quoted(subtask.agent)},"subtask":{subtask.subtask},"attempt":{subtask.attempt},"key":'
        )
        self._digest = blake2b(run_path(job), digest_size=RUN_ID_BYTES)

    def __call__(self, run: ObservedRun, segment: Segment, now: float) -> TraceLine:
        """Return the line of a run that completed, and the id of the run."""
        job = run.identity or self._subtask.job
        if job != self._job:
            self._of_job(job)
        if redaction.known.pattern is not self._secrets:
            # A further secret became known, which kept keys could hold.
            self._secrets = redaction.known.pattern
            self._keys.clear()
        key_text, number = run.key_text, run.sequence_number
        key = self._keys.get(key_text)
        if key is None:
            key = _keep(self._keys, key_text, _quoted(redaction.hide(key_text)))
        digest = self._digest.copy()
        digest.update(f"\x00{key_text}\x00{number}".encode("utf-8", "surrogatepass"))
        run_id = digest.hexdigest()
        begun = int(segment.begun * 1e6)
        end = int(now * 1e6)
        told = self._told(segment, begun) if segment.steps else ""
        if segment.executed or segment.waits or segment.written or run.parent or run.traceparent:
            more = self._more(run, segment)
            told = f"{told},{more}" if told else more
        context = run.traceparent
        trace = f',"trace":{_quoted(str(trace_of(context)))}' if context else ""
        line = (
            f'{self._head}{key},"sequence_number":{number},"run_id":"{run_id}","time":{end}e-6,'
            f'"seconds":{end - begun}e-6,"attributes":{{{told}}}{trace}{_END}'
        )
        return run_id, line.encode()

    def _told(self, segment: Segment, begun: int) -> str:
        """Return the steps as an attribute."""
        told: list[str] = []
        kept = self._steps
        for step in segment.steps:
            function, action, end, seconds, more = step
            if end is None:
                part = kept.get((action, more)) or self._action(action, more)
                told.append(f"{part}{int(seconds * 1e9)}e-9}}")
            else:
                told.append(self._timed(function, action, int(end * 1e6) - begun, seconds, more))
        return f'"{FOLDED}":[{",".join(told)}]'

    def _timed(self, function: str | None, action: str, at: int, seconds: float, more: Any) -> str:
        """Return a step of the event loop."""
        if function is None:
            part = self._steps.get((action, more)) or self._action(action, more)
            return f'{part}{int(seconds * 1e6)}e-6,"at":{at}e-6}}'
        part = self._steps.get((function, action, None))
        if part is None:
            text = f'{{"call":{_quoted(function)},"action":{_quoted(action)},"seconds":'
            part = _keep(self._steps, (function, action, None), text)
        rest = f",{_members(more)}" if more else ""
        return f'{part}{int(seconds * 1e6)}e-6,"at":{at}e-6{rest}}}'

    def _action(self, action: str, sent: tuple[str, ...]) -> str:
        events = f'"sent":{json.dumps(counted(sent))},' if sent else ""
        return _keep(self._steps, (action, sent), f'{{"name":{_quoted(action)},{events}"seconds":')

    def _more(self, run: ObservedRun, segment: Segment) -> str:
        """Return the attributes that not every run has."""
        told: list[str] = []
        if segment.waits:
            waits = [f'"{what}":{int(seconds * 1e6)}e-6' for what, seconds in segment.waits.items()]
            told.append(f'"phases":{{{",".join(waits)}}}')
        if segment.executed:
            told.append(f'"calls":{segment.executed},"replayed":0')
        if segment.written:
            told.append(f'"{WRITTEN}":{{{self._written(segment.written)}}}')
        if run.parent or run.traceparent:
            told.append(_members(origin_of(run)))
        return ",".join(told)

    def _written(self, written: Mapping[str, int]) -> str:
        if len(written) > 1:
            return _members(written_of(written))
        ((name, size),) = written.items()
        shown = self._keys.get(name)
        if shown is None:
            shown = _keep(self._keys, name, _quoted(redaction.hide(name)))
        return f"{shown}:{size}"


def _keep(kept: dict[Any, str], name: Any, part: str) -> str:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[name] = part
    return part


def _members(values: Mapping[str, Any]) -> str:
    """Return the members of an object of JSON, without its braces."""
    try:
        return to_json(values, inf_nan_mode="constants", fallback=str)[1:-1].decode()
    except ValueError:
        # Text that is no Unicode: JSON can escape it.
        return json.dumps(values, separators=(",", ":"), default=str)[1:-1]
