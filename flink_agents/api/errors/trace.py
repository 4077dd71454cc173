"""Errors of the trace: of its options, its sinks and its readers."""

from __future__ import annotations

from flink_agents.api.errors.base import AgentsError


class TraceError(AgentsError):
    """The trace cannot be written or read as requested."""

    code = "FA6100"


class UnknownTraceSinkError(TraceError):
    """The option ``trace.sinks`` names a sink that is not installed or cannot be imported."""

    code = "FA6101"


class TraceOptionError(TraceError):
    """An option of the trace has an invalid value."""

    code = "FA6102"


class TraceNotFoundError(TraceError):
    """There are no trace records at the given place."""

    code = "FA6103"


class TraceFormatError(TraceError):
    """A trace record is corrupt, or was written by a newer version."""

    code = "FA6104"
