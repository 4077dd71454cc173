"""The actor of a key: its inputs that wait, its memory ahead of state, and its runs that wait for commits."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.agents.observers import Phase
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.errors.runs import RunEndedError
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.journal.journals import KeyJournal
from flink_agents.runtime.journal.memory_reads import TracedTree, recorded_reads
from flink_agents.runtime.journal.order import InputOrder
from flink_agents.runtime.journal.other_jobs import Origin, identity_of
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.journal.run_journal import RunJournal, header_of
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.suspended import Suspension

_OPENING = threading.Lock()
"""Held while the mailbox of a key is created, which both threads do."""


@dataclass(slots=True)
class QueuedInput:
    """An input that waits for its run, or a run that started on Flink's task thread.

    Attributes:
        record: The input value, or an event that another run sent with a delay.
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


@dataclass(slots=True, eq=False, repr=False)
class KeyActor:
    """The work of one key that is not committed. It exists while there is some.

    Flink's task thread puts inputs into the inbox. The thread of the event loop executes their runs one after
    the other, and *ahead* of commits: a run starts on the memory of the previous run, committed or not.
    Flink's task thread commits the runs that have ended. What one thread writes, the other one only reads:

    - *Flink's task thread*: ``head``, ``ends``, ``submitted``, ``committed``, ``gone``, ``unpruned``,
      ``woken``. It adds to ``inbox``, and takes from ``ended``.
    - *The event loop*: ``memory``, ``unrecorded``, ``seq``, ``state``, ``running``, ``suspended``,
      ``pulled``. It takes from ``inbox``, and adds to ``ended``.
    - *Either thread* chooses the next input while there is a ``recovery``, whose lock it holds when it does.
      The lock covers ``next_seq``, ``loaded``, ``begin``, ``noted``, ``recovery`` itself, what is added to
      ``inbox``, and the ``state`` of a run that waits for its input. Without a ``recovery``, Flink's task
      thread alone writes these.

    Attributes:
        key_text: Canonical text of the key.
        head: The key's head, as it is committed.
        memory: Short-term memory of the key, all of it, after the last run that has ended, committed or not.
        make_mailbox: Creates the mailbox of a key without signals.
        journal: The journal of the key; None if there is no store.
        journal_id: Identity of the job that the runs belong to.
        inbox: Chosen inputs, in the order in which they run.
        ended: Runs that wait for their commit, oldest first.
        ends: Runs that a user wants to end; see ``Head``.
        submitted: The number of inputs that Flink's task thread chose.
        pulled: The number of inputs that the loop chose.
        committed: The number of inputs that were committed.
        ahead: The number of inputs that ``pending`` lacked at first, because they were committed before older
            ones.
        gone: The number of these that were found to be missing.
        noted: The last run that the pruner knows as committed.
        unpruned: The number of runs with records that were committed since then.
        woken: Numbers of the entries in ``pending`` with which suspended runs have resumed.
        next_seq: The least sequence number above those of all chosen runs.
        loaded: Number of the first input in ``pending`` that was neither chosen nor cached.
        begin: The first sequence number of the key's generation.
        recovery: Chooses the next run while recorded runs are left; None if inputs run as they arrive.
        unrecorded: True if there was a run of which nothing is recorded; see ``Head``.
        seq: Sequence number of the present run.
        state: The state of the present run, or the last one; also of a run that waits for its input or
            records.
        running: True while the loop works on the key.
        suspended: The last run, if the loop has suspended it; or None. Nothing is executed after it.
        mailbox: The signals of the key; None as long as no run has waited and no signal has come. The thread
            that needs it first creates it.
    """

    key_text: str
    head: Head
    memory: dict[str, bytes | None]
    make_mailbox: Callable[[], ActiveMailbox]
    journal: KeyJournal | None = None
    journal_id: str = field(init=False)
    inbox: deque[QueuedInput] = field(default_factory=deque, init=False)
    ended: deque[RunEnd] = field(default_factory=deque, init=False)
    ends: Mapping[int, Sequence[Any]] = field(init=False)
    submitted: int = field(default=0, init=False)
    pulled: int = field(default=0, init=False)
    committed: int = field(default=0, init=False)
    ahead: int = field(init=False)
    gone: int = field(default=0, init=False)
    noted: int = field(init=False)
    unpruned: int = field(default=0, init=False)
    woken: set[int] = field(default_factory=set, init=False)
    next_seq: int = field(init=False)
    loaded: int = field(init=False)
    begin: int = field(init=False)
    recovery: KeyRecovery | None = field(default=None, init=False)
    unrecorded: bool = field(init=False)
    seq: int = field(init=False)
    state: RunState | None = field(default=None, init=False)
    running: bool = field(default=False, init=False)
    suspended: RunEnd | None = field(default=None, init=False)
    mailbox: ActiveMailbox | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        head = self.head
        self.journal_id = head.journal_id
        self.ends = head.ends
        self.ahead = head.ahead
        self.noted = head.committed_through
        self.next_seq = self.seq = head.next_seq
        self.loaded = head.first_pending
        self.begin = head.begin
        self.unrecorded = head.unrecorded

    # -- for either thread ------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """The number of its inputs that wait in keyed state, because they were not chosen yet."""
        return self.head.waiting - (self.submitted + self.pulled - self.committed)

    @property
    def idle(self) -> bool:
        """True if none of its inputs runs, was chosen, or waits for its commit."""
        # The loop adds to `ended` before it clears `running`, so nothing is missed here.
        return not (self.inbox or self.running or self.ended)

    @property
    def is_done(self) -> bool:
        """True if all of its inputs have run and wait for their commit."""
        # In this order, as above.
        if self.running or self.inbox or self.recovery is not None or self.suspended:
            return False
        return bool(self.ended) and not self.backlog

    @property
    def held(self) -> float | None:
        """The time since when inputs wait for that of the next recorded run; or None."""
        state = self.state
        return state.since if state is not None and state.phase is Phase.INPUT else None

    def enqueue(self, waiting: QueuedInput, observers: Observers) -> None:
        """Add a chosen input to the inbox. The thread that has chosen it calls this."""
        now = clock()
        if waiting.run is not None:
            waiting.state = waiting.run.state
        if waiting.state is None:
            waiting.state = RunState(self.key_text, waiting.run_seq, observers, Phase.QUEUED, now)
        else:
            waiting.state.enter(Phase.QUEUED, now)
        if waiting.records or waiting.suspension is not None:
            # A recorded run may have taken signals, so none of them expires before it starts.
            self.open_mailbox().expect(1)
        # Last: the loop may take it as soon as it is in the inbox.
        self.inbox.append(waiting)

    def open_mailbox(self) -> ActiveMailbox:
        """Return the signals of the key, for either thread. At first, it has none."""
        # Both threads may need it first. With two of them, signals would go into the one that no run reads.
        with _OPENING:
            if self.mailbox is None:
                self.mailbox = self.make_mailbox()
            return self.mailbox

    # -- recovery -----------------------------------------------------------------------

    def recover(self, pending: bool, origins: Sequence[Origin]) -> None:
        """Let no run start before the records of the key were read. Flink's task thread calls this at first.

        Args:
            pending: True if inputs of the key waited in state before the present one.
            origins: Other jobs that may have recorded something for inputs that wait.
        """
        head = self.head
        pending = pending or bool(head.skipped)
        self.recovery = KeyRecovery(head.fresh, head.marker, pending, head.skipped, origins)

    def continue_generation(self, begin: int) -> None:
        """Continue the generation that an earlier attempt had started."""
        # Before any run starts: ids and idempotency keys derive from these numbers.
        self.begin = self.next_seq = begin
        self.noted = begin - 1

    # -- for the event loop -------------------------------------------------------------

    def attach_journal(self, run: Run, waiting: QueuedInput, plan: str, codec: ValueCodec) -> None:
        """Give a run its journal.

        Args:
            run: The run.
            waiting: Its input.
            plan: Fingerprint of the present plan, for the header of the run.
            codec: Encodes the records of the journal.
        """
        store, journal = self.journal or (None, None)
        suspension = waiting.suspension
        if waiting.records or suspension is not None:
            restore_begin(codec, run, waiting)
        memory = run.short_term
        log = memory.log if isinstance(memory, TracedTree) else None
        is_part = suspension is not None and suspension.frees_key
        # The header must not refer to the run, which refers to the journal: each run would be a cycle.
        header = partial(header_of, plan, run.started_at, memory, waiting.packed, self.begin, is_part)
        seq = run.sequence_number
        run.journal = RunJournal(
            store, codec, journal, seq, header, waiting.records, log, suspension, waiting.seq
        )

    def finish(self, run: Run, waiting: QueuedInput) -> None:
        """Take over the changes of a run that has ended, and hand it over to be committed."""
        if run.journal is not None and run.journal.has_records and waiting.ends_replay:
            # Later runs of the key have their records after those of this run.
            run.journal.mark_end()
        # Before the memory is updated, or there would be no difference.
        changes = run.short_term.changes()
        self.memory.update(changes)
        self.unrecorded = self.unrecorded or not run.recorded
        if self.mailbox is not None:
            # Signals that were meant for this run are free for others now.
            self.mailbox.release(run.sequence_number)
        run.end_waits()
        run.state.finish(clock())
        # Last, because Flink's task thread may commit the run as soon as it is there. It keeps nothing of the
        # input, for which the commit may come late.
        self.ended.append(RunEnd(run, waiting.number, waiting.seq, changes, skips=waiting.skips))

    def suspend(self, end: RunEnd) -> None:
        """Hand a suspended run over to Flink's task thread, which puts it into state."""
        assert end.suspension is not None
        end.run.end_waits()
        end.run.state.suspend(clock(), end.suspension.waits)
        # Before it can be committed: nothing may start until Flink's task thread has stored it.
        self.suspended = end
        self.ended.append(end)

    def abandon(self) -> None:
        """Close the steps of queued runs, which will never continue."""
        for waiting in self.inbox:
            if waiting.step is not None:
                waiting.step.abandon()


@dataclass(slots=True, eq=False)
class KeyRecovery:
    """Chooses the next run of a key while recorded runs are left.

    Either thread may do that. It holds ``lock`` whenever it reads or changes anything below that attribute.
    If no recorded run is left, ``KeyActor.recovery`` becomes None, also with the lock held.

    Attributes:
        fresh: True if no run of its generation was committed when the actor was created; see ``Head``.
        marker: The position before the records of runs that are not committed; see ``Head``.
        pending: True if such runs may have records before the marker of another key: inputs of the key waited
            in state before the present one, or recorded runs of it were skipped.
        skipped: Recorded runs that were skipped; see ``Head``.
        origins: Other jobs that may have recorded something for inputs that wait.
        lock: Held by the thread that chooses a run.
        order: The recorded runs and the inputs that were examined; None before records were read.
        cached: Inputs in memory that were not chosen, encoded, by number.
        overdue: True if inputs no longer wait for that of the next recorded run.
        resumes: The suspended run that will resume when the records were read, or None.
    """

    fresh: bool
    marker: bytes | None
    pending: bool
    skipped: dict[int, int]
    origins: Sequence[Origin]
    lock: threading.Lock = field(default_factory=threading.Lock)
    order: InputOrder | None = None
    cached: dict[int, bytes] = field(default_factory=dict)
    overdue: bool = False
    resumes: QueuedInput | None = None


def restore_begin(codec: ValueCodec, run: Run, waiting: QueuedInput) -> None:
    """Let a run start as it was recorded: at the same time, and with its recorded reads of memory."""
    records = waiting.records
    suspension = waiting.suspension
    # `ctx.now()` must return the recorded time.
    if suspension is not None:
        run.started_at = suspension.started_at
        # A later part reads memory as it is now. Earlier parts have a memory of their own.
        if not suspension.frees_key:
            records = [*suspension.records, *records]
    elif records and records[0].kind is RecordKind.RUN:
        run.started_at = RunHeader.unpack(codec, records[0].data).started_at
    memory = run.short_term
    if isinstance(memory, TracedTree) and (reads := recorded_reads(codec, records)):
        memory.replay(reads)


def load_of(actors: Iterable[KeyActor]) -> dict[str, int]:
    """Return the numbers of runs of ``actors`` in flight, queued and in the backlog. For any thread."""
    in_flight = queued = backlog = 0
    for actor in actors:
        state = actor.state
        if state is not None:
            in_flight += state.in_flight
            queued += state.phase is Phase.RECORDS
        queued += len(actor.inbox)
        backlog += actor.backlog
    return {"in_flight": in_flight, "queued": queued, "spilled": backlog}


def cancelled_itself(key_text: str) -> ContextMisuseError:
    """Return the error of an action that cancelled the task which executes its run."""
    return ContextMisuseError(
        f"an action of key {decode_key(key_text)!r} cancelled the task that executes its run",
        expected="an action that cancels only tasks that it made itself",
        found="asyncio.current_task().cancel()",
        fix="raise an error instead",
    )


def check_not_ended(actor: KeyActor, run: Run, waiting: QueuedInput) -> None:
    """Check that no user wants to end a run that is about to be executed; otherwise end it.

    Args:
        actor: The actor of the key.
        run: The run.
        waiting: Its input.

    Raises:
        RunEndedError: A user wants to end it.
    """
    if (error := _requested_end(actor, run.sequence_number)) is not None:
        run.state.ended_by = error
        if waiting.step is not None:
            # Flink's task thread has started this step, and it will never be awaited.
            waiting.step.end()
            waiting.step.abandon()
        raise error


def end_if_executed(tasks: Mapping[asyncio.Task[None], KeyActor], actor: KeyActor, seq: int) -> None:
    """Cancel a run that a user wants to end, if it is in flight. Only for the loop's thread.

    Args:
        tasks: The tasks that execute runs, each with its actor.
        actor: The actor of the key.
        seq: The sequence number of the run.
    """
    state = actor.state
    if state is None or not state.executing or state.sequence_number != seq or state.ended_by is not None:
        return
    # Before the cancellation: the task tells it by this reason from one by its own code.
    state.ended_by = _requested_end(actor, seq)
    for task, working in tasks.items():
        if working is actor and state.ended_by is not None:
            task.cancel()


def clear_cancellations() -> None:
    """Clear the cancellations of the running task, because it has handled them."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _requested_end(actor: KeyActor, seq: int) -> RunEndedError | None:
    """Return the error with which a run ends because a user requested that; None without a request."""
    mark = actor.ends.get(seq)
    if mark is None:
        return None
    _, reason, by, run = mark
    who = f" by {by}" if by else ""
    return RunEndedError(
        f"the run {run} was ended{who}" + (f": {reason}" if reason else ""),
        expected="the end of the run by its own code",
        found="a request of `flink-agents runs end`",
        fix="put the dead letter back, if the input is to be handled after all",
    )
