"""The actor of a key: its inputs that wait, its memory ahead of state, its finished runs.

An actor exists while its key has work that is not committed. Flink's thread hands inputs to it
and commits what it finished; the thread of the agent loop executes its runs, one after the
other, and *runs ahead*: a run starts on the memory that the previous one left, committed or
not. The two threads share the two queues, whose ends they use alone, and a few flags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flink_agents.runtime.context import Invocation
from flink_agents.runtime.journal.order import RecordedRuns
from flink_agents.runtime.journal.other_jobs import Origin
from flink_agents.runtime.run import Run
from flink_agents.runtime.run_metrics import clock
from flink_agents.runtime.state import Head


class Unread(Enum):
    """Stands for records that were not read yet."""

    UNREAD = "UNREAD"


@dataclass(slots=True)
class Waiting:
    """An input that waits for its run, or a run that began on Flink's thread.

    Attributes:
        record: The input.
        timestamp: Its event time in milliseconds, or None.
        run: The run, if it has begun.
        number: Its number among the inputs of the key that wait.
        packed: Both as they arrived, encoded: what an action does to the input does not reach this.
        step: The step of that run which has to be awaited.
        digest: What distinguishes it from other inputs; made when it is needed.
    """

    record: Any
    timestamp: int | None
    number: int
    packed: bytes
    run: Run | None = None
    step: Invocation | None = None
    digest: bytes | None = None


class KeyActor:
    """See the module.

    Args:
        key_text: Canonical text of the key.
        head: The key's head. Only for Flink's thread: what is committed stands there.
        memory: Short-term memory of the key, all of it.
        pending: Whether inputs of the key waited in state before the one at hand.
        origins: Other jobs that may have recorded something for inputs that wait.

    Attributes:
        journal_id: Identity of the job that the key's runs belong to.
        marker: Where its runs that are not committed can have records, as state says; see ``Head``.
        pending: See above.
        origins: See above.
        seq: Sequence number of its present run.
        next_seq: The least sequence number behind those of all runs that it has begun.
        queue: Inputs that wait, oldest first.
        finished: Runs that wait for their commit, oldest first, with the number of their input, what
            they changed in memory, and when they ended (``run_metrics.clock``).
        recorded: What earlier attempts recorded of the key and was not run again; UNREAD where that
            is not known yet, None where there is nothing.
        held: Whether its inputs wait for that of the next recorded run.
        overdue: Whether inputs wait no longer for that of the next recorded run.
        loaded: Number of the first input in ``pending`` that was not handed to the actor.
        running: Whether the loop works on the actor.
        begun: Time (``loop.time()``) at which its present run began, later by its pauses.
        started: Time at which that run really began.
        parked: Number of its inputs that wait in state only.
        timer: Time of the timer that will look at the actor, or None.
        in_order: Whether its runs were committed in the order of their numbers, without gaps.
        unpruned: Number of its runs with records that were committed since they were last noted.
    """

    __slots__ = (
        "begun",
        "finished",
        "head",
        "held",
        "in_order",
        "journal_id",
        "key_text",
        "loaded",
        "marker",
        "memory",
        "next_seq",
        "origins",
        "overdue",
        "parked",
        "pending",
        "queue",
        "recorded",
        "running",
        "seq",
        "started",
        "timer",
        "unpruned",
    )

    def __init__(
        self,
        key_text: str,
        head: Head,
        memory: dict[str, bytes | None],
        pending: bool,
        origins: Sequence[Origin] = (),
    ) -> None:
        self.key_text = key_text
        self.head = head
        self.journal_id = head.journal_id
        self.marker, self.pending = head.marker, pending
        self.origins = origins
        self.seq = self.next_seq = head.next_seq
        self.loaded = head.first_pending
        self.memory = memory
        self.queue: deque[Waiting] = deque()
        self.finished: deque[tuple[Run, int, dict[str, bytes | None], float]] = deque()
        self.recorded: RecordedRuns | Unread | None = None
        self.held = self.overdue = False
        self.running = False
        self.begun = self.started = 0.0
        self.parked = 0
        self.timer: int | None = None
        self.in_order = True
        self.unpruned = 0

    def finish(self, run: Run, number: int) -> None:
        """Take over what ``run`` changed, of input ``number``. Called by the loop."""
        changes = run.short_term.changes()
        self.memory.update(changes)
        self.finished.append((run, number, changes, clock()))
