"""Errors of the test kit. The tree is in ``errors``."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors.base import AgentsError


class RecoveryMismatchError(AgentsError, AssertionError):
    """After a crash and a restore, an agent came to something else than without.

    Attributes:
        key: The key of which something differs; None where no single one is known.
        sequence_number: Number of the run that was in flight, within that key, from 0.
        crash_point: Where the operator died.
        difference: What differs: outputs, a side output, memory, timestamps, effects or the end.
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
    """A test asks the test kit for something that makes no sense."""

    code = "FA8100"
