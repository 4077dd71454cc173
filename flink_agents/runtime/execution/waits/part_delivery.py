"""Delivers outcomes to an execution of a run that was interleaved before."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from flink_agents.runtime.execution.delivery import Delivery, PendingOutcome
from flink_agents.runtime.execution.waits.parts import RunParts
from flink_agents.runtime.journal.calls import Number, Outcome


class PartDelivery(Delivery):
    """Shows the execution the memory of the part that an outcome belongs to, before it gets that.

    Args:
        parts: The parts of the run.
        path: The execution.
        arguments: Those of ``Delivery``.
    """

    def __init__(self, parts: RunParts, path: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parts = parts
        self._path = path

    @override
    def take(self, number: Number) -> Outcome | None:
        outcome = super().take(number)
        if outcome is not None:
            self._parts.deliver(self._path, number)
        return outcome

    @override
    def _give(self, pending: PendingOutcome, outcome: Outcome) -> None:
        self._parts.deliver(self._path, pending.number)
        super()._give(pending, outcome)
