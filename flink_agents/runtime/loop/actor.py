"""The actor of a key: its inputs that wait, its memory ahead of state, its finished runs.

An actor exists while its key has work that is not committed. Flink's task thread hands inputs to it and
commits its finished runs. The thread of the event loop executes its runs one after the other, and *ahead* of
commits: a run starts on the memory of the previous run, committed or not. The two threads share two queues,
of which each thread uses one end, and a few flags. While the key has recorded runs, either thread may choose
the next run. Then ``lock`` protects the choice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.agents.observers import Phase
from flink_agents.api.errors import ContextMisuseError
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.execution.waits.run_waits import RunParts
from flink_agents.runtime.journal.buffered import BufferedJournal
from flink_agents.runtime.journal.journals import KeyJournal
from flink_agents.runtime.journal.order import InputOrder
from flink_agents.runtime.journal.other_jobs import Origin, identity_of
from flink_agents.runtime.journal.reads import ReadLog, recorded_reads
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.journal.run_journal import RunJournal, header_of
from flink_agents.runtime.journal.traced_memory import TracedTree
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.suspended import Suspension


class ReplayStatus(Enum):
    """Placeholder for records that were not read yet."""

    UNREAD = "UNREAD"


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
        overtakes: Recorded runs that are skipped from this run on, because their inputs did not come in time.
        settled: True if the key has no other recorded runs when it starts.
        ordered: True if the key had recorded runs when it was chosen.
        state: The state of the run; None before it is in the queue.
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
    overtakes: tuple[int, ...] = ()
    settled: bool = True
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
        return self.suspension is not None and self.suspension.released

    @property
    def identity(self) -> str | None:
        """Identity of the job that the run started in; None for the job of its journal."""
        if self.suspension is not None and self.is_later_part:
            return self.suspension.identity
        return identity_of(self.records) if self.records else None

    def begin(self, now: float) -> RunState:
        """Start to execute the run, which is in the queue."""
        assert self.state is not None
        self.state.begin(now)
        return self.state


class CommittedSegment(NamedTuple):
    """A part of a run that has ended, while the run is suspended.

    Attributes:
        number: Number of the input, or of the wake-up, that it started with.
        seq: Its sequence number.
        changes: Its changes of memory.
        counts: True if it did anything. If not, the next run gets its number.
        replayed: True if records say that it ended here, so that the next part may have records.
    """

    number: int
    seq: int
    changes: dict[str, bytes | None]
    counts: bool
    replayed: bool


class KeyRelease(Protocol):
    """Releases the keys of suspended runs, which are then committed part by part.

    Used on the event loop only.
    """

    def journal(self, turn: int, **arguments: Any) -> BufferedJournal:
        """Return the journal of a part, given its number and the arguments of ``BufferedJournal``."""
        ...

    def parts(self, run: Run, suspension: Suspension) -> RunParts | None:
        """Return the parts of a run that was suspended; None if none of them is committed."""
        ...

    async def end_part(self, run: Run, waiting: QueuedInput) -> CommittedSegment | None:
        """Return the part of a run that ends as the run is suspended; None if the run keeps its key."""
        ...

    def left(
        self, suspension: Suspension, run: Run, waiting: QueuedInput, path: str, part: CommittedSegment
    ) -> Suspension:
        """Return the stored form of a run whose key is released.

        Args:
            suspension: Its stored form if it keeps its key.
            run: The run.
            waiting: Its input, or the wake-up that resumed it.
            path: The path of the execution that waits.
            part: The part that has ended.
        """
        ...


class KeyActor:
    """The work of one key that is not committed.

    Args:
        key_text: Canonical text of the key.
        head: The key's head, as it is committed. Only for Flink's task thread.
        memory: Short-term memory of the key, all of it.
        pending: True if inputs of the key waited in state before the present one.
        origins: Other jobs that may have recorded something for inputs that wait.
        journal: The journal of the key; None if there is no store.

    Attributes:
        journal_id: Identity of the job that the key's runs belong to.
        marker: The position before the records of runs that are not committed; see ``Head``.
        pending: True if such runs may have records before the marker of another key: inputs of the key waited
            in state before the present one, or recorded runs of it were skipped.
        overtaken: Recorded runs that were skipped; see ``Head``.
        origins: Other jobs that may have recorded something for inputs that wait.
        journal: The journal of the key; None if there is no store.
        fresh: True if no run of its generation was committed when the actor was created; see ``Head``.
        begin: The first sequence number of its generation.
        ends: Runs that a user wants to end; see ``Head``. Flink's task thread replaces it.
        seq: Sequence number of its present run.
        next_seq: The least sequence number above those of all chosen runs.
        queue: Chosen inputs, in the order in which they run.
        finished: Runs that wait for their commit, oldest first: run, input, changes of memory, and time of
            the end (``run_metrics.clock``).
        lock: Protects the attributes from here to ``pulled`` while ``order`` is not None.
        order: Chooses the next run while recorded runs are left; UNREAD before records were read; None if
            inputs run as they arrive.
        cached: Inputs in memory that were not chosen, encoded, by number.
        overdue: True if inputs no longer wait for that of the next recorded run.
        pulled: The number of inputs that the loop chose.
        loaded: Number of the first input in ``pending`` that was neither chosen nor cached.
        submitted: The number of inputs that Flink's task thread chose.
        committed: The number of inputs that were committed.
        ahead: The number of inputs that ``pending`` lacked at first, because they were committed before older
            ones.
        gone: The number of these that were found to be missing.
        running: True while the loop works on the actor.
        state: The state of its present run, or the last one; also of a run that waits for its input or
            records.
        timer: Time of the timer that will wake the actor, or None.
        far: True if that is the time at which its inputs have waited for too long.
        noted: The last run that the pruner knows as committed.
        unpruned: The number of runs with records that were committed since then.
        unrecorded: True if there was a run of which nothing is recorded; see ``Head``. Only for the loop.
        overtakes: Recorded runs that are skipped from the suspended run on.
        part: The ended part of that run if its key is released; else None.
        woken: Numbers of the wake-ups that were chosen.
        mail: The signals of the key; None if no action of the agent can wait.
        resumed: Number of the input of a suspended run that resumes, or None.
        resumes: The suspended run that will resume when the records of the key were read, or None.
        suspended: Its last run with its stored form, if the loop has suspended it; or None. The actor
            executes nothing after it.
    """

    __slots__ = (
        "ahead",
        "begin",
        "cached",
        "committed",
        "ends",
        "far",
        "finished",
        "fresh",
        "gone",
        "head",
        "journal",
        "journal_id",
        "key_text",
        "loaded",
        "lock",
        "mail",
        "marker",
        "memory",
        "next_seq",
        "noted",
        "order",
        "origins",
        "overdue",
        "overtakes",
        "overtaken",
        "part",
        "pending",
        "pulled",
        "queue",
        "release",
        "resumed",
        "resumes",
        "running",
        "seq",
        "state",
        "submitted",
        "suspended",
        "timer",
        "unpruned",
        "unrecorded",
        "woken",
    )

    def __init__(
        self,
        key_text: str,
        head: Head,
        memory: dict[str, bytes | None],
        pending: bool,
        origins: Sequence[Origin] = (),
        journal: KeyJournal | None = None,
    ) -> None:
        self.key_text = key_text
        self.head = head
        self.journal_id = head.journal_id
        self.journal = journal
        self.overtaken, self.origins = head.overtaken, origins
        self.fresh, self.begin, self.ends = head.fresh, head.begin, head.ends
        self.marker, self.pending = head.marker, pending or bool(self.overtaken)
        self.seq = self.next_seq = head.next_seq
        self.loaded, self.ahead = head.first_pending, head.ahead
        self.memory = memory
        self.queue: deque[QueuedInput] = deque()
        self.finished: deque[tuple[Run, QueuedInput, dict[str, bytes | None], float]] = deque()
        self.lock = threading.Lock()
        self.order: InputOrder | ReplayStatus | None = None
        self.cached: dict[int, bytes] = {}
        self.state: RunState | None = None
        self.overdue = False
        self.running = False
        self.submitted = self.pulled = self.committed = self.gone = 0
        self.timer: int | None = None
        self.far = False
        self.unpruned, self.noted = 0, head.settled_through
        self.unrecorded = head.unrecorded
        self.mail: ActiveMailbox | None = None
        self.resumes: QueuedInput | None = None
        self.resumed: int | None = None
        self.suspended: tuple[Run, Suspension] | None = None
        self.overtakes: tuple[int, ...] = ()
        self.part: CommittedSegment | None = None
        self.release: KeyRelease | None = None
        self.woken: set[int] = set()

    def go_on_from(self, begin: int) -> None:
        """Continue the generation that an earlier attempt had started."""
        self.begin = self.next_seq = begin
        self.noted = begin - 1

    @property
    def backlog(self) -> int:
        """The number of its inputs that wait in keyed state, because they were not chosen yet."""
        return self.head.waiting - (self.submitted + self.pulled - self.committed)

    @property
    def idle(self) -> bool:
        """True if none of its inputs runs, was chosen, or waits for its commit. For Flink's task thread.

        A suspended run waits for its commit as well. The loop hands a run over before it clears ``running``.
        """
        return not (self.queue or self.running or self.finished or self.suspended)

    @property
    def is_done(self) -> bool:
        """True if all of its inputs have run and wait for their commit. For Flink's task thread."""
        # The loop appends to `finished` before it clears `running`, so nothing is missed here.
        if self.running or self.queue or self.order is not None or self.suspended or self.resumes:
            return False
        return bool(self.finished) and not self.backlog

    @property
    def held(self) -> float | None:
        """The time since when its inputs wait for that of the next recorded run; or None."""
        state = self.state
        return state.since if state is not None and state.phase is Phase.INPUT else None

    def put(self, waiting: QueuedInput, observers: Observers) -> None:
        """Add a chosen input to the queue."""
        now = clock()
        if waiting.run is not None:
            waiting.state = waiting.run.state
        if waiting.state is None:
            waiting.state = RunState(self.key_text, waiting.run_seq, observers, Phase.QUEUED, now)
        else:
            waiting.state.enter(Phase.QUEUED, now)
        if self.mail is not None and (waiting.records or waiting.suspension is not None):
            # A recorded run may have taken signals, so none of them expires before it starts.
            self.mail.expect(1)
        self.queue.append(waiting)

    def attach_journal(self, run: Run, waiting: QueuedInput, plan: str, codec: ValueCodec) -> None:
        """Give a run its journal, and its recorded time and memory. Called by the loop.

        Args:
            run: The run.
            waiting: Its input, with its records.
            plan: Fingerprint of the plan.
            codec: Encodes records.
        """
        assert self.journal is not None
        store, journal = self.journal
        log = restore_begin(codec, run, waiting.records)
        # The header must not refer to the run, which refers to the journal: each run would be a cycle.
        header = partial(header_of, plan, run.started_at, run.short_term, waiting.packed, self.begin)
        run.journal = RunJournal(store, codec, journal, run.sequence_number, header, waiting.records, log)

    def finish(self, run: Run, waiting: QueuedInput) -> None:
        """Take over the changes of a run that has ended, and hand it over to be committed.

        Called by the loop.
        """
        if run.journal is not None and run.journal.begun and waiting.settled:
            # Later runs of the key have their records after those of this run.
            run.journal.mark_end()
        # Before the memory is updated, or there would be no difference.
        changes = run.short_term.changes()
        self.memory.update(changes)
        self.unrecorded = self.unrecorded or not run.recorded
        # The commit may come late. Free what it does not need.
        waiting.record, waiting.packed = None, b""
        waiting.run = waiting.step = waiting.state = None
        waiting.records = ()
        if self.mail is not None:
            # Signals that were meant for this run are free for others now.
            self.mail.release(run.sequence_number)
        now = clock()
        run.state.finish(now)
        # Last, because Flink's task thread may commit the run as soon as it is in this queue.
        self.finished.append((run, waiting, changes, now))

    def suspend(
        self,
        run: Run,
        suspension: Suspension,
        overtakes: tuple[int, ...],
        part: CommittedSegment | None = None,
    ) -> None:
        """Hand a suspended run over to Flink's task thread, which puts it into state. Called by the loop."""
        run.state.suspend(clock(), suspension.waits)
        self.overtakes, self.part = overtakes, part
        # Last, because Flink's task thread may store the run as soon as this is set.
        self.suspended = run, suspension

    def abandon(self) -> None:
        """Close the steps of queued runs, which will never continue."""
        for waiting in self.queue:
            if waiting.step is not None:
                waiting.step.let_go()


def restore_begin(
    codec: ValueCodec, run: Run, records: Sequence[Record], started_at: int | None = None
) -> ReadLog | None:
    """Let a run start as it was recorded: at the same time, and with its recorded reads of memory.

    Args:
        codec: Decodes records.
        run: The run.
        records: Its records, in the order of their append.
        started_at: Time at which it started, if state knows it; else its header has it.

    Returns:
        The log of the run's reads; None if they are not recorded.
    """
    if started_at is not None:
        # `ctx.now()` must return the recorded time.
        run.started_at = started_at
    elif records and records[0].kind is RecordKind.RUN:
        run.started_at = RunHeader.unpack(codec, records[0].data).started_at
    memory = run.short_term
    if not isinstance(memory, TracedTree):
        return None
    if records and (reads := recorded_reads(codec, records)):
        memory.replay(reads)
    return memory.log


def load_of(actors: Iterable[KeyActor]) -> dict[str, int]:
    """Return the numbers of runs of ``actors`` in flight, queued and in the backlog. For any thread."""
    in_flight = queued = backlog = 0
    for actor in actors:
        state = actor.state
        if state is not None:
            in_flight += state.in_flight
            queued += state.phase is Phase.RECORDS
        queued += len(actor.queue)
        backlog += actor.backlog
    return {"in_flight": in_flight, "queued": queued, "spilled": backlog}


def cancelled_itself(actor: KeyActor) -> ContextMisuseError:
    """Return the error of an action that cancelled the task which executes its run."""
    return ContextMisuseError(
        f"an action of key {decode_key(actor.key_text)!r} cancelled the task that executes its run",
        expected="an action that cancels only tasks that it made itself",
        found="asyncio.current_task().cancel()",
        fix="raise an error instead",
    )
