"""The interface of sinks, and the subtask and options that a sink is created for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flink_agents.api.settings.options import Configuration
from flink_agents.trace.records import TraceRecord


@dataclass(frozen=True)
class TraceTarget:
    """The subtask and options that a sink is created for.

    Attributes:
        agent: Name of the agent.
        subtask: Number of the subtask.
        config: Options of the job.
    """

    agent: str
    subtask: int
    config: Configuration


TraceLine = tuple[str, bytes]
"""A record as a line of JSON, with its line break, after the id of its run."""


class TraceSink(Protocol):
    """Writes records. All methods are called by one thread, and may block and raise.

    A sink that only writes bytes can have a method ``write_lines``, which gets a sequence of ``TraceLine``
    instead. A line can hold several records: ``flink_agents.trace.folding.unfold_records`` expands it.
    """

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Write records; may block.

        If this raises, all of these records count as dropped.
        """
        ...

    def close(self) -> None:
        """Write what is buffered, and release all resources."""
        ...
