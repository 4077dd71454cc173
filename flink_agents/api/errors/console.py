"""Errors of the console in the browser."""

from __future__ import annotations

from flink_agents.api.errors.trace import TraceError


class ConsoleError(TraceError):
    """The console cannot start, or cannot execute a request of a page."""

    code = "FA6120"


class UnsafeAddressError(ConsoleError):
    """The console would listen beyond this machine without a token."""

    code = "FA6121"


class RejectedAnswerError(ConsoleError):
    """A page sent an invalid answer, signal or list of dead letters."""

    code = "FA6122"
