"""Which input belongs to which recorded run.

After a restart Flink brings the inputs of a key again, but where they come from several upstream
subtasks not always in the same order. What was recorded belongs to its own input: the next
recorded run waits for the input whose digest its header has. An input that no header knows had
recorded nothing, and takes the numbers that are free before the next recorded run, or those
behind the last one.

A recorded run whose input does not come in time is *overtaken*: runs behind it go on. It keeps its
number and its records, and is run when its input comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.serde.codec import ValueCodec


class RecordedRuns:
    """The recorded runs of a key that were not run again yet.

    Args:
        codec: Reads headers.
        records: Of all runs from the first on that is not committed, and of those that were overtaken.
        overtaken: Numbers of the runs that others have overtaken.
    """

    def __init__(self, codec: ValueCodec, records: Iterable[Record], overtaken: Iterable[int] = ()) -> None:
        self._records: dict[int, list[Record]] = {}
        self._digests: dict[int, bytes] = {}
        self._plans: dict[int, str] = {}
        self._begins: dict[int, int] = {}
        for record in records:
            self._records.setdefault(record.seq, []).append(record)
            if record.kind is RecordKind.RUN and record.index == 0:
                header = RunHeader.unpack(codec, record.data)
                self._digests[record.seq], self._plans[record.seq] = header.digest, header.plan
                self._begins[record.seq] = header.begin
        self._overtaken = {seq for seq in overtaken if seq in self._records}
        self._awaited = deque(seq for seq in sorted(self._records) if seq not in self._overtaken)
        self._unclaimed: dict[bytes, deque[int]] = {}
        for seq in sorted(self._digests):
            self._unclaimed.setdefault(self._digests[seq], deque()).append(seq)

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def first(self) -> int | None:
        """Sequence number of the run that waits for its input, before all others; None where none does."""
        return self._awaited[0] if self._awaited else None

    def begin_of(self, seq: int) -> int:
        """With which number the incarnation of the key began that a run belongs to."""
        return self._begins.get(seq, 0)

    @property
    def awaited(self) -> Iterable[int]:
        """Sequence numbers of the runs that wait for their inputs, in order; not those overtaken."""
        return self._awaited

    @property
    def overtaken(self) -> frozenset[int]:
        """Sequence numbers of the runs that others have overtaken."""
        return frozenset(self._overtaken)

    @property
    def runs(self) -> Iterable[Sequence[Record]]:
        """The records of each run, also of those that others have overtaken."""
        return self._records.values()

    def is_overtaken(self, seq: int) -> bool:
        """Whether others have overtaken that run."""
        return seq in self._overtaken

    @property
    def plans(self) -> Collection[str]:
        """The fingerprint of the plan of each run."""
        return self._plans.values()

    def claim(self, digest: bytes) -> int | None:
        """The first run whose input has that digest and has not come yet: now it has come."""
        unclaimed = self._unclaimed.get(digest)
        if not unclaimed:
            return None
        seq = unclaimed.popleft()
        if not unclaimed:
            del self._unclaimed[digest]
        return seq

    def overtake(self, seqs: Iterable[int]) -> None:
        """Note that others have overtaken the first awaited runs: all of ``seqs``, in order."""
        for seq in seqs:
            assert self._awaited.popleft() == seq
            self._overtaken.add(seq)

    def take(self, seq: int) -> list[Record]:
        """The records of a run, which is run now; none where nothing was recorded."""
        records = self._records.pop(seq, [])
        if self._awaited and self._awaited[0] == seq:
            self._awaited.popleft()
        self._overtaken.discard(seq)
        return records

    def resume(self, seq: int) -> list[Record]:
        """The records of a run that was suspended, whose input is known without them."""
        if seq in self._digests:
            unclaimed = self._unclaimed.get(self._digests[seq])
            if unclaimed is not None and seq in unclaimed:
                unclaimed.remove(seq)
        return self.take(seq)

    def give_up(self, seq: int) -> bool:
        """Forget an overtaken run; False where its input has come."""
        unclaimed = self._unclaimed.get(self._digests.get(seq, b""), ())
        if seq in self._digests and seq not in unclaimed:
            return False
        self._records.pop(seq, None)
        self._overtaken.discard(seq)
        if seq in self._digests:
            self._unclaimed[self._digests[seq]].remove(seq)
        return True


@dataclass(frozen=True, slots=True)
class NextRun:
    """Which input runs next.

    Attributes:
        number: Its number among the inputs of the key that wait.
        seq: Sequence number of its run.
        overtakes: Recorded runs that it overtakes.
    """

    number: int
    seq: int
    overtakes: tuple[int, ...] = ()


class InputOrder:
    """The order in which the inputs of a key run, as long as it has recorded runs.

    Each input is looked at once, in the order of arrival, and only its number is kept.

    Args:
        recorded: The recorded runs.
        first: Number of the first input that waits.

    Attributes:
        recorded: See above.
        looked: Number of the first input that was not looked at.
    """

    __slots__ = ("_came", "_cursor", "_late", "_skipped", "looked", "recorded")

    def __init__(self, recorded: RecordedRuns, first: int) -> None:
        self.recorded = recorded
        self.looked = first
        # Of each recorded run whose input has come the number of that input.
        self._came: dict[int, int] = {}
        # Overtaken runs whose inputs have come.
        self._late: deque[int] = deque()
        # All inputs from here on that were looked at are no recorded ones, but those of these ranges.
        self._cursor = first
        self._skipped: deque[list[int]] = deque()

    @property
    def drained(self) -> bool:
        """Whether the order is that of arrival from here on."""
        return not self.recorded and self._unknown() is None

    def look(self, digest: bytes | None) -> None:
        """Take the next input into account.

        Args:
            digest: Its digest; None where it was committed before older ones, and is gone.
        """
        number = self.looked
        self.looked += 1
        seq = None if digest is None else self.recorded.claim(digest)
        if seq is not None:
            self._came[seq] = number
            if self.recorded.is_overtaken(seq):
                self._late.append(seq)
        if seq is not None or digest is None:
            if self._skipped and self._skipped[-1][1] == number:
                self._skipped[-1][1] += 1
            else:
                self._skipped.append([number, number + 1])

    def next(self, next_seq: int, waiting: bool) -> NextRun | None:
        """Which of the inputs that were looked at runs next; None where all have to wait.

        Args:
            next_seq: The next number that was not used.
            waiting: Whether a recorded run may still wait for its input.
        """
        if self._late:
            return NextRun(self._came[self._late[0]], self._late[0])
        first, unknown = self.recorded.first, self._unknown()
        if first is None:
            return None if unknown is None else NextRun(unknown, next_seq)
        if next_seq < first:
            # A run without records came before the recorded one, which may have seen what it wrote.
            if unknown is not None:
                return NextRun(unknown, next_seq)
            # Of a key that was forgotten in between, no run lies between two incarnations.
            if self.recorded.begin_of(first) > next_seq and first in self._came:
                return NextRun(self._came[first], first)
        elif first in self._came:
            return NextRun(self._came[first], first)
        return None if waiting else self._overtaking(next_seq, unknown)

    def take(self, choice: NextRun) -> list[Record]:
        """Let an input run; returns what was recorded of its run."""
        self.recorded.overtake(choice.overtakes)
        if self._came.pop(choice.seq, None) is None:
            self._cursor = choice.number + 1
        elif self._late and self._late[0] == choice.seq:
            self._late.popleft()
        return self.recorded.take(choice.seq)

    def _unknown(self) -> int | None:
        """The oldest input of no recorded run."""
        while self._skipped and self._skipped[0][0] <= self._cursor:
            self._cursor = max(self._cursor, self._skipped.popleft()[1])
        return self._cursor if self._cursor < self.looked else None

    def _overtaking(self, next_seq: int, unknown: int | None) -> NextRun | None:
        """The input of the next recorded run does not come: others go on, those that are known first."""
        overtakes = list[int]()
        for seq in self.recorded.awaited:
            if seq in self._came:
                return NextRun(self._came[seq], seq, tuple(overtakes))
            overtakes.append(seq)
        if unknown is None:
            return None
        return NextRun(unknown, max(next_seq, overtakes[-1] + 1), tuple(overtakes))
