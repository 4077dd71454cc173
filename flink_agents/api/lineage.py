"""Where an output comes from: the run that put it out, and the message that began that run.

An agent that is applied with ``lineage=True`` emits each value inside a :class:`TracedOutput`. A sink can
write what it says beside the value, and a source in another job can read it again, so that the way of an
event can be followed over jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""A context of W3C Trace Context: version, trace, span and flags."""


@dataclass(frozen=True, slots=True)
class OutputLineage:
    """The origin of one output of an agent. A repeated run gives its outputs the same one.

    Attributes:
        id: Id of the output: ``run_id``, a dash, and its number among the outputs of the run, from 0.
        run_id: Id of the input event that began the run, 24 hexadecimal digits.
        agent: Name of the agent in its job.
        key: Canonical text of the key.
        sequence_number: Number of the run within the key.
        parent: Id of the message that was the input: its ``message_id``. None where it had none. Of a run
            that a delayed event began, the ``run_id`` of the run that sent it.
        traceparent: Span of the run in W3C Trace Context, for whoever traces what follows from the output.
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
        lineage: Where it comes from.
    """

    value: Any
    lineage: OutputLineage

    @property
    def message_id(self) -> str:
        """The id that outputs of a next agent name as their parent."""
        return self.lineage.id

    @property
    def traceparent(self) -> str | None:
        """The span that runs of a next agent continue."""
        return self.lineage.traceparent


def message_id_of(record: object) -> str | None:
    """Return the id of an input: its attribute ``message_id``, where it has one that is a text."""
    found = getattr(record, "message_id", None)
    return found if isinstance(found, str) else None


def traceparent_of(record: object) -> str | None:
    """Return the trace context that an input continues: its attribute ``traceparent``, if that is valid."""
    found = getattr(record, "traceparent", None)
    return found if isinstance(found, str) and _TRACEPARENT.fullmatch(found) else None
