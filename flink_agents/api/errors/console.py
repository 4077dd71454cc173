"""Errors of the console in the browser."""

from __future__ import annotations

from flink_agents.api.errors.trace import TraceError


class ConsoleError(TraceError):
    """The console cannot start, or cannot do what a page asks."""

    code = "FA6120"


class UnsafeAddressError(ConsoleError):
    """The console would listen beyond this machine without a token."""

    code = "FA6121"


class RejectedAnswerError(ConsoleError):
    """A page sends something that does not fit: an answer, a signal or dead letters to put back."""

    code = "FA6122"
