"""The schema of execution records, and the ids of their spans.

All ids are derived from the identity of the run. So a repeated record has the id of the first one, and a
reader drops it. Idempotency keys and these ids are not derived from each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from math import isfinite
from operator import attrgetter
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from flink_agents.api.errors.trace import TraceFormatError
from flink_agents.api.resources.sendable_text import with_number_texts
from flink_agents.trace.forms import check_fields, well_formed

SCHEMA_VERSION = 2

RUN_ID_BYTES = 12

STARTED = "started"
RUNNING = "running"
WAITING = "waiting"
"""Outcomes of records about runs that have not ended."""

STATUSES = (RUNNING, WAITING, "suspended", "failed", "dead-lettered", "completed")
"""The statuses of runs. All commands and pages use these words."""

UNFINISHED = STATUSES[:4]
FINAL = STATUSES[4:]
"""The outcomes that end a run, whatever comes later."""

QUEUED_FOR = "earlier runs of its key"
"""The reason why a run waits in the queue of its key."""


# Not frozen: that takes three times as long to make, and each step of each run makes one.
@dataclass(slots=True)
class TraceRecord:
    """One execution record. All times are in seconds since the epoch, all durations in seconds.

    Attributes:
        kind: ``run``, ``action``, ``call``, ``attempt`` of a call, ``event``, ``approval``, or ``agent`` for
            a called agent.
        name: Name of the agent, the action, the function of the call, or the type of the event.
        outcome: ``started``, ``running``, ``waiting``, ``ok``, ``failed``, ``suspended``, ``completed``,
            ``dead-lettered`` or ``ignored``. The first three mean that the run has not ended.
        job: Identity of the job in which the run started.
        agent: Name of the agent.
        subtask: Number of the subtask.
        attempt: Number of the task's attempt, from 0.
        key: Canonical text of the key of the run.
        sequence_number: Number of the run within the key.
        run_id: Id of the run, as dead letters and approvals name it.
        span_id: Id of the span, 16 hexadecimal digits.
        parent_id: Id of the parent span; None for the span of a whole run.
        time: Time of the record, which is the end of the span.
        seconds: Duration in seconds; None if it is unknown.
        replayed: True if all of its work came from the journal.
        attributes: Further facts by name, such as ``error``, ``calls`` or ``model``.
        version: Version of this schema.
        trace: Id of the trace that the run continues, from the ``traceparent`` of its input; or None.
    """

    kind: str
    name: str
    outcome: str
    job: str
    agent: str
    subtask: int
    attempt: int
    key: str
    sequence_number: int
    run_id: str
    span_id: str
    parent_id: str | None
    time: float
    seconds: float | None = None
    replayed: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: int = SCHEMA_VERSION
    trace: str | None = None

    @property
    def id(self) -> str:
        """Id of the record: repeated records of the same fact have the same one."""
        seen = self.outcome
        if seen in (WAITING, RUNNING):
            seen = f"{seen}:{self.attributes.get('since')}"
        return f"{self.span_id}:{seen}"

    @property
    def is_end(self) -> bool:
        """True if the record is about something that ended; False if its run continues."""
        return self.outcome not in (STARTED, WAITING, RUNNING)

    @property
    def trace_id(self) -> str:
        """Id of the trace: 32 hexadecimal digits, which all records of a run share."""
        return self.trace or trace_id(self.run_id)

    def to_json(self) -> str:
        """Encode the record as a line of JSON, without a line break."""
        values = as_dict(self)
        try:
            return _dump_json(values, allow_nan=False)
        except ValueError:
            return _dump_json({**values, "attributes": with_number_texts(values["attributes"])})

    def to_bytes(self) -> bytes:
        """Encode the record as a line of JSON in UTF-8, without a line break."""
        try:
            return self._encode()
        except PydanticSerializationError:
            # Text that is no Unicode: JSON can escape it.
            return self.to_json().encode()

    def _encode(self) -> bytes:
        """Encode the record as JSON in UTF-8; NaN and infinities become constants or strings."""
        if not (isfinite(self.time) and isfinite(self.seconds or 0.0)):
            return to_json(as_dict(self), inf_nan_mode="constants", fallback=str)
        # Written by hand, in the order of the fields: a dict takes twice as long.
        parent = self.parent_id
        trace = self.trace
        text = (
            f'{{"kind":{_quoted(self.kind)},"name":{_quoted(self.name)},"outcome":{_quoted(self.outcome)},'
            f"{_attempt_fields(self.job, self.agent, self.subtask, self.attempt)},"
            f'"key":{_quoted(self.key)},"sequence_number":{self.sequence_number},'
            f'"run_id":{_quoted(self.run_id)},"span_id":{_quoted(self.span_id)},'
            f'"parent_id":{"null" if parent is None else _quoted(parent)},'
            f'"time":{self.time!r},"seconds":{"null" if self.seconds is None else repr(self.seconds)},'
            f'"replayed":{"true" if self.replayed else "false"},"attributes":'
        )
        attributes = to_json(self.attributes, inf_nan_mode="strings", fallback=str)
        suffix = f',"version":{self.version},"trace":{"null" if trace is None else _quoted(trace)}}}'
        return b"%b%b%b" % (text.encode(), attributes, suffix.encode())

    @classmethod
    def from_json(cls, line: str | bytes) -> TraceRecord:
        """Parse a line that :meth:`to_json` wrote. Unknown fields are ignored.

        Raises:
            TraceFormatError: The line is not a record, or a newer version wrote it.
        """
        try:
            return cls.from_dict(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise _format_error(line) from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TraceRecord:
        """Create a record from its fields by name. Unknown fields are ignored.

        Raises:
            TraceFormatError: The fields are not those of a record, or a newer version wrote them.
        """
        try:
            if values["version"] > SCHEMA_VERSION:
                raise TraceFormatError(
                    "a trace record was written by a newer version of this package",
                    expected=f"schema version {SCHEMA_VERSION} or older",
                    found=str(values["version"]),
                    fix="upgrade the package that reads the trace",
                )
            if "span_id" not in values and values["kind"] == "run":
                # The line of a short, successful run omits the values that follow from the id of the run.
                values = {**values, "span_id": span_id(values["run_id"]), "parent_id": None}
            check_fields(values)
            field_values: dict[str, Any] = {name: values[name] for name in _NAMES if name in values}
            field_values["attributes"] = well_formed(values["attributes"])
            return cls(**field_values)
        except (KeyError, TypeError, AttributeError) as error:
            raise _format_error(str(values)) from error


def _format_error(line: str | bytes) -> TraceFormatError:
    shown = line if isinstance(line, str) else line.decode("utf-8", "replace")
    return TraceFormatError(
        "a line of the trace is not a record",
        expected="a JSON object with the fields of TraceRecord",
        found=shown[:100],
        fix="remove the line, or give the path of a trace",
    )


_NAMES = tuple(field_.name for field_ in fields(TraceRecord))
_values_of = attrgetter(*_NAMES)


def _dump_json(values: Mapping[str, Any], allow_nan: bool = True) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=True, default=str, allow_nan=allow_nan)


def as_dict(record: TraceRecord) -> dict[str, Any]:
    """Return the fields of a record by name."""
    # Not by asdict, which copies each value: this is done for each record.
    return dict(zip(_NAMES, _values_of(record), strict=True))


@lru_cache(maxsize=256)
def _attempt_fields(job: str, agent: str, subtask: int, attempt: int) -> str:
    """Return the fields that all records of a task attempt share, as JSON."""
    return f'"job":{_quoted(job)},"agent":{_quoted(agent)},"subtask":{subtask},"attempt":{attempt}'


def run_id_of(job: str, key: str, sequence_number: int) -> str:
    """Return the id of a run: 24 hexadecimal digits. It is the id of its input event as well."""
    path = run_path(job) + f"\x00{key}\x00{sequence_number}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(path, digest_size=RUN_ID_BYTES).hexdigest()


def run_path(job: str) -> bytes:
    """Return the start of what the id of a run is computed from: the identity of the job."""
    return f"\x00{job}".encode("utf-8", "surrogatepass")


def trace_id(run_id: str) -> str:
    """Return the id of the trace of a run without an input trace: 32 hexadecimal digits, from its id."""
    return _hex_digest("trace", run_id, size=16)


def traceparent(run_id: str, input_traceparent: str | None = None) -> str:
    """Return the W3C trace context of a run, for its outputs.

    Args:
        run_id: Id of the run.
        input_traceparent: The trace context of its input, whose trace it continues; None to start a trace.
    """
    return f"00-{trace_of(input_traceparent) or trace_id(run_id)}-{span_id(run_id)}-01"


def trace_of(context: str | None) -> str | None:
    """Return the trace id in a W3C trace context; None if there is no valid one."""
    return None if context is None else context.split("-")[1]


def span_of_context(context: str) -> str:
    """Return the span id in a W3C trace context."""
    return context.split("-")[2]


SpanPath = tuple[Any, ...]


def call_path(action: str, execution: int, function: str, task: str, nth: int) -> SpanPath:
    """Return the path that identifies the span of a durable call in its run, by facts that the journal has.

    Args:
        action: Name of the action.
        execution: Number of earlier executions of the action in the run.
        function: Name of the function.
        task: Path of the action's task that made the call; empty for its first task.
        nth: Number of earlier calls of that task.
    """
    return "call", action, execution, function, task, nth


def span_id(run_id: str, *path: object) -> str:
    """Return the id of a span by its path in a run: 16 hexadecimal digits. An empty path is the run."""
    return _hex_digest("span", run_id, *path, size=8)


_person = b"agents-trace"
_bases = {size: hashlib.blake2b(digest_size=size, person=_person) for size in (8, 16)}
"""Empty digests: copying one is five times as fast as creating one."""


def _hex_digest(*parts: object, size: int) -> str:
    digest = _bases[size].copy()
    digest.update("\x00".join(map(str, parts)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
