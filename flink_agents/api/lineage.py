"""The origin of an output: the run that emitted it, and the message that started that run.

An agent that is applied with ``lineage=True`` emits each value inside a :class:`TracedOutput`. A sink can
write the origin next to the value, and a source in another job can read it, so that you can follow an event
across jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""A ``traceparent`` of W3C Trace Context: version, trace, span and flags."""


@dataclass(frozen=True, slots=True)
class OutputLineage:
    """The origin of one output of an agent. It is the same if the run is repeated.

    Attributes:
        id: Id of the output: ``run_id``, a dash, and its number among the outputs of the run, from 0.
        run_id: Id of the input event that started the run, 24 hexadecimal digits.
        agent: Name of the agent in its job.
        key: Canonical text of the key.
        sequence_number: Number of the run within the key.
        parent: Id of the input message: its ``message_id``, or None without one. If a delayed event started
            the run, the ``run_id`` of the run that sent it.
        traceparent: Span of the run in W3C Trace Context, as the parent of downstream spans.
    """

    id: str
    run_id: str
    agent: str
    key: str
    sequence_number: int
    parent: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class TracedOutput:
    """An output of an agent that was applied with ``lineage=True``.

    Attributes:
        value: The output of the agent.
        lineage: Its origin.
    """

    value: Any
    lineage: OutputLineage

    @property
    def message_id(self) -> str:
        """The id that a downstream agent's outputs have as their parent."""
        return self.lineage.id

    @property
    def traceparent(self) -> str | None:
        """The span that a downstream agent's runs continue."""
        return self.lineage.traceparent


def message_id_of(record: object) -> str | None:
    """Return the id of an input message: the record's attribute ``message_id``; None if it is no string."""
    message_id = getattr(record, "message_id", None)
    return message_id if isinstance(message_id, str) else None


def traceparent_of(record: object) -> str | None:
    """Return the trace context of an input: the record's attribute ``traceparent``; None if it is invalid."""
    traceparent = getattr(record, "traceparent", None)
    return traceparent if isinstance(traceparent, str) and _TRACEPARENT.fullmatch(traceparent) else None
