"""Suspends runs and lets them go on: what the loop's thread has to do with it.

A suspended run has neither a coroutine nor an actor. Flink's thread puts what is left of it into state
(``runtime.operator.waits.suspended``), and makes an actor for it again when its time has come, or a signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.options import AgentOptions
from flink_agents.api.signals import SleepsAtEnd
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.limits import RunSuspended
from flink_agents.runtime.execution.retry import kept_trial
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.run_waits import LiveMail, RunWaits, outputs_of
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.kept import KeptJournal
from flink_agents.runtime.journal.reads import recorded_reads
from flink_agents.runtime.journal.records import RunHeader, WaitRecord
from flink_agents.runtime.journal.traced_memory import TracedTree
from flink_agents.runtime.loop.actor import KeyActor, Waiting
from flink_agents.runtime.loop.replays import header_of
from flink_agents.runtime.state.mailbox import Mail
from flink_agents.runtime.state.suspended import OpenWait, Suspension


class Suspensions:
    """Suspends runs, and gives those that go on what they had recorded.

    Args:
        shared: What all runs share.
        bridge: Leads to the agent loop.
    """

    def __init__(self, shared: RunEnvironment, bridge: Bridge) -> None:
        self._shared = shared
        self._bridge = bridge
        policy = SleepsAtEnd(shared.config.get(AgentOptions.SLEEPS_AT_END))
        self._skips = policy is SleepsAtEnd.SKIP
        deadline: timedelta | None = shared.config.get(AgentOptions.RUN_DEADLINE)
        self._deadline = None if deadline is None else int(deadline.total_seconds() * 1000)
        self._ended = False
        self._live: dict[LiveMail, None] = {}

    # -- for Flink's thread -----------------------------------------------------------

    def offer(self, actor: KeyActor, mail: Mail) -> None:
        """Let the runs of an actor take a signal."""
        assert actor.mail is not None
        self._bridge.hand(actor.mail.offer, mail)

    def end_of_input(self) -> None:
        """Let waits for signals end: none comes any more."""
        if self._shared.may_wait and not self._ended:
            self._ended = True
            self._bridge.hand(self._end_all)

    # -- for the loop's thread --------------------------------------------------------

    def attach(self, actor: KeyActor, run: Run, waiting: Waiting) -> None:
        """Give a run its journal and its waits."""
        if not self._shared.may_wait:
            return
        assert actor.mail is not None
        self._live[actor.mail] = None
        if self._ended and not actor.mail.ended:
            actor.mail.end_input(self._skips)
        run.journal = journal = self._journal(actor, run, waiting)
        suspension = waiting.suspension
        run.waits = RunWaits(
            actor.mail,
            suspension.waits if suspension is not None else (),
            suspension.left if suspension is not None else {},
            suspension.failed if suspension is not None else {},
            None if self._deadline is None else run.started_at + self._deadline,
        )
        self._take_recorded(run.waits, journal, suspension)

    def suspend(self, actor: KeyActor, waiting: Waiting, suspended: RunSuspended) -> None:
        """Keep what is left of a run, and let Flink's thread put it into state."""
        step = suspended.args[0]
        run: Run = step.run
        waits: list[OpenWait] = step.suspended
        journal = run.journal
        assert isinstance(journal, KeptJournal) and run.waits is not None
        # What the action has put out leaves, too.
        run.put_out(step.path, [event.output for event in outputs_of(step)], step.side or [])
        journal.keep_reads()
        suspension = Suspension(
            waiting.number,
            run.sequence_number,
            run.started_at,
            self._shared.journals.plan if self._shared.journals is not None else "",
            list(journal.kept),
            journal.unstored,
            journal.bound,
            journal.begun,
            waits,
            run.waits.left(),
            {step.path: failed} if (failed := kept_trial(step.trial)) else {},
            run.waits.over,
        )
        if self._shared.journals is not None and journal.begun and waiting.settled:
            # The records of state count from here on; whatever comes lies behind this.
            journal.end = self._shared.journals.marker(actor.journal_id, actor.key_text)
        waiting.run = waiting.step = None
        actor.suspend(run, suspension, waiting.overtakes)

    def forget(self, actor: KeyActor) -> None:
        """Let go of the signals of a key that has no actor any more; for Flink's thread."""
        if actor.mail is not None:
            self._bridge.hand(self._live.pop, actor.mail, None)

    def _journal(self, actor: KeyActor, run: Run, waiting: Waiting) -> KeptJournal:
        journals, suspension, codec = self._shared.journals, waiting.suspension, self._shared.codec
        records = waiting.records
        if suspension is not None:
            run.started_at = suspension.started_at
        elif records and records[0].kind is RecordKind.RUN:
            run.started_at = RunHeader.unpack(codec, records[0].data).started_at
        memory, log = run.short_term, None
        if isinstance(memory, TracedTree):
            before = [*(suspension.records if suspension is not None else ()), *records]
            reads = recorded_reads(codec, before)
            if reads:
                memory.replay(reads)
            log = memory.log
        seq = run.sequence_number
        if journals is None:
            return KeptJournal(None, codec, None, seq, _no_header, records, suspension, log)
        header = partial(header_of, journals, run.started_at, memory, waiting.packed, actor.begin)
        journal = journals.key(run.journal_id, run.key_text)
        return KeptJournal(journals.store, codec, journal, seq, header, records, suspension, log)

    def _take_recorded(self, waits: RunWaits, journal: KeptJournal, suspension: Suspension | None) -> None:
        """Have signals removed that the run took, as only the store knows."""
        before = len(suspension.records) if suspension is not None else 0
        if len(journal.kept) == before:
            return
        known = self._taken(journal.kept[:before])
        for taken in self._taken(journal.kept):
            found = next((one for one in known if one.identity == taken.identity), None)
            if found is not None:
                known.remove(found)
            elif taken.identity is not None:
                waits.taken.append(taken.identity)
                waits.mail.forget(taken.identity)
        # What has become void since then was taken from state.
        waits.give_back(known)

    def _taken(self, records: Sequence[Record]) -> list[WaitRecord]:
        """The ends of waits by signals, without those that are void."""
        found: dict[tuple[str, int], WaitRecord] = {}
        for record in records:
            if record.kind is RecordKind.WAIT:
                taken = WaitRecord.unpack(self._shared.codec, record.data)
                if taken.identity is not None:
                    found[record.step, record.index] = taken
            elif record.kind is RecordKind.RERUN:
                for place in [one for one in found if task_of(one[0])[0] == record.step]:
                    del found[place]
        return list(found.values())

    def _end_all(self) -> None:
        for mail in list(self._live):
            mail.end_input(self._skips)


def _no_header() -> RunHeader:
    raise AssertionError("a run is recorded where there is no store")
