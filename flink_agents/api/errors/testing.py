"""Errors of the test kit. The tree is in ``errors``."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors.base import AgentsError


class RecoveryMismatchError(AgentsError, AssertionError):
    """After a crash and a restore, an agent had another result than without the crash.

    Attributes:
        key: The key with the difference; None if it is not a single key.
        sequence_number: Number of the run that was in flight, within that key, from 0.
        crash_point: The step of the run, in words, at which the operator crashed.
        difference: Text of the first difference: in outputs, a side output, memory, timestamps, effects or
            the end.
    """

    code = "FA8000"

    def __init__(
        self,
        message: str,
        *,
        key: object = None,
        sequence_number: int = 0,
        crash_point: str = "",
        difference: str = "",
        **kwargs: Any,
    ) -> None:
        self.key = key
        self.sequence_number = sequence_number
        self.crash_point = crash_point
        self.difference = difference
        super().__init__(message, **kwargs)


class HarnessUseError(AgentsError):
    """A test uses the test kit in an invalid way."""

    code = "FA8100"


class HarnessHangError(HarnessUseError, TimeoutError):
    """Runs in a harness do not end. The text has the stack of each of them."""

    code = "FA8101"
