"""Suspends interleaved runs on the event loop: a part of the run ends, and is committed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.buffered import BufferedJournal
from flink_agents.runtime.journal.memory.reads import Read, recorded_reads
from flink_agents.runtime.journal.memory.traced_memory import TracedTree
from flink_agents.runtime.loop.queued_input import CommittedSegment, QueuedInput
from flink_agents.runtime.operator.interleaving.journal import PartJournal
from flink_agents.runtime.operator.interleaving.memory import PartTree
from flink_agents.runtime.operator.interleaving.parts import InterleavedParts
from flink_agents.runtime.state.suspended import Suspension


class Interleaving:
    """Releases the keys of suspended runs. Used on the event loop only.

    Args:
        shared: The agent's shared objects.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        self._codec = shared.codec
        self._always = shared.settings.interleaves

    def journal(self, part_seq: int, **arguments: Any) -> BufferedJournal:
        """Return the journal of a part; see ``KeyRelease``."""
        return PartJournal(part_seq, **arguments)

    def parts(self, run: Run, suspension: Suspension) -> InterleavedParts | None:
        """Return the parts of a run. From now on, the run sees their memory."""
        if not suspension.parts:
            return None
        records = suspension.records
        done = 0
        reads = list[list[Read]]()
        for _, count in suspension.parts:
            reads.append(recorded_reads(self._codec, records[done:count]))
            done = count
        assert isinstance(run.short_term, TracedTree)
        run.short_term = memory = PartTree(run.short_term, reads, run.undo)
        return InterleavedParts(memory, records, suspension.parts)

    async def end_part(self, run: Run, waiting: QueuedInput) -> CommittedSegment | None:
        """End a part of a run, store its records, and return its changes."""
        if not (self._always or waiting.is_later_part):
            return None
        journal = run.journal
        assert isinstance(journal, PartJournal) and run.waits is not None
        previous_suspension = waiting.suspension
        changes = run.short_term.changes()
        before_count = len(previous_suspension.records) if previous_suspension is not None else 0
        counts = not waiting.is_later_part or bool(
            waiting.records or changes or len(journal.all_records) > before_count
        )
        # Before the part is committed: a replay must know where it ended.
        await journal.end_part(counts)
        return CommittedSegment(waiting.number, waiting.seq, changes, counts, run.waits.ends_part)

    def left(
        self, suspension: Suspension, run: Run, waiting: QueuedInput, path: str, part: CommittedSegment
    ) -> Suspension:
        """Return the stored form of a run; see ``KeyRelease``."""
        previous_suspension = waiting.suspension
        parts: list[tuple[str, int]] = []
        packed = waiting.packed
        number = suspension.number
        if previous_suspension is not None:
            number = previous_suspension.number
            if previous_suspension.input is not None:
                parts = list(previous_suspension.parts)
                packed = previous_suspension.input
        if part.counts:
            parts.append((path, len(suspension.records)))
        # The store has all records. The next part has its own number and header.
        return replace(
            suspension,
            number=number,
            unstored=(),
            bound=False,
            recorded=False,
            parts=tuple(parts),
            input=packed,
            identity=run.identity,
        )
