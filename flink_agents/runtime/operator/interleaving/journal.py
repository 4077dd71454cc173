"""The records of an interleaved run: each of its parts is recorded like a separate run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.buffered import END_OF_PART, BufferedJournal, ends_part
from flink_agents.runtime.journal.records import with_layout
from flink_agents.runtime.state.suspended import Suspension


class PartJournal(BufferedJournal):
    """The records of one part. Only the thread of the event loop uses it.

    Args:
        part_seq: The sequence number of the part, under which the store gets the records.
        records: The records of the part in the store.
        suspension: The stored form of the run if it was suspended; else None.
        arguments: The other arguments of ``BufferedJournal``, by their names.
    """

    def __init__(
        self, part_seq: int, records: Sequence[Record], suspension: Suspension | None, **arguments: Any
    ) -> None:
        self._part_seq = part_seq
        self._is_later = suspension is not None and suspension.released
        self._has_ended = any(map(ends_part, records))
        super().__init__(records=records, suspension=suspension, **arguments)

    async def end_part(self, counts: bool) -> None:
        """Store the records that the store lacks, and a last one that marks the end of the part.

        Args:
            counts: True if the part did anything.
        """
        if self._has_store and (self._unstored or (counts and not self._has_ended)):
            self._has_ended = True
            # Code that does not know this index takes it for a record of reads, with no reads in it.
            nothing = with_layout(self._codec, [True, True, self._codec.encode([])])
            await self._append([Record(RecordKind.RUN, self._seq, "", END_OF_PART, nothing)])

    @override
    def _repeated(self, suspended_records: Sequence[Record]) -> set[Record]:
        # A record of a later part may equal one of an earlier part. Then both count.
        return set() if self._is_later else super()._repeated(suspended_records)

    @override
    def _addressed(self, records: list[Record]) -> list[Record]:
        if self._part_seq == self._seq:
            return records
        return [record._replace(seq=self._part_seq) for record in records]
