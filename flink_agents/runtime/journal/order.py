"""The order in which inputs of a key run, while it has recorded runs.

After a restart, Flink sends the inputs of a key again. If they come from several upstream subtasks, their
order may differ. Records belong to their own input. So the next recorded run waits for the input whose digest
is in its header. An input without a header had no records. It gets a free number before the next recorded
run, or after the last one.

If the input of a recorded run does not come in time, the run is *skipped*:
later runs go first. It keeps its number and its records, and runs when its input comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.serde.codec import ValueCodec


class RecordedRuns:
    """The recorded runs of a key that were not replayed yet.

    Args:
        codec: Reads headers.
        records: Records of all runs from the first that is not committed on, and of those that were skipped.
        skipped: Sequence numbers of the runs that were skipped, because their inputs did not come in time.
    """

    def __init__(self, codec: ValueCodec, records: Iterable[Record], skipped: Iterable[int] = ()) -> None:
        self._records: dict[int, list[Record]] = {}
        self._headers: dict[int, RunHeader] = {}
        for record in records:
            self._records.setdefault(record.seq, []).append(record)
            if record.kind is RecordKind.RUN and record.index == 0:
                header = RunHeader.unpack(codec, record.data)
                # A later header of the same run replaces an earlier one. Values for debugging may be large.
                self._headers[record.seq] = header._replace(input=None, memory=None)
        self._skipped = {seq for seq in skipped if seq in self._records}
        self._awaited = deque(seq for seq in sorted(self._records) if seq not in self._skipped)
        self._unclaimed: dict[bytes, deque[int]] = {}
        for seq, header in sorted(self._headers.items()):
            self._unclaimed.setdefault(header.digest, deque()).append(seq)

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def first(self) -> int | None:
        """Sequence number of the first run that waits for its input; None if none does."""
        return self._awaited[0] if self._awaited else None

    def begin_of(self, seq: int) -> int:
        """Return the first sequence number of the generation of the key in which a run was recorded."""
        header = self._headers.get(seq)
        return 0 if header is None else header.begin

    @property
    def awaited(self) -> Iterable[int]:
        """Sequence numbers of the runs that wait for their inputs, in order, without skipped ones."""
        return self._awaited

    @property
    def skipped(self) -> frozenset[int]:
        """Sequence numbers of the runs that were skipped."""
        return frozenset(self._skipped)

    @property
    def runs(self) -> Iterable[Sequence[Record]]:
        """The records of each run, also of skipped ones."""
        return self._records.values()

    def is_skipped(self, seq: int) -> bool:
        """Return True if the run with a sequence number was skipped, because its input did not come."""
        return seq in self._skipped

    @property
    def plans(self) -> Iterable[str]:
        """The fingerprint of the plan that each run was recorded with."""
        return (header.plan for header in self._headers.values())

    def claim(self, digest: bytes) -> int | None:
        """Match an input with the first recorded run that has its digest and no input yet.

        Returns:
            The sequence number of the run; None if no run matches.
        """
        unclaimed = self._unclaimed.get(digest)
        if not unclaimed:
            return None
        seq = unclaimed.popleft()
        if not unclaimed:
            del self._unclaimed[digest]
        return seq

    def skip(self, seqs: Iterable[int]) -> None:
        """Note that the first awaited runs are skipped: all of ``seqs``, in order."""
        for seq in seqs:
            # Runs are skipped in order, or a later one could wait for one that was given up.
            assert self._awaited.popleft() == seq
            self._skipped.add(seq)

    def remove_run(self, seq: int) -> list[Record]:
        """Remove and return the records of a run that starts now; empty if it has none."""
        records = self._records.pop(seq, [])
        if self._awaited and self._awaited[0] == seq:
            self._awaited.popleft()
        self._skipped.discard(seq)
        return records

    def resume(self, seq: int) -> list[Record]:
        """Remove and return the records of a suspended run. Its input is known from state."""
        unclaimed = self._unclaimed_of(seq)
        if seq in unclaimed:
            unclaimed.remove(seq)
        return self.remove_run(seq)

    def give_up(self, seq: int) -> bool:
        """Drop a skipped run and return True; if its input has come, keep it and return False."""
        unclaimed = self._unclaimed_of(seq)
        if seq in unclaimed:
            unclaimed.remove(seq)
        elif seq in self._headers:
            return False
        self._records.pop(seq, None)
        self._skipped.discard(seq)
        return True

    def _unclaimed_of(self, seq: int) -> deque[int]:
        """Return the runs without an input whose inputs have the same digest as that of run ``seq``."""
        header = self._headers.get(seq)
        return deque() if header is None else self._unclaimed.get(header.digest, deque())


@dataclass(frozen=True, slots=True)
class NextRun:
    """The choice of the input that runs next.

    Attributes:
        number: Its number among the inputs of the key that wait.
        seq: Sequence number of its run.
        skips: Sequence numbers of the recorded runs that are skipped for it: their inputs did not come.
    """

    number: int
    seq: int
    skips: tuple[int, ...] = ()


class InputOrder:
    """The order in which the inputs of a key run, while it has recorded runs.

    Each input is examined once, in the order of arrival. Only its number is stored.

    Args:
        recorded: The recorded runs.
        first: Number of the first input that waits.

    Attributes:
        recorded: The recorded runs that are left.
        looked: Number of the first input that was not examined.
    """

    __slots__ = ("_came", "_cursor", "_late", "_skipped", "looked", "recorded")

    def __init__(self, recorded: RecordedRuns, first: int) -> None:
        self.recorded = recorded
        self.looked = first
        # The number of the input of each recorded run whose input has come.
        self._came: dict[int, int] = {}
        # Skipped runs whose inputs have come.
        self._late: deque[int] = deque()
        # Examined inputs from the cursor on belong to no recorded run, except in the ranges of `_skipped`.
        self._cursor = first
        self._skipped: deque[list[int]] = deque()

    @property
    def drained(self) -> bool:
        """True if no recorded run and no examined input is left: inputs run in the order of arrival then."""
        return not self.recorded and self._oldest_unknown() is None

    def examine_input(self, digest: bytes | None) -> None:
        """Match the next input, in the order of arrival, with a recorded run.

        Args:
            digest: Its digest; None if it was committed before older inputs, and is gone.
        """
        number = self.looked
        self.looked += 1
        seq = None if digest is None else self.recorded.claim(digest)
        if seq is not None:
            self._came[seq] = number
            if self.recorded.is_skipped(seq):
                self._late.append(seq)
        if seq is not None or digest is None:
            if self._skipped and self._skipped[-1][1] == number:
                self._skipped[-1][1] += 1
            else:
                self._skipped.append([number, number + 1])

    def next(self, next_seq: int, waiting: bool) -> NextRun | None:
        """Choose the examined input that runs next; None if all have to wait.

        Args:
            next_seq: The sequence number of the key's next run without records.
            waiting: True if a recorded run may still wait for its input; False to skip it.
        """
        # A skipped run whose input has come goes first: it is older than all others.
        if self._late:
            return NextRun(self._came[self._late[0]], self._late[0])
        first = self.recorded.first
        unknown = self._oldest_unknown()
        # No recorded run waits, so unknown inputs run in the order of arrival.
        if first is None:
            return None if unknown is None else NextRun(unknown, next_seq)
        if next_seq < first:
            # A run without records came before the recorded one, which may have seen what it wrote.
            if unknown is not None:
                return NextRun(unknown, next_seq)
            # If the key expired in between, there are no runs between its two generations.
            if self.recorded.begin_of(first) > next_seq and first in self._came:
                return NextRun(self._came[first], first)
        elif first in self._came:
            return NextRun(self._came[first], first)
        return None if waiting else self._choose_by_skipping(next_seq, unknown)

    def start_run(self, choice: NextRun) -> list[Record]:
        """Remove the chosen input from the order, and return the records of its run; empty if it has none."""
        # Before `remove_run`: a skipped run must not count as awaited any longer.
        self.recorded.skip(choice.skips)
        if self._came.pop(choice.seq, None) is None:
            self._cursor = choice.number + 1
        elif self._late and self._late[0] == choice.seq:
            self._late.popleft()
        return self.recorded.remove_run(choice.seq)

    def _oldest_unknown(self) -> int | None:
        """Return the number of the oldest examined input without a recorded run; None if there is none."""
        while self._skipped and self._skipped[0][0] <= self._cursor:
            self._cursor = max(self._cursor, self._skipped.popleft()[1])
        return self._cursor if self._cursor < self.looked else None

    def _choose_by_skipping(self, next_seq: int, unknown: int | None) -> NextRun | None:
        """Return the choice if the input of the next recorded run does not come. Recorded runs go first."""
        skips = list[int]()
        for seq in self.recorded.awaited:
            if seq in self._came:
                return NextRun(self._came[seq], seq, tuple(skips))
            # This run's input has not come either, so it is skipped as well.
            skips.append(seq)
        if unknown is None:
            return None
        return NextRun(unknown, max(next_seq, skips[-1] + 1), tuple(skips))
