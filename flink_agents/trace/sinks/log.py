"""Writes each record to the log of the TaskManager, as a line that starts with ``agent-trace``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flink_agents.api.common.logs import MAX_CHARACTERS, bounded_logger
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.target import TraceTarget

MARK = "agent-trace "


class LogSink:
    """Logs records at level ``INFO``.

    A record that is too long for a line is logged without its attributes.
    """

    def __init__(self) -> None:
        self._log = bounded_logger("flink_agents.trace.records")

    @classmethod
    def from_target(cls, target: TraceTarget) -> LogSink:
        """Create the sink for a subtask."""
        return cls()

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Log each record as a line; one that is too long without its attributes."""
        for record in records:
            line = record.to_json()
            if len(line) > MAX_CHARACTERS:
                line = replace(record, attributes={"cut": True}).to_json()
            self._log.info("%s%s", MARK, line)

    def close(self) -> None:
        """Do nothing: the log is Flink's."""
