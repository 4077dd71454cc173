"""Suspends and resumes runs, on the thread of the agent loop.

A suspended run has neither a coroutine nor an actor. Flink's thread stores it in state
(``runtime.operator.waits.suspended``), and makes an actor for it when its timer fires or a signal comes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.limits import RunSuspended
from flink_agents.runtime.execution.retry import kept_trial
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox, taken_signals
from flink_agents.runtime.execution.waits.parts import RunParts
from flink_agents.runtime.execution.waits.run_waits import RunWaits, outputs_of
from flink_agents.runtime.journal.buffered import BufferedJournal, ends_part
from flink_agents.runtime.journal.reads import Read, recorded_reads
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.journal.run_journal import header_of
from flink_agents.runtime.loop.actor import CommittedSegment, KeyActor, QueuedInput, restore_begin
from flink_agents.runtime.state.mailbox import StoredSignal
from flink_agents.runtime.state.suspended import StoredWait, Suspension


class Suspensions:
    """Suspends runs, and gives those that go on what they had recorded.

    Args:
        shared: What all runs share.
        bridge: Leads to the agent loop.
    """

    def __init__(self, shared: RunEnvironment, bridge: Bridge) -> None:
        self._shared = shared
        self._bridge = bridge
        policy = TimersAtEnd(shared.config.get(AgentOptions.TIMERS_AT_END))
        self._skips = policy is TimersAtEnd.SKIP
        deadline: timedelta | None = shared.config.get(AgentOptions.RUN_DEADLINE)
        self._deadline = None if deadline is None else int(deadline.total_seconds() * 1000)
        self._ended = False
        self._live: dict[ActiveMailbox, None] = {}

    # -- for Flink's thread -----------------------------------------------------------

    def offer(self, actor: KeyActor, mail: StoredSignal) -> None:
        """Let the runs of an actor take a signal."""
        assert actor.mail is not None
        actor.mail.sent(mail)
        self._bridge.hand(actor.mail.offer, mail)

    def end_of_input(self) -> None:
        """Let waits for signals end: none comes any more."""
        if self._shared.may_wait and not self._ended:
            self._ended = True
            self._bridge.hand(self._end_all)

    # -- for the loop's thread --------------------------------------------------------

    def attach(self, actor: KeyActor, run: Run, waiting: QueuedInput) -> None:
        """Give a run its journal and its waits."""
        assert actor.mail is not None
        self._live[actor.mail] = None
        if self._ended and not actor.mail.ended:
            actor.mail.end_input(self._skips)
        actor.mail.runs.add(run.sequence_number)
        run.journal = journal = self._journal(actor, run, waiting)
        suspension = waiting.suspension
        run.waits = RunWaits(
            actor.mail,
            suspension.waits if suspension is not None else (),
            suspension.left if suspension is not None else {},
            suspension.failed if suspension is not None else {},
            None if self._deadline is None else run.started_at + self._deadline,
            self._parts(run, suspension),
            any(map(ends_part, waiting.records)),
        )
        self._take_recorded(run.waits, journal, waiting)
        if waiting.records or suspension is not None:
            actor.mail.expect(-1)

    async def suspend(self, actor: KeyActor, waiting: QueuedInput, suspended: RunSuspended) -> None:
        """Keep what is left of a run, and let Flink's thread put it into state."""
        step = suspended.args[0]
        run: Run = step.run
        waits: list[StoredWait] = step.suspended
        journal = run.journal
        assert isinstance(journal, BufferedJournal) and run.waits is not None
        # Code that catches its cancellation may return something. What the wait leads to comes in its place.
        sent, side = step.put
        step.sent, step.side = step.sent[:sent], (step.side or [])[:side]
        # What the action has put out leaves, too.
        run.put_out(step.path, [event.output for event in outputs_of(step)], step.side or [])
        journal.keep_reads()
        before, part = waiting.suspension, None
        if self._shared.interleaves or waiting.was_interleaved:
            part = self._end_part(run, waiting, journal)
            await journal.end_part(part.counts)
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
            identity=run.identity if part is not None else None,
            over=run.waits.over,
        )
        if part is not None:
            suspension = _left_of_parts(
                suspension, before, waiting.packed, step.path if part.counts else None
            )
        if self._shared.journals is not None and journal.begun and waiting.settled:
            # The records of state count from here on; whatever comes lies behind this.
            journal.end = self._shared.journals.marker(actor.journal_id, actor.key_text)
        waiting.run = waiting.step = None
        actor.suspend(run, suspension, waiting.overtakes, part)

    def _end_part(self, run: Run, waiting: QueuedInput, journal: BufferedJournal) -> CommittedSegment:
        """What has to be committed of the part of a run that has ended."""
        assert run.waits is not None
        before, changes = waiting.suspension, run.short_term.changes()
        known = len(before.records) if before is not None else 0
        counts = not waiting.was_interleaved or bool(waiting.records or changes or len(journal.kept) > known)
        return CommittedSegment(waiting.number, waiting.seq, changes, counts, run.waits.ends_part)

    def _parts(self, run: Run, suspension: Suspension | None) -> RunParts | None:
        """The parts of an interleaved run."""
        if suspension is None or not suspension.parts:
            return None
        records, done, reads = suspension.records, 0, list[list[Read]]()
        for _, count in suspension.parts:
            reads.append(recorded_reads(self._shared.codec, records[done:count]))
            done = count
        return RunParts(run.split(reads), records, suspension.parts)

    def forget(self, actor: KeyActor) -> None:
        """Let go of the signals of a key that has no actor any more; for Flink's thread."""
        if actor.mail is not None:
            self._bridge.hand(self._live.pop, actor.mail, None)

    def _journal(self, actor: KeyActor, run: Run, waiting: QueuedInput) -> BufferedJournal:
        journals, suspension, codec = self._shared.journals, waiting.suspension, self._shared.codec
        records, apart, seq = waiting.records, waiting.was_interleaved, run.sequence_number
        before = suspension.records if suspension is not None and not apart else ()
        began = suspension.started_at if suspension is not None else None
        log = restore_begin(codec, run, [*before, *records], began)
        if journals is None:
            return BufferedJournal(None, codec, None, seq, _no_header, records, suspension, log)
        header = partial(
            header_of, journals.plan, run.started_at, run.short_term, waiting.packed, actor.begin, apart
        )
        journal = journals.key(run.journal_id, run.key_text)
        turn = waiting.seq
        return BufferedJournal(journals.store, codec, journal, seq, header, records, suspension, log, turn)

    def _take_recorded(self, waits: RunWaits, journal: BufferedJournal, waiting: QueuedInput) -> None:
        """Have signals removed that the run took, as only the store knows."""
        suspension = waiting.suspension
        before = len(suspension.records) if suspension is not None else 0
        if len(journal.kept) == before:
            return
        codec = self._shared.codec
        known = taken_signals(codec, journal.kept[:before])
        for taken in taken_signals(codec, journal.kept):
            found = next((one for one in known if one.identity == taken.identity), None)
            if found is not None:
                known.remove(found)
            elif taken.identity is not None:
                waits.taken.append(taken.identity)
                waits.recorded.append((taken.identity, taken.name))
                waits.mail.forget(taken.identity, reserved=suspension is None or waiting.was_interleaved)
        # What has become void since then was taken from state.
        waits.give_back(known)

    def _end_all(self) -> None:
        for mail in list(self._live):
            mail.end_input(self._skips)


def _left_of_parts(
    suspension: Suspension, before: Suspension | None, packed: bytes, waiting: str | None
) -> Suspension:
    """What is left of an interleaved run.

    Args:
        suspension: What is left of a run that is suspended.
        before: What was left of it before.
        packed: The bytes that its part began with.
        waiting: The execution that waits; None where no part has ended.
    """
    parts: list[tuple[str, int]] = []
    if before is not None and before.input is not None:
        parts, packed = list(before.parts), before.input
    if before is not None:
        suspension = replace(suspension, number=before.number)
    if waiting is not None:
        parts.append((waiting, len(suspension.records)))
    # The store has all of it. Its next part has a number, and a header, of its own.
    return replace(suspension, unstored=(), bound=False, recorded=False, parts=tuple(parts), input=packed)


def _no_header() -> RunHeader:
    raise AssertionError("a run is recorded where there is no store")
