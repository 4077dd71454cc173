"""Which input belongs to which recorded run.

After a restart Flink brings the inputs of a key again, but where they come from several upstream
subtasks not always in the same order. What was recorded belongs to its own input: the next
recorded run waits for the input whose digest its header has. An input that no header knows had
recorded nothing, and takes the numbers that are free before the next recorded run, or those
behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.records import RunHeader


class RecordedRuns:
    """The recorded runs of a key that were not run again yet.

    Args:
        codec: Reads headers.
        records: All of them from the first run on that is not committed, in order.
    """

    def __init__(self, codec: ValueCodec, records: Iterable[Record]) -> None:
        self._records: dict[int, list[Record]] = {}
        self._digests: dict[int, bytes] = {}
        self._plans: dict[int, str] = {}
        for record in records:
            self._records.setdefault(record.seq, []).append(record)
            if record.kind is RecordKind.RUN:
                header = RunHeader.unpack(codec, record.data)
                self._digests[record.seq], self._plans[record.seq] = header.digest, header.plan

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def first(self) -> int | None:
        """Sequence number of the next recorded run; None where there is none."""
        return min(self._records, default=None)

    @property
    def last(self) -> int | None:
        """Sequence number of the last recorded run; None where there is none."""
        return max(self._records, default=None)

    def plans(self) -> Iterator[tuple[str, set[str]]]:
        """Of each run the fingerprint of its plan, and the actions that recorded something."""
        for seq, plan in self._plans.items():
            records = self._records.get(seq, ())
            steps = {task_of(record.step)[0] for record in records if record.kind is not RecordKind.RUN}
            yield plan, {step.rpartition("/")[2] for step in steps}

    def number_of(self, digest: bytes) -> int | None:
        """The first recorded run of an input with that digest."""
        return min((seq for seq, known in self._digests.items() if known == digest), default=None)

    def take(self, seq: int) -> list[Record]:
        """The records of a run, which is run now; none where nothing was recorded."""
        self._digests.pop(seq, None)
        return self._records.pop(seq, [])

    def choose(self, digests: list[bytes], next_seq: int, waiting: bool) -> tuple[int, int] | None:
        """Which of the inputs at hand runs next.

        Args:
            digests: Those of the inputs at hand, oldest first.
            next_seq: The next number that was not used.
            waiting: Whether a recorded run may still wait for its input.

        Returns:
            Position of the input and sequence number of its run; None where all have to wait.
        """
        first, last = self.first, self.last
        if first is None or last is None:
            return (0, next_seq) if digests else None
        if next_seq < first:
            # A run without records came before the recorded one, which may have seen what it wrote.
            unknown = [number for number, digest in enumerate(digests) if self.number_of(digest) is None]
            if unknown:
                return unknown[0], next_seq
        else:
            for position, digest in enumerate(digests):
                if self._digests.get(first) == digest:
                    return position, first
        if waiting or not digests:
            return None
        # The input of the next recorded run does not come. Others go on: those that are known first.
        for seq in sorted(self._digests):
            if self._digests[seq] in digests:
                return digests.index(self._digests[seq]), seq
        return 0, max(next_seq, last + 1)
