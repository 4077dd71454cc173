"""Suspends and resumes runs, on the thread of the event loop.

A suspended run has neither a coroutine nor an actor. Flink's task thread stores it in state
(``runtime.operator.waits.suspension``), and creates an actor for it when its timer fires or a signal comes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.limits import RunSuspended
from flink_agents.runtime.execution.retry import stored_attempts
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox, taken_signals
from flink_agents.runtime.execution.waits.requests import settle_requests
from flink_agents.runtime.execution.waits.run_waits import RunWaits, outputs_of
from flink_agents.runtime.journal.buffered import BufferedJournal, ends_part
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.journal.run_journal import header_of
from flink_agents.runtime.loop.actor import KeyRuns, restore_begin
from flink_agents.runtime.loop.queued_input import QueuedInput
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
        self._skips = shared.settings.skips_timers
        deadline = shared.settings.run_deadline
        self._deadline = None if deadline is None else int(deadline.total_seconds() * 1000)
        self._ended = False
        self._live: dict[ActiveMailbox, None] = {}

    # -- for Flink's thread -----------------------------------------------------------

    def offer(self, runs: KeyRuns, signal: StoredSignal) -> None:
        """Offer a signal to the runs of a key."""
        assert runs.mailbox is not None
        runs.mailbox.sent(signal)
        self._bridge.hand(runs.mailbox.offer, signal)

    def end_of_input(self) -> None:
        """End waits for signals: none comes any longer."""
        if self._shared.settings.may_wait and not self._ended:
            self._ended = True
            self._bridge.hand(self._end_all)

    # -- for the loop's thread --------------------------------------------------------

    def attach(self, runs: KeyRuns, run: Run, waiting: QueuedInput) -> None:
        """Give a run its journal and its waits."""
        assert runs.mailbox is not None
        self._live[runs.mailbox] = None
        if self._ended and not runs.mailbox.ended:
            runs.mailbox.end_input(self._skips)
        # From here on, the run takes signals from this mailbox, not from state.
        runs.mailbox.runs.add(run.sequence_number)
        # Before the waits, which read recorded signals from it.
        run.journal = journal = self._journal(runs, run, waiting)
        suspension = waiting.suspension
        run.waits = RunWaits(
            runs.mailbox,
            suspension.waits if suspension is not None else (),
            suspension.left if suspension is not None else {},
            suspension.failed if suspension is not None else {},
            None if self._deadline is None else run.started_at + self._deadline,
            None if runs.release is None or suspension is None else runs.release.parts(run, suspension),
            any(map(ends_part, waiting.records)),
            suspension is not None and suspension.submission != self._shared.submission,
        )
        self._take_recorded(run.waits, journal, waiting)
        if waiting.records or suspension is not None:
            runs.mailbox.expect(-1)

    async def suspend(self, runs: KeyRuns, waiting: QueuedInput, suspended: RunSuspended) -> None:
        """Create the stored form of a run, and hand it over to Flink's task thread."""
        step = suspended.args[0]
        run: Run = step.run
        waits: list[StoredWait] = step.suspended
        journal = run.journal
        assert isinstance(journal, BufferedJournal) and run.waits is not None
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
        release = runs.release
        part = None if release is None else await release.end_part(run, waiting)
        suspension = Suspension(
            waiting.number,
            run.sequence_number,
            run.started_at,
            self._shared.journals.plan if self._shared.journals is not None else "",
            list(journal.all_records),
            journal.unstored,
            journal.bound,
            journal.has_records,
            waits,
            run.waits.left(),
            {step.path: failed} if failed else {},
            self._shared.submission,
            last_deadline=run.waits.last_deadline,
        )
        if release is not None and part is not None:
            suspension = release.left(suspension, run, waiting, step.path, part)
        if runs.journal is not None and journal.has_records and waiting.ends_replay:
            # From here on, state has the earlier records. New ones come after this position.
            store, key = runs.journal
            journal.end = store.recovery_marker(key)
        waiting.run = waiting.step = None
        # Last, because Flink's task thread may store the run from here on.
        runs.suspend(run, suspension, waiting.skips, part)

    def forget(self, runs: KeyRuns) -> None:
        """Drop the signals of a key that has no actor any longer; for Flink's task thread."""
        if runs.mailbox is not None:
            self._bridge.hand(self._live.pop, runs.mailbox, None)

    def settle(self, run: Run, suspension: Suspension, waits: list[StoredWait] | None = None) -> None:
        """Emit what the code of a resumed run has not emitted about its approval requests.

        Args:
            run: The run.
            suspension: Its stored form, from which it resumed.
            waits: The open waits; None if the run has ended.
        """
        settle_requests(run, suspension.waits, waits, self._shared.codec, self._shared.telemetry.observers)

    def _journal(self, runs: KeyRuns, run: Run, waiting: QueuedInput) -> BufferedJournal:
        journals = self._shared.journals
        suspension = waiting.suspension
        codec = self._shared.codec
        records = waiting.records
        is_later = waiting.is_later_part
        release = runs.release
        suspended_records = suspension.records if suspension is not None and not is_later else ()
        began = suspension.started_at if suspension is not None else None
        log = restore_begin(codec, run, [*suspended_records, *records], began)
        header: Callable[[], RunHeader] = _no_header
        if journals is not None:
            memory = run.short_term
            packed = waiting.packed
            header = partial(header_of, journals.plan, run.started_at, memory, packed, runs.begin, is_later)
        create = BufferedJournal if release is None else partial(release.journal, waiting.seq)
        return create(
            store=None if journals is None else journals.store,
            codec=codec,
            journal=None if journals is None else journals.key(run.journal_id, run.key_text),
            seq=run.sequence_number,
            header=header,
            records=records,
            suspension=suspension,
            log=log,
        )

    def _take_recorded(self, waits: RunWaits, journal: BufferedJournal, waiting: QueuedInput) -> None:
        """Remove the signals that the run took, according to records that only the store has."""
        suspension = waiting.suspension
        suspended_count = len(suspension.records) if suspension is not None else 0
        if len(journal.all_records) == suspended_count:
            return
        codec = self._shared.codec
        stored = taken_signals(codec, journal.all_records[:suspended_count])
        for wait_record in taken_signals(codec, journal.all_records):
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

    def _end_all(self) -> None:
        for mailbox in list(self._live):
            mailbox.end_input(self._skips)


def _no_header() -> RunHeader:
    raise AssertionError("a run has a header without a store")
