"""Suspended runs and signals in state: the work of Flink's task thread.

When a run waits for something that outlasts its execution, it is *suspended*: in one update of its key, its
stored form is put into state, the signals that it took are removed, and its outputs leave. From then on,
nothing of it is in the process. A timer or a signal resumes it: a new actor replays its records up to the
open waits, which end there. The entry in state stays unchanged until the run is suspended again or committed,
again in one update. So whatever ended a wait, a crash leaves both the open wait and the timer or signal that
ends it, or neither.

Signals stay in state until a run that has taken them is suspended or committed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from flink_agents.api.errors import StateError
from flink_agents.api.events.signals import Signal, UnmatchedReason, is_text
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.loop.actor import KeyActor, QueuedInput
from flink_agents.runtime.operator.commit import EndedRun
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.waits.released import SignalTakers
from flink_agents.runtime.operator.waits.signal_rejections import (
    SignalRejections,
    ended_waits,
    runs_going_on,
)
from flink_agents.runtime.operator.waits.unmatched import UnmatchedSignals
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.mailbox import UNDECIDED, Mailbox, StoredSignal, identity_of
from flink_agents.runtime.state.pending import read_input
from flink_agents.runtime.state.suspended import StoredSignalWait, Suspension, run_of


class SuspendedRuns:
    """Stores suspended runs and signals of the current key. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
    ) -> None:
        self._takers: SignalTakers | None = None
        self._shared = shared
        self._codec = shared.codec
        self._unmatched = UnmatchedSignals(shared)
        self._state = state
        self._clock = clock
        ttl: timedelta = shared.config.get(AgentOptions.SIGNALS_TTL)
        self._ttl = int(ttl.total_seconds() * 1000)
        self._rejections = SignalRejections(self._suspension, shared.config.get(AgentOptions.SIGNALS_PER_KEY))

    def add_takers(self, takers: SignalTakers) -> None:
        """Let released runs take signals as well."""
        self._takers = self._rejections.takers = takers

    # -- suspended runs ---------------------------------------------------------------

    def suspend(self, ended: EndedRun, actor: KeyActor, timers: Timers, out: Emission) -> bool:
        """Store an actor's last run; returns True if it can be resumed at once.

        Its inputs stay in state, and wait for its end. The caller writes the head.

        Args:
            ended: The run.
            actor: The actor of the current key, whose runs before that one are committed.
            timers: Timers of the key.
            out: Receives unmatched signals.
        """
        suspension, head = ended.suspension, actor.head
        assert suspension is not None
        # Entry, mailbox and head change in one call of Flink, so a crash leaves all or none.
        self._state.pending.suspend(suspension.number, suspension.pack())
        due = suspension.due
        box = self.remove_taken(ended.run, head, out, timers, suspension)
        # A signal that a later recorded run has taken does not resume it.
        mail = [] if box is None or actor.mail is None else actor.mail.free(box.mail)
        ready = any(one.until > self._clock() and is_for(one, actor.key_text, suspension) for one in mail)
        head.suspended = suspension.number, suspension.seq, 0 if ready else due
        if due is not None:
            # Never in the past: Flink would fire it in the same loop.
            timers.register_processing_time_timer(max(due, self._clock() + 1))
        return ready or (due is not None and due <= self._clock())

    def is_due(self, head: Head) -> bool:
        """Return True if it is time to resume the suspended run of a key."""
        suspended = head.suspended
        return suspended is not None and suspended[2] is not None and suspended[2] <= self._clock()

    def restored(self, head: Head, key_text: str) -> None:
        """Count the suspended run of a restored key that still waits."""
        if head.suspended is not None:
            number, seq, _ = head.suspended
            left = self._suspension(number)
            self._shared.run_metrics.open_waits.suspended(key_text, seq, left.waits, left.started_at / 1000)

    def resume(self, head: Head) -> QueuedInput:
        """Return the suspended run of the current key, for its actor."""
        assert head.suspended is not None
        number, seq, _ = head.suspended
        suspension = self._suspension(number)
        packed = self._state.pending.get(number)
        assert packed is not None
        record, timestamp = read_input(self._codec, packed)
        return QueuedInput(record, timestamp, number, packed, seq, suspension=suspension)

    def look_again(self, head: Head, fired: int, timers: Timers) -> None:
        """Register another timer if the one of a suspended run fired too early, by this clock."""
        suspended = head.suspended
        if suspended is not None and suspended[2] is not None and suspended[2] <= fired:
            timers.register_processing_time_timer(max(self._clock(), fired) + 1)

    def committed(self, run: Run, number: int, head: Head, emission: Emission, timers: Timers) -> None:
        """Remove the stored form of a run that is committed now, and the signals that it took."""
        if head.suspended is not None and head.suspended[0] == number:
            self._state.pending.end_suspension(number)
            head.suspended = None
        self._shared.run_metrics.open_waits.resumed(run.key_text, run.sequence_number)
        self.remove_taken(run, head, emission, timers, None)

    # -- signals ----------------------------------------------------------------------

    def mail(self, head: Head) -> ActiveMailbox:
        """Return the signals of the current key that wait, for a new actor."""
        mail = [] if head.mail_expires is None else list(self._mailbox().mail)
        return ActiveMailbox(self._clock, mail, self._ttl, head.suspended is not None)

    def receive(
        self, signal: Signal, key_text: str, head: Head, actor: KeyActor | None, timers: Timers, out: Emission
    ) -> StoredSignal | None:
        """Store a signal of the current key; returns it, unless it is unmatched or was taken before.

        Args:
            signal: The signal.
            key_text: The key.
            head: Its head, which is written.
            actor: Its actor, or None.
            timers: Its timers.
            out: Receives unmatched signals.
        """
        try:
            value = self._codec.encode(signal.value)
            # Pickle does not validate. Decoding may raise, so find out now, not in each attempt.
            self._codec.decode(value)
        except StateError as error:
            return self._unmatched.leave(signal, UnmatchedReason.INVALID, key_text, out, error.message)
        ids = [one for one in (signal.id, signal.wait) if one is not None]
        if not all(map(is_text, (signal.name, *ids))):
            wrong = "its name, id or wait is no text"
            return self._unmatched.leave(signal, UnmatchedReason.INVALID, key_text, out, wrong)
        now = self._clock()
        box = self._mailbox()
        self._expire(box, now, out, head, actor, key_text)
        mail = StoredSignal(
            identity_of(signal, value), signal.name, value, signal.id, signal.wait, now + self._ttl
        )
        stored: StoredSignal | None = None
        if box.absorb(mail.identity):
            if signal.id is not None:
                box.seen[signal.id] = mail.until
        else:
            unread = self._has_unread_records(head, actor, key_text)
            reason = self._rejections.reason(mail, box, key_text, head, actor, unread)
            if reason is UnmatchedReason.AMBIGUOUS and unread:
                stored = mail._replace(run=UNDECIDED)
                box.mail.append(stored)
                if actor is None:
                    self._let_all_go_on(head, key_text)
            elif reason is not None:
                self._unmatched.leave(signal, reason, key_text, out)
            else:
                stored = self._given(mail, key_text, head, box, actor)
                box.mail.append(stored)
        if stored is not None and actor is None and head.suspended is not None:
            number, seq, _ = head.suspended
            if is_for(stored, key_text, self._suspension(number)):
                head.suspended = number, seq, 0
        self.keep_signals(box, head, timers)
        self._state.head.update(head.pack())
        return stored

    def _let_all_go_on(self, head: Head, key_text: str) -> None:
        """Resume the runs of a key without an actor, so that its records are read.

        They may just wait again.
        """
        if head.suspended is not None:
            head.suspended = *head.suspended[:2], 0
        if self._takers is not None:
            self._takers.wake_all(head, key_text)

    def _decide(
        self,
        undecided: list[tuple[StoredSignal, int]],
        run: Run,
        box: Mailbox,
        head: Head,
        out: Emission,
        own: Suspension | None,
    ) -> None:
        """Keep or reject the undecided signals that no record mentions.

        Args:
            undecided: Each with the number of waits for its name that later signals have ended: these were
                open when it came.
            run: The run, which is committed or suspended.
            box: The signals of its key, without those that the run took.
            head: The head of its key.
            out: Receives unmatched signals.
            own: The stored form of the run, if it is suspended.
        """
        for mail, open_then in undecided:
            place = next((at for at, one in enumerate(box.mail) if one is mail), None)
            if place is None:
                continue
            before = box.mail[:place]
            free = self._rejections.free_for(mail.name, before, run.key_text, head, own, ())
            if free + open_then > 1:
                del box.mail[place]
                self._unmatched.leave(mail, UnmatchedReason.AMBIGUOUS, run.key_text, out)
            else:
                box.mail[place] = self._given(mail._replace(run=None), run.key_text, head, box, None)

    def _given(
        self, mail: StoredSignal, key_text: str, head: Head, box: Mailbox, actor: KeyActor | None
    ) -> StoredSignal:
        """Wake the released run that a signal is for; returns the signal, reserved for that run."""
        if self._takers is None or not head.released:
            return mail
        return self._takers.give(mail, key_text, head, box.mail, runs_going_on(actor))

    def expires(self, head: Head) -> bool:
        """Return True if it is time for signals of the current key to expire."""
        return head.mail_expires is not None and head.mail_expires <= self._clock()

    def expire(
        self,
        key_text: str,
        head: Head,
        actor: KeyActor | None,
        fired: int,
        emission: Emission,
        timers: Timers,
    ) -> None:
        """Remove signals of the current key that no run took in time.

        Args:
            key_text: The key.
            head: Its head.
            actor: Its actor, or None.
            fired: Time of the timer that has fired, which may have another purpose.
            emission: Receives unmatched signals.
            timers: Timers of the key.
        """
        now = self._clock()
        if head.mail_expires is None:
            return
        if head.mail_expires > now:
            if head.mail_expires <= fired:
                # The timer came before its time, by this clock.
                timers.register_processing_time_timer(fired + 1)
            return
        box = self._mailbox()
        if actor is None and self._may_be_taken(head, key_text) and any(one.until <= now for one in box.mail):
            # Resume the run, so that its records are read. They show who took the signal.
            assert head.suspended is not None
            head.suspended = *head.suspended[:2], 0
        self._expire(box, now, emission, head, actor, key_text)
        self.keep_signals(box, head, timers, waits=False)
        self._write(head)

    def end_signals(self, key_text: str, head: Head, emission: Emission, timers: Timers) -> None:
        """Remove all signals of the current key, because the input and its runs have ended."""
        if head.mail_expires is None:
            return
        box = self._mailbox()
        left, box.mail = box.mail, []
        for mail in left:
            self._unmatched.leave(mail, UnmatchedReason.END_OF_INPUT, key_text, emission)
        self.keep_signals(box, head, timers)
        self._write(head)

    def remove_taken(
        self, run: Run, head: Head, out: Emission, timers: Timers, suspension: Suspension | None
    ) -> Mailbox | None:
        """Remove the signals that a run took, and those for waits of it that are over; returns the mailbox.

        Args:
            run: The run, which is committed or suspended.
            head: The head of its key, which the caller writes.
            out: Receives unmatched signals.
            timers: Timers of the key.
            suspension: The stored form of the run; None if it is committed.
        """
        waits = run.waits
        if waits is None:
            return None
        if not (waits.taken or waits.rejected or waits.returned or head.mail_expires is not None):
            return None
        # These signals are no longer reserved: the run is in state now.
        waits.mail.confirm(identity for identity, _ in waits.recorded)
        now = self._clock()
        box = self._mailbox()
        # First, because the run may have taken them again.
        box.mail[:0] = waits.returned
        # Before `take` removes signals: their positions decide.
        undecided = box.undecided(waits.taken, waits.recorded)
        # In the same update as the run. So a crash repeats both or neither.
        box.take(waits.taken, now + self._ttl)
        for mail, wrong in waits.rejected:
            if (found := box.find(mail.identity)) is not None:
                box.mail.remove(found)
                self._unmatched.leave(mail, UnmatchedReason.INVALID, run.key_text, out, wrong)
        over = None if suspension is None else ended_waits(run.key_text, suspension)
        for mail in list(box.mail):
            if mail.wait is None or run_of(mail.wait, run.key_text) != run.sequence_number:
                continue
            if over is None or mail.wait in over:
                box.mail.remove(mail)
                self._unmatched.leave(mail, UnmatchedReason.DUPLICATE, run.key_text, out)
        if undecided and (suspension is not None or not waits.mail.open):
            # The waits of a released run are in the head.
            own = suspension if suspension is not None and not suspension.released else None
            undecided = [one for one in undecided if not waits.mail.is_reserved(one[0])]
            self._decide(undecided, run, box, head, out, own)
        if self._takers is not None:
            self._takers.unreserve(run, box, head, suspension)
        if suspension is not None:
            self._expire_behind(waits.mail, box, now, run.key_text, out)
        self.keep_signals(box, head, timers)
        return box

    # -- state ------------------------------------------------------------------------

    def _suspension(self, number: int) -> Suspension:
        packed = self._state.pending.suspended(number)
        assert packed is not None
        return Suspension.unpack(packed)

    def _mailbox(self) -> Mailbox:
        return Mailbox.unpack(self._state.pending.mailbox())

    def keep_signals(self, box: Mailbox, head: Head, timers: Timers, waits: bool = True) -> None:
        """Write the mailbox; the caller writes the head.

        Args:
            box: The mailbox.
            head: The head of the key.
            timers: Timers of the key.
            waits: True to register a timer for entries that have expired and are still there.
        """
        before, expires = head.mail_expires, box.expires
        if before is None and expires is None:
            return
        self._state.pending.put_mailbox(box.pack())
        head.mail_expires = expires
        if expires is not None and (expires != before or (waits and expires <= self._clock())):
            timers.register_processing_time_timer(max(expires, self._clock() + 1))

    def _write(self, head: Head) -> None:
        """Write a head, unless only signals ever came for the key, and none is left."""
        if head.is_unused:
            self._state.head.clear()
        else:
            self._state.head.update(head.pack())

    def _expire(
        self, box: Mailbox, now: int, out: Emission, head: Head, actor: KeyActor | None, key_text: str
    ) -> None:
        """Remove expired signals, except those that a run took, or will take according to its records."""
        untaken: list[StoredSignal] | None = None
        if actor is not None and actor.mail is not None:
            untaken = actor.mail.expire(now) if actor.order is None else []
        elif actor is None and head.has_pending:
            if head.suspended is None or self.is_due(head) or self._may_be_taken(head, key_text):
                untaken = []
        for mail in box.expire(now, untaken):
            self._unmatched.leave(mail, UnmatchedReason.EXPIRED, key_text, out)

    def _expire_behind(
        self, live: ActiveMailbox, box: Mailbox, now: int, key_text: str, out: Emission
    ) -> None:
        """Remove expired signals when a run is suspended. Signals that recorded runs took get more time."""
        for mail in box.expire(now, live.free(box.mail)):
            self._unmatched.leave(mail, UnmatchedReason.EXPIRED, key_text, out)
        box.mail = [one if one.until > now else one._replace(until=now + self._ttl) for one in box.mail]

    def _has_unread_records(self, head: Head, actor: KeyActor | None, key_text: str) -> bool:
        """Return True if records that were not read yet may say that runs have taken signals."""
        journals = self._shared.journals
        if journals is None or (actor is not None and actor.order is None):
            return False
        return actor is not None or journals.may_have(head.journal_id, key_text, head.marker, True)

    def _may_be_taken(self, head: Head, key_text: str) -> bool:
        """Return True if there may be recorded runs after a suspended one, of a key without an actor."""
        journals = self._shared.journals
        if journals is None or head.suspended is None or head.overtaken or head.origins:
            return journals is not None and head.suspended is not None
        return journals.may_have(head.journal_id, key_text, head.marker, True)


def is_for(mail: StoredSignal, key_text: str, suspension: Suspension) -> bool:
    """Return True if a wait of a suspended run can take a signal. A pause never does."""
    waits = [one for one in suspension.waits if isinstance(one, StoredSignalWait)]
    if mail.wait is not None:
        return any(one.id(key_text, suspension.seq) == mail.wait for one in waits)
    return mail.run in (None, suspension.seq) and any(one.name == mail.name for one in waits)
