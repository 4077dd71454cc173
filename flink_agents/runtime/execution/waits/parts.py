"""The parts of a run that frees its key while it is suspended: finds the part that its code is in.

A part ends where the run was suspended: at a wait of one execution, after all outcomes that were recorded
by then. The next outcome of this execution starts the next part, and so does any later execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.execution.outcomes.delivery import Delivery
from flink_agents.runtime.execution.outcomes.pending_outcomes import PendingOutcome
from flink_agents.runtime.journal.calls import Number, Outcome, task_of
from flink_agents.runtime.journal.memory_reads import PartTree


class RunParts:
    """Shows the code of a run the memory of the part that it is in. Used on the event loop only.

    Args:
        memory: The memory of all parts.
        records: The records of the earlier parts, in order.
        ends: The end of each of them: the execution that waited, and the number of records by then.
    """

    def __init__(self, memory: PartTree, records: Sequence[Record], ends: Sequence[tuple[str, int]]) -> None:
        self._memory = memory
        self._last = len(ends)
        self._part_of: dict[tuple[str, Number], int] = {}
        self._started_in: dict[str, int] = {}
        self._last_parts: dict[str, int] = {}
        done = 0
        for part, (waiting, count) in enumerate(ends):
            for record in records[done:count]:
                self._note(record, part)
            # The execution that waited started in this part, or in an earlier one.
            self._started_in.setdefault(waiting, part)
            done = count

    def begin(self, path: str) -> None:
        """Note that an attempt of an execution starts, and show the part in which it started first."""
        self._memory.go_to(self._started_in.get(path, self._last))

    def replay(self, path: str) -> None:
        """Note that an execution is taken from its record, and show the part in which it ended."""
        self._memory.go_to(self._last_parts.get(path, self._last))

    def deliver(self, path: str, number: Number) -> None:
        """Note that an execution gets an outcome, and show the part that the outcome belongs to."""
        self._memory.enter(self._part_of.get((path, number), self._last))

    def void(self, path: str) -> None:
        """Drop the records of an execution: it runs again, in the last part."""
        self._started_in.pop(path, None)
        self._last_parts.pop(path, None)
        for place in [place for place in self._part_of if place[0] == path]:
            del self._part_of[place]

    def delivery(self, path: str, *arguments: Any) -> Delivery:
        """Return a delivery for an execution, given the arguments of ``Delivery``."""
        return PartDelivery(self, path, *arguments)

    def _note(self, record: Record, part: int) -> None:
        path, task = task_of(record.step)
        if record.kind in (RecordKind.CALL, RecordKind.WAIT):
            self._part_of[path, Number(record.kind, task, record.index)] = part
        elif record.kind is RecordKind.ACTION:
            self._last_parts[path] = part
        elif record.kind is RecordKind.RERUN:
            self.void(path)


class PartDelivery(Delivery):
    """Shows the execution the memory of the part that an outcome belongs to, before it delivers the outcome.

    Args:
        parts: The parts of the run.
        path: The path of the execution.
        arguments: The arguments of ``Delivery``.
    """

    def __init__(self, parts: RunParts, path: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._parts = parts
        self._path = path

    @override
    def take_recorded(self, number: Number) -> Outcome | None:
        outcome = super().take_recorded(number)
        if outcome is not None:
            self._parts.deliver(self._path, number)
        return outcome

    @override
    def _deliver_outcome(self, pending: PendingOutcome, outcome: Outcome) -> None:
        self._parts.deliver(self._path, pending.number)
        super()._deliver_outcome(pending, outcome)
