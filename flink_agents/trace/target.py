"""What a sink is, and what it is made for: whose records it takes, and the options of the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flink_agents.api.settings.options import Configuration
from flink_agents.trace.records import TraceRecord


@dataclass(frozen=True)
class TraceTarget:
    """What a sink is made for.

    Attributes:
        agent: Name of the agent.
        subtask: Number of the subtask.
        config: Options of the job.
    """

    agent: str
    subtask: int
    config: Configuration


class TraceSink(Protocol):
    """Takes records. All methods are called by one thread, and may block and raise."""

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Write ``records``; what it raises counts all of them as dropped."""
        ...

    def close(self) -> None:
        """Write what is left, and let go of everything."""
        ...
