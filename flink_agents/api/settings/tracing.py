"""The levels of the trace, and the names of its sinks."""

from __future__ import annotations

from enum import StrEnum

from flink_agents.api.common.providers import Providers
from flink_agents.api.errors.trace import UnknownTraceSinkError


class TraceLevel(StrEnum):
    """The amount of trace records of a run. Each level includes the previous one.

    Attributes:
        OFF: No records; no recorder is attached.
        RUNS: The start and end of each run, its waits and its failures.
        CALLS: Also its actions and durable steps, with their durations.
        CONTENT: Also requests and results of durable steps, redacted and cut.
    """

    OFF = "off"
    RUNS = "runs"
    CALLS = "calls"
    CONTENT = "content"

    @property
    def rank(self) -> int:
        """The position of the level, from 0."""
        return list(TraceLevel).index(self)


TRACE_SINKS = Providers("flink_agents.trace_sinks", "trace sink", UnknownTraceSinkError)
"""Each provider is a function that creates a sink from a ``flink_agents.trace.sinks.TraceTarget``."""
