"""Tells a sink whose records it takes, and the options of the trace."""

from __future__ import annotations

from dataclasses import dataclass

from flink_agents.api.settings.options import Configuration


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
