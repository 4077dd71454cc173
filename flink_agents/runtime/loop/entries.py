"""The entries of an actor: inputs that wait for their runs, and runs that wait for their commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.action_state import Record
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.other_jobs import identity_of
from flink_agents.runtime.state.suspended import Suspension


@dataclass(slots=True)
class QueuedInput:
    """An input that waits for its run, or a run that started on Flink's task thread.

    Attributes:
        record: The input.
        timestamp: Its event time in milliseconds, or None.
        number: Its number among the inputs of the key that wait.
        packed: Input and event time as they arrived, encoded. Changes that an action makes do not reach it.
        seq: Sequence number of its run; for a run of several parts, of the next part.
        run: The run, if it has started.
        step: The step of that run that must be awaited.
        records: Records of the run by earlier attempts.
        skips: Recorded runs that are skipped from this run on, because their inputs did not come in time.
        ends_replay: True if the key has no other recorded runs when it starts.
        ordered: True if the key had recorded runs when it was chosen.
        state: The state of the run; None before it is in the inbox.
        suspension: The stored form of the run if it was suspended; else None.
    """

    record: Any
    timestamp: int | None
    number: int
    packed: bytes
    seq: int
    run: Run | None = None
    step: ActionRun | None = None
    records: Sequence[Record] = ()
    skips: tuple[int, ...] = ()
    ends_replay: bool = True
    ordered: bool = False
    state: RunState | None = None
    suspension: Suspension | None = None

    @property
    def run_seq(self) -> int:
        """Sequence number of the run, whichever part of it is next."""
        return self.seq if self.suspension is None else self.suspension.seq

    @property
    def is_later_part(self) -> bool:
        """True if earlier parts of the run are committed."""
        return self.suspension is not None and self.suspension.frees_key

    @property
    def identity(self) -> str | None:
        """Identity of the job that the run started in; None for the job of its journal."""
        if self.suspension is not None and self.is_later_part:
            return self.suspension.identity
        return identity_of(self.records) if self.records else None


@dataclass(slots=True)
class RunEnd:
    """A run that has finished or was suspended, or a part of one. It changes nothing before it is committed.

    Attributes:
        run: The run.
        number: Number of its input, or of its wake-up, in ``pending``; None if it never was there.
        seq: Sequence number of the run; for one of several parts, of the part that has ended.
        changes: Its changes of short-term memory.
        suspension: Its stored form; None if it has finished.
        frees_key: True if its input no longer waits, so that others run; False if it blocks its key.
        counts: True if its sequence number is used up; if not, the next run gets it.
        replayed: True if records say that a part of it ended here, so that the next part may have records.
        skips: Recorded runs that are skipped from this run on.
    """

    run: Run
    number: int | None
    seq: int
    changes: dict[str, bytes | None]
    suspension: Suspension | None = None
    frees_key: bool = True
    counts: bool = True
    replayed: bool = False
    skips: tuple[int, ...] = ()
