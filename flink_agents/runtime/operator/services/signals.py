"""The signals of a key: those in its state, the runs that they are handed to, and those that no run takes.

A signal stays in state until a run that has taken it is suspended or committed: the entry of the run, the
head and the signals change in one update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flink_agents.api.errors import StateError
from flink_agents.api.events.key_requests import PREFIX
from flink_agents.api.events.signals import (
    UNMATCHED_SIGNALS_TAG,
    Signal,
    TaggedSignal,
    UnmatchedReason,
    UnmatchedSignal,
    is_text,
)
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.execution.waits.run_waits import RunWaits
from flink_agents.runtime.loop.actor import KeyActor, RunEnd
from flink_agents.runtime.operator.requests import RequestService
from flink_agents.runtime.operator.services.service import START, Emission, KeyService
from flink_agents.runtime.operator.services.signal_matching import KeySignals, ended_waits, waits_for
from flink_agents.runtime.operator.services.suspension import SuspendedRuns
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.mailbox import UNDECIDED, Mailbox, StoredSignal, identity_of
from flink_agents.runtime.state.suspended import Suspension, run_of

RUN_HAS_ENDED = "the run that waited has ended"
WAIT_HAS_ENDED = "the wait has ended"
"""Details of unmatched signals: the run has ended that they are for, or the wait that they name."""


class SignalService(KeyService):
    """Stores signals of the current key, hands them to runs, and emits those that no run takes.

    Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        runs: The suspended runs, of which a signal resumes one.
        requests: Handles the signals that are requests about a key.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        runs: SuspendedRuns,
        requests: RequestService,
    ) -> None:
        self._runs = runs
        self._requests = requests
        self._most = shared.config.get(AgentOptions.SIGNALS_PER_KEY)
        self._journals = shared.journals
        self._codec = shared.codec
        self._count = shared.telemetry.run_metrics.count
        self._state = state
        self._clock = clock
        self._ttl = int(shared.config.get(AgentOptions.SIGNALS_TTL).total_seconds() * 1000)

    def equip(self, actor: KeyActor) -> None:
        """Give a new actor a mailbox with the signals of its key in state."""
        head = actor.head
        signals = [] if head.signals_expire is None else self._state.pending.mailbox().signals
        actor.mailbox = ActiveMailbox(self._clock, signals, self._ttl, head.blocking is not None)

    def _signals_of(self, key_text: str, head: Head, actor: KeyActor | None) -> KeySignals:
        """Return the signals of the current key, read from state."""
        return KeySignals(self._runs, self._most, key_text, head, self._state.pending.mailbox(), actor)

    # -- a signal comes ---------------------------------------------------------------

    def receive(self, key_text: str, record: TaggedSignal, timers: Timers) -> Emission:
        """Store a signal of the current key and wake the run that waits for it; return it if unmatched.

        A request about the key is handled instead.
        """
        emission = Emission()
        operator = self.operator
        signal = record.signal
        # Requests are signals with a reserved prefix.
        if type(signal.name) is str and signal.name.startswith(PREFIX):
            self._requests.request(signal, key_text, timers)
            return emission
        actor = operator.actors.get(key_text)
        if actor is not None:
            operator.loop_access.check_failure()
            head = actor.head
        else:
            cached = operator.cache.get(key_text)
            head = cached.head if cached is not None else operator.heads.read_or_create(key_text)
        self._runs.expect_waits()
        if actor is not None:
            # Before state has the signal: a run that waits for the first time may create it without.
            actor.open_mailbox()
        stored = self._store(signal, key_text, head, actor, timers, emission)
        if stored is None:
            return emission
        # At the end of the input, signals that no run took are emitted as unmatched.
        operator.schedule.see_the_end(timers)
        # State has it by now: a run must not take a signal that a restore would not bring back.
        if actor is not None:
            operator.loop_access.loop.suspender.offer(actor, stored)
        self._runs.resume_woken(head, key_text, actor, timers)
        return emission

    def _store(
        self, signal: Signal, key_text: str, head: Head, actor: KeyActor | None, timers: Timers, out: Emission
    ) -> StoredSignal | None:
        """Store a signal of the current key and return it, unless it is unmatched or was taken before.

        Args:
            signal: The signal.
            key_text: The key.
            head: Its head, which is written.
            actor: Its actor, or None.
            timers: Its timers.
            out: Receives unmatched signals.
        """
        new = self._stored_form(signal, key_text, out)
        if new is None:
            return None
        signals = self._signals_of(key_text, head, actor)
        self._expire(signals, out)
        stored = None
        if not signals.mailbox.absorb(new.identity):
            stored = self._match(new, signal, signals, out)
        elif signal.id is not None:
            signals.mailbox.seen[signal.id] = new.until
        self._write(signals, timers)
        self._state.write(head)
        return stored

    def _stored_form(self, signal: Signal, key_text: str, out: Emission) -> StoredSignal | None:
        """Return the form of a signal in state; emit it and return None if it is invalid."""
        try:
            value = self._codec.encode(signal.value)
            # Pickle does not validate. Decoding may raise, so find out now, not in each attempt.
            self._codec.decode(value)
        except StateError as error:
            return self._emit_unmatched(signal, UnmatchedReason.INVALID, key_text, out, error.message)
        ids = [text for text in (signal.id, signal.wait) if text is not None]
        if not all(map(is_text, (signal.name, *ids))):
            wrong = "its name, id or wait is no text"
            return self._emit_unmatched(signal, UnmatchedReason.INVALID, key_text, out, wrong)
        until = self._clock() + self._ttl
        return StoredSignal(identity_of(signal, value), signal.name, value, signal.id, signal.wait, until)

    def _match(
        self, new: StoredSignal, signal: Signal, signals: KeySignals, out: Emission
    ) -> StoredSignal | None:
        """Add a signal to the mailbox and return it, with its run; or emit it as unmatched."""
        key_text = signals.key_text
        unread = self._has_unread_records(signals)
        reason = signals.unmatched_reason(new, unread)
        if reason is UnmatchedReason.AMBIGUOUS and unread:
            stored = new._replace(run=UNDECIDED)
            if signals.actor is None:
                # Resume the runs of the key, so that its records are read. They may just wait again.
                self._runs.wake_all(signals.head, key_text)
        elif reason is not None:
            is_late = reason is UnmatchedReason.DUPLICATE
            detail = self._why_late(new, key_text, signals.head) if is_late else None
            return self._emit_unmatched(signal, reason, key_text, out, detail)
        else:
            stored = signals.wake_run_for(new)
        # Last: limits and reservations count the signals before it.
        signals.mailbox.signals.append(stored)
        return stored

    def _why_late(self, signal: StoredSignal, key_text: str, head: Head) -> str | None:
        """Return the reason why a signal comes too late for the wait that it names; None if it names none."""
        seq = None if signal.wait is None else run_of(signal.wait, key_text)
        if seq is None:
            return None
        unfinished = [run.seq for run in head.suspended]
        return RUN_HAS_ENDED if seq < head.next_seq and seq not in unfinished else WAIT_HAS_ENDED

    # -- a run has taken signals ------------------------------------------------------

    def remove_taken(self, ended: RunEnd, head: Head, timers: Timers, out: Emission) -> None:
        """Remove the signals that a run took, and those for waits of it that are over.

        If the run is suspended, and one of the signals that are left is for it, it is woken.

        Args:
            ended: The run, which is committed or suspended.
            head: The head of its key, which the caller writes.
            timers: Timers of the key.
            out: Receives unmatched signals.
        """
        run = ended.run
        suspension = ended.suspension
        waits = run.waits
        if waits is None:
            return
        if not (waits.taken or waits.rejected or waits.returned or head.signals_expire is not None):
            return
        # These signals are no longer reserved: the run is in state now.
        waits.mailbox.confirm(identity for identity, _ in waits.recorded)
        signals = self._signals_of(run.key_text, head, None)
        mailbox = signals.mailbox
        # First, because the run may have taken them again.
        mailbox.signals[:0] = waits.returned
        # Before `take` removes signals: their positions decide.
        undecided = mailbox.undecided(waits.taken, waits.recorded)
        # In the same update as the run. So a crash repeats both or neither.
        mailbox.remove_taken(waits.taken, self._clock() + self._ttl)
        self._remove_unwanted(run, waits, suspension, mailbox, out)
        if undecided and (suspension is not None or not waits.mailbox.open):
            undecided = [pair for pair in undecided if not waits.mailbox.is_reserved(pair[0])]
            self._decide(undecided, signals, out)
        signals.unreserve(run, suspension)
        if suspension is not None:
            self._offer(signals, suspension, waits.mailbox, out)
        self._write(signals, timers)

    def _remove_unwanted(
        self, run: Run, waits: RunWaits, suspension: Suspension | None, mailbox: Mailbox, out: Emission
    ) -> None:
        """Emit the signals that a run rejected, and those that name a wait of it which is over."""
        for signal, wrong in waits.rejected:
            if (stored_signal := mailbox.find(signal.identity)) is not None:
                mailbox.signals.remove(stored_signal)
                self._emit_unmatched(signal, UnmatchedReason.INVALID, run.key_text, out, wrong)
        ended = None if suspension is None else ended_waits(run.key_text, suspension)
        for signal in list(mailbox.signals):
            if signal.wait is None or run_of(signal.wait, run.key_text) != run.sequence_number:
                continue
            if ended is None or signal.wait in ended:
                mailbox.signals.remove(signal)
                why = RUN_HAS_ENDED if ended is None else WAIT_HAS_ENDED
                self._emit_unmatched(signal, UnmatchedReason.DUPLICATE, run.key_text, out, why)

    def _offer(
        self, signals: KeySignals, suspension: Suspension, active: ActiveMailbox, out: Emission
    ) -> None:
        """Wake a run that is about to be suspended if a signal for it came in the meantime."""
        now = self._clock()
        self._expire_later(signals, active, out)
        # A signal that a later recorded run has taken does not resume it.
        free = [
            signal
            for signal in active.free(signals.mailbox.signals)
            if signal.until > now and waits_for(signal, signals.key_text, suspension)
        ]
        if free:
            signals.reserve(free, suspension)

    def _decide(self, undecided: list[tuple[StoredSignal, int]], signals: KeySignals, out: Emission) -> None:
        """Assign or reject the undecided signals: the records that could decide on them have been read.

        Args:
            undecided: Each with the number of waits for its name that later signals have ended: these were
                open when it came.
            signals: The signals of the key, without those that the run took.
            out: Receives unmatched signals.
        """
        stored = signals.mailbox.signals
        for signal, open_then in undecided:
            place = next((at for at, other_signal in enumerate(stored) if other_signal is signal), None)
            if place is None:
                continue
            if signals.count_free(signal.name, stored[:place]) + open_then > 1:
                del stored[place]
                self._emit_unmatched(signal, UnmatchedReason.AMBIGUOUS, signals.key_text, out)
            else:
                stored[place] = signals.wake_run_for(signal._replace(run=None))

    # -- signals that no run takes ----------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Emit the signals of the current key that have expired.

        This comes before waits end: a signal that has expired must not resume a run.
        """
        operator = self.operator
        head = operator.head_of(key_text) if at < START else None
        if head is None or head.signals_expire is None:
            return
        actor = operator.actors.get(key_text)
        now = self._clock()
        if head.signals_expire > now:
            if head.signals_expire <= at:
                # The timer came before its time, by this clock.
                timers.register_processing_time_timer(at + 1)
            return
        if actor is None and head.suspended:
            # A run may have taken a signal that expires now. Resume it, so that its records are read.
            self._runs.wake_unread(head, key_text)
        signals = self._signals_of(key_text, head, actor)
        has_expired = any(signal.until <= now for signal in signals.mailbox.signals)
        if actor is None and has_expired and self._may_be_taken(head, key_text):
            # The records of the run that blocks the key show who took the signal.
            self._runs.wake_blocking(head, key_text)
        self._expire(signals, out)
        self._write(signals, timers, awaits_expired=False)
        self._write_head(head, key_text)

    def end_signals(self, key_text: str, timers: Timers, out: Emission) -> None:
        """Emit the signals of the current key that no run has taken: the input and its runs have ended."""
        head = self.operator.head_of(key_text)
        if head is None or head.signals_expire is None:
            return
        signals = self._signals_of(key_text, head, None)
        for signal in signals.mailbox.signals:
            self._emit_unmatched(signal, UnmatchedReason.END_OF_INPUT, key_text, out)
        signals.mailbox.signals = []
        self._write(signals, timers)
        self._write_head(head, key_text)

    def _expire(self, signals: KeySignals, out: Emission) -> None:
        """Remove and emit expired signals, except those that a run took, or may take by its records."""
        now = self._clock()
        actor = signals.actor
        head = signals.head
        untaken: list[StoredSignal] | None = None
        if actor is not None and actor.mailbox is not None:
            untaken = actor.mailbox.expire(now) if actor.recovery is None else []
        elif actor is None and head.has_pending:
            blocking = head.blocking
            if blocking is None or blocking.is_due(now) or self._may_be_taken(head, signals.key_text):
                untaken = []
        for signal in signals.mailbox.expire(now, untaken):
            self._emit_unmatched(signal, UnmatchedReason.EXPIRED, signals.key_text, out)

    def _expire_later(self, signals: KeySignals, active: ActiveMailbox, out: Emission) -> None:
        """Remove and emit expired signals when a run is suspended. Those that runs took get more time."""
        now = self._clock()
        mailbox = signals.mailbox
        for signal in mailbox.expire(now, active.free(mailbox.signals)):
            self._emit_unmatched(signal, UnmatchedReason.EXPIRED, signals.key_text, out)
        later = now + self._ttl
        mailbox.signals = [
            signal if signal.until > now else signal._replace(until=later) for signal in mailbox.signals
        ]

    def _emit_unmatched(
        self,
        what: Signal | StoredSignal,
        reason: UnmatchedReason,
        key_text: str,
        out: Emission,
        detail: str | None = None,
    ) -> None:
        """Emit an unmatched signal.

        Args:
            what: The signal, or its stored form, which does not have its key.
            reason: The reason why no run takes it.
            key_text: Its key.
            out: Receives it.
            detail: The defect of the signal, if there is one.
        """
        if isinstance(what, StoredSignal):
            value = None
            try:
                value = self._codec.decode(what.value)
            except StateError as error:
                # Its class may have been removed since the signal arrived.
                detail = detail or error.message
            what = Signal(what.name, value, None, what.id, what.wait)
        if what.key is None:
            what = replace(what, key=decode_key(key_text))
        self._count("signals_unmatched")
        out.side_outputs.append((UNMATCHED_SIGNALS_TAG, UnmatchedSignal(what, reason, detail)))
        out.side_timestamps.append(None)

    def _has_unread_records(self, signals: KeySignals) -> bool:
        """Return True if records that were not read yet may say that runs have taken signals."""
        if self._journals is None:
            return False
        if signals.actor is not None:
            return signals.actor.recovery is not None
        return self._journals.may_have(signals.head, signals.key_text, True)

    def _may_be_taken(self, head: Head, key_text: str) -> bool:
        """Return True if the store may have records by which a run of a blocked key took signals."""
        if self._journals is None or head.blocking is None:
            return False
        if head.skipped or head.origins:
            return True
        return self._journals.may_have(head, key_text, True)

    # -- state ------------------------------------------------------------------------

    def _write(self, signals: KeySignals, timers: Timers, awaits_expired: bool = True) -> None:
        """Write the signals of the current key to state. The caller writes the head.

        Args:
            signals: The signals.
            timers: Timers of the key.
            awaits_expired: True to register a timer also for entries that have expired and are still there.
        """
        head = signals.head
        previous_expiry = head.signals_expire
        expires = signals.mailbox.expires
        if previous_expiry is None and expires is None:
            return
        self._state.pending.put_mailbox(signals.mailbox)
        head.signals_expire = expires
        if expires is not None and (
            expires != previous_expiry or (awaits_expired and expires <= self._clock())
        ):
            timers.register_processing_time_timer(max(expires, self._clock() + 1))

    def _write_head(self, head: Head, key_text: str) -> None:
        """Write a head, unless only signals ever came for the key, and none is left."""
        if head.is_unused:
            self._state.remove(head)
            self.operator.cache.remove_key(key_text)
        else:
            self._state.write(head)
