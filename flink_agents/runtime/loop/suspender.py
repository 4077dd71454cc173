"""Suspends and resumes runs, on the thread of the event loop.

A suspended run has neither a coroutine nor an actor. Flink's task thread stores it in state
(``operator.services.suspension``), and creates an actor for it when its timer fires or a signal comes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from flink_agents.api.action_state import Record
from flink_agents.api.errors import StateError
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.limits import RunSuspended
from flink_agents.runtime.execution.retry import stored_attempts
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox, taken_signals
from flink_agents.runtime.execution.waits.approvals import settle_requests
from flink_agents.runtime.execution.waits.durable_wait import suspend_at_rest
from flink_agents.runtime.execution.waits.run_waits import RunParts, RunWaits, outputs_of
from flink_agents.runtime.journal.memory_reads import PartTree, Read, TracedTree, recorded_reads
from flink_agents.runtime.journal.records import ActionRecord
from flink_agents.runtime.journal.run_journal import RunJournal, ends_part
from flink_agents.runtime.loop.actor import KeyActor, QueuedInput, RunEnd
from flink_agents.runtime.state.mailbox import StoredSignal
from flink_agents.runtime.state.suspended import StoredWait, Suspension


class RunSuspender:
    """Suspends runs, and restores the records of those that resume.

    Args:
        shared: The agent's shared objects.
        bridge: Leads to the event loop.
    """

    def __init__(self, shared: RunEnvironment, bridge: Bridge) -> None:
        self._shared = shared
        self._bridge = bridge
        self._frees_keys = shared.interleaves
        self._skips = shared.skips_timers
        deadline = shared.run_deadline
        self._deadline = None if deadline is None else int(deadline.total_seconds() * 1000)
        self._ended = False
        self._live: dict[ActiveMailbox, None] = {}

    # -- for Flink's thread -----------------------------------------------------------

    def offer(self, actor: KeyActor, signal: StoredSignal) -> None:
        """Offer a signal to the runs of a key."""
        mailbox = actor.open_mailbox()
        mailbox.sent(signal)
        self._bridge.hand(mailbox.offer, signal)

    def end_of_input(self) -> None:
        """End waits for signals: none comes any longer."""
        if not self._ended:
            self._ended = True
            self._bridge.hand(self._end_all_waits)

    # -- for the loop's thread --------------------------------------------------------

    def attach(self, actor: KeyActor, run: Run, waiting: QueuedInput) -> None:
        """Give a run with a journal its waits: it may have waited before."""
        mailbox = self._live_mailbox(actor, run)
        journal = run.journal
        assert journal is not None
        journal.has_waits = True
        suspension = waiting.suspension
        run.waits = RunWaits(
            mailbox,
            suspension.waits if suspension is not None else (),
            suspension.left if suspension is not None else {},
            suspension.failed if suspension is not None else {},
            self._last_deadline(run),
            None if suspension is None else self._parts(run, suspension),
            any(map(ends_part, waiting.records)),
            suspension is not None and suspension.submission != self._shared.submission,
        )
        self._take_recorded(run.waits, journal, waiting)
        if waiting.records or suspension is not None:
            mailbox.expect(-1)

    def attach_late(self, actor: KeyActor, step: ActionRun) -> None:
        """Give the run of ``step`` its waits, because it waits for the first time.

        Until then, the ends of executions without calls had no records. A replay must not execute them again.

        Raises:
            UnserializableValueError: An event or a side output of an earlier execution cannot be recorded.
        """
        run = step.run
        journal = run.journal
        assert journal is not None and step.delivery is not None
        waits = RunWaits(self._live_mailbox(actor, run), (), {}, {}, self._last_deadline(run))
        events = self._shared.events
        ends: list[Record] = []
        for ended, undo_length in run.ended or ():
            side = list(map(list, ended.side or ()))
            waits.put_out(ended.path, [event.output for event in outputs_of(ended)], ended.side or [])
            if ended.calls is None:
                memory = run.written_since(ended.mark, undo_length)
                sent = [events.packed(event) for event in ended.sent]
                ends.append(journal.end_of(ended.path, ActionRecord(*memory, sent, side, 0)))
        for path, outputs, side_outputs in run.given_up:
            waits.put_out(path, outputs, side_outputs)
        for path, side_outputs in run.failed:
            # An event that cannot be recorded fails in the same way on replay.
            with suppress(StateError):
                ends.append(journal.end_of(path, ActionRecord({}, {}, [], list(map(list, side_outputs)), 0)))
        # Only now, because one that cannot be recorded leaves the run without waits.
        journal.has_waits = True
        # Whatever was recorded of it as an end was refused: it has not ended.
        journal.drop_end(step.path)
        journal.add_records(ends)
        run.waits = waits
        run.ended = None
        run.emit_queued()
        # Its own end is recorded, too.
        step.calls = step.delivery
        step.delivery.at_rest = partial(suspend_at_rest, step, waits)

    def _live_mailbox(self, actor: KeyActor, run: Run) -> ActiveMailbox:
        """Return the signals of a key, from which a run takes signals from here on, not from state."""
        mailbox = actor.open_mailbox()
        self._live[mailbox] = None
        if self._ended and not mailbox.ended:
            mailbox.end_input(self._skips)
        mailbox.runs.add(run.sequence_number)
        return mailbox

    def _last_deadline(self, run: Run) -> int | None:
        """Return the time by which a run must end, in milliseconds since the epoch; None for never."""
        return None if self._deadline is None else run.started_at + self._deadline

    async def suspend(self, actor: KeyActor, waiting: QueuedInput, suspended: RunSuspended) -> None:
        """Create the stored form of a run, and hand it over to Flink's task thread."""
        step = suspended.args[0]
        run: Run = step.run
        waits: list[StoredWait] = step.suspended
        journal = run.journal
        assert journal is not None and run.waits is not None
        # Code that catches its cancellation may emit something. Drop it: the resumed run replaces it.
        sent, side = step.put
        step.sent = step.sent[:sent]
        step.side = (step.side or [])[:side]
        # Outputs from before the wait leave now, with the suspension.
        run.put_out(step.path, [event.output for event in outputs_of(step)], step.side or [])
        if waiting.suspension is not None:
            self.settle(run, waiting.suspension, waits)
        # Before the stored form is built, which contains all records.
        journal.keep_reads()
        failed = stored_attempts(step.retry_state, self._shared.seconds())
        end = await self._end_part(run, journal, waiting, run.waits)
        suspension = Suspension(
            waiting.number,
            run.sequence_number,
            run.started_at,
            "" if self._shared.journals is None else self._shared.journals.plan,
            list(journal.records),
            journal.unstored,
            journal.bound,
            journal.has_records,
            waits,
            run.waits.count_sent_outputs(),
            {step.path: failed} if failed else {},
            self._shared.submission,
            last_deadline=run.waits.last_deadline,
        )
        if end.frees_key:
            suspension = _of_parts(suspension, run, waiting, step.path, end.counts)
        end.suspension = suspension
        if actor.journal is not None and journal.has_records and waiting.ends_replay:
            # From here on, state has the earlier records. New ones come after this position.
            store, key = actor.journal
            journal.end = store.recovery_marker(key)
        # Last, because Flink's task thread may store the run from here on.
        actor.suspend(end)

    def forget(self, actor: KeyActor) -> None:
        """Drop the signals of a key that has no actor any longer; for Flink's task thread."""
        if actor.mailbox is not None:
            # Without the loop, which it would wake for each key: nothing of the key is executed any longer.
            self._live.pop(actor.mailbox, None)

    def settle(self, run: Run, suspension: Suspension, waits: list[StoredWait] | None = None) -> None:
        """Emit what the code of a resumed run has not emitted about its approval requests.

        Args:
            run: The run.
            suspension: Its stored form, from which it resumed.
            waits: The open waits; None if the run has ended.
        """
        settle_requests(run, suspension.waits, waits, self._shared.codec, self._shared.telemetry.observers)

    # -- parts of runs that free their keys ---------------------------------------------

    def _parts(self, run: Run, suspension: Suspension) -> RunParts | None:
        """Return the parts of a run, whose memory it sees from now on; None if none of them is committed."""
        if not suspension.parts:
            return None
        records = suspension.records
        previous_count = 0
        reads = list[list[Read]]()
        for _, count in suspension.parts:
            reads.append(recorded_reads(self._shared.codec, records[previous_count:count]))
            previous_count = count
        assert isinstance(run.short_term, TracedTree)
        run.short_term = memory = PartTree(run.short_term, reads, run.undo)
        return RunParts(memory, records, suspension.parts)

    async def _end_part(self, run: Run, journal: RunJournal, waiting: QueuedInput, waits: RunWaits) -> RunEnd:
        """End a run that is suspended. If it frees its key, a part of it ends, and its records are stored."""
        end = RunEnd(run, waiting.number, waiting.seq, {}, skips=waiting.skips)
        if not (self._frees_keys or waiting.is_later_part):
            end.frees_key = False
            return end
        suspension = waiting.suspension
        previous_count = len(suspension.records) if suspension is not None else 0
        end.changes = run.short_term.changes()
        end.counts = not waiting.is_later_part or bool(
            waiting.records or end.changes or len(journal.records) > previous_count
        )
        # Before the part is committed: a replay must know where it ended.
        await journal.end_part(end.counts)
        end.replayed = waits.ends_part
        return end

    def _take_recorded(self, waits: RunWaits, journal: RunJournal, waiting: QueuedInput) -> None:
        """Remove the signals that the run took, according to records that only the store has."""
        suspension = waiting.suspension
        suspended_count = len(suspension.records) if suspension is not None else 0
        if len(journal.records) == suspended_count:
            return
        codec = self._shared.codec
        stored = taken_signals(codec, journal.records[:suspended_count])
        for wait_record in taken_signals(codec, journal.records):
            stored_record = next(
                (record for record in stored if record.identity == wait_record.identity), None
            )
            if stored_record is not None:
                stored.remove(stored_record)
            elif wait_record.identity is not None:
                waits.taken.append(wait_record.identity)
                waits.recorded.append((wait_record.identity, wait_record.name))
                waits.mailbox.forget(
                    wait_record.identity, reserved=suspension is None or waiting.is_later_part
                )
        # These signals were removed from state, but their records are void by now.
        waits.give_back(stored)

    def _end_all_waits(self) -> None:
        """End the waits for signals of all runs in memory."""
        for mailbox in list(self._live):
            mailbox.end_input(self._skips)


def _of_parts(suspension: Suspension, run: Run, waiting: QueuedInput, path: str, counts: bool) -> Suspension:
    """Return the stored form of a run whose key is free for other inputs.

    Args:
        suspension: Its stored form if it blocks its key.
        run: The run.
        waiting: Its input, or the wake-up that resumed it.
        path: The path of the execution that waits.
        counts: True if the part that has ended did anything.
    """
    previous_suspension = waiting.suspension
    parts: list[tuple[str, int]] = []
    packed = waiting.packed
    number = suspension.number
    if previous_suspension is not None:
        number = previous_suspension.number
        if previous_suspension.input is not None:
            parts = list(previous_suspension.parts)
            packed = previous_suspension.input
    if counts:
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
