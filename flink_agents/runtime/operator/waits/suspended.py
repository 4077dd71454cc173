"""Suspended runs and signals in state: what Flink's thread has to do with them.

A run that waits for what outlasts its execution is *parked*: in one update of its key, state gets what is
left of the run, the signals that it took are removed, and what it has put out leaves. From then on it has
nothing in the process. A timer, or a signal, lets it go on: an actor is made, which replays its records up to
the waits that are open, and these end there. The entry stays as it is until the run is parked again or
committed, again in one update. So whatever ended a wait, a crash leaves the wait open and what ends it at
hand, or neither.

Signals that come are kept in state until a run has taken them and is parked or committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta

from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.options import AgentOptions
from flink_agents.api.signals import STRAYS_TAG, Signal, StrayReason, StraySignal
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.run_waits import LiveMail
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.loop.actor import KeyActor, Waiting
from flink_agents.runtime.operator.emission import Emission, trace_outputs
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.overtaken import Overtaken
from flink_agents.runtime.operator.waits.delayed import Delays
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.mailbox import OF_ID, Mail, Mailbox
from flink_agents.runtime.state.suspended import Suspension, run_of, wait_id


class SuspendedRuns:
    """Keeps suspended runs and signals of the current key in state. Only for Flink's thread.

    Args:
        shared: What all runs share.
        state: Keyed state.
        clock: The wall-clock time in milliseconds.
        low: The low watermark; None where outputs need no timestamps.
        overtaken: Keeps recorded runs in mind whose inputs did not come in time.
        delays: Keeps delayed events in state.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        low: LowWatermark | None,
        overtaken: Overtaken,
        delays: Delays,
    ) -> None:
        self._shared = shared
        self._codec = shared.codec
        self._state = state
        self._clock = clock
        self._low = low
        self._overtaken = overtaken
        self._delays = delays
        ttl: timedelta = shared.config.get(AgentOptions.SIGNALS_TTL)
        self._ttl = int(ttl.total_seconds() * 1000)
        self._most: int = shared.config.get(AgentOptions.SIGNALS_PER_KEY)

    # -- suspended runs ---------------------------------------------------------------

    def park(self, actor: KeyActor, emission: Emission, timers: Timers) -> bool:
        """Put what is left of an actor's last run into state; whether it can go on at once.

        The actor is done with: its inputs stay in state.

        Args:
            actor: The actor of the current key, whose runs before that one are committed.
            emission: Takes what the run has put out.
            timers: Timers of the key.
        """
        assert actor.suspended is not None
        run, suspension = actor.suspended
        head, journals = actor.head, self._shared.journals
        self._state.pending.suspend(suspension.number, suspension.pack())
        if self._shared.traces_outputs:
            trace_outputs(run, self._shared.agent_name)
        if run.side_outputs:
            self._delays.keep(run, head, timers)
        if self._low is None:
            emission.take(run)
        else:
            self._low.leave(run, suspension.number, emission)
        if head.fresh:
            head.start(actor.begin)
        if actor.overtakes:
            self._overtaken.committed(actor, suspension.seq, actor.overtakes)
        if suspension.seq not in head.overtaken:
            head.next_seq = max(head.next_seq, suspension.seq)
        if journals is not None and suspension.recorded:
            head.store = journals.store_id
            if run.journal is not None and run.journal.end is not None:
                head.marker = run.journal.end
        due = suspension.due
        box = self._settled(run, head, emission, timers, suspension)
        ready = box is not None and any(_is_for(one, actor.key_text, suspension) for one in box.mail)
        head.suspended = suspension.number, suspension.seq, 0 if ready else due
        head.forked()
        self._state.head.update(head.pack())
        if due is not None:
            timers.register_processing_time_timer(max(due, self._clock() + 1))
        return ready or (due is not None and due <= self._clock())

    def is_due(self, head: Head) -> bool:
        """Whether the suspended run of a key is to go on."""
        suspended = head.suspended
        return suspended is not None and suspended[2] is not None and suspended[2] <= self._clock()

    def resume(self, head: Head) -> Waiting:
        """The suspended run of the current key, for its actor."""
        assert head.suspended is not None
        number, seq, _ = head.suspended
        suspension = self._suspension(number)
        packed = self._state.pending.get(number)
        assert packed is not None
        record, timestamp = self._codec.decode(packed)
        return Waiting(record, timestamp, number, packed, seq, suspension=suspension)

    def look_again(self, head: Head, fired: int, timers: Timers) -> None:
        """Have somebody look again at a suspended run whose timer came before its time, by this clock."""
        suspended = head.suspended
        if suspended is not None and suspended[2] is not None and suspended[2] <= fired:
            timers.register_processing_time_timer(max(self._clock(), fired) + 1)

    def committed(self, run: Run, number: int, head: Head, emission: Emission, timers: Timers) -> None:
        """Remove what was left of a run that is committed now, and the signals that it took."""
        if head.suspended is not None and head.suspended[0] == number:
            self._state.pending.end_suspension(number)
            head.suspended = None
        self._settled(run, head, emission, timers, None)

    # -- signals ----------------------------------------------------------------------

    def mail(self, head: Head) -> LiveMail:
        """The signals of the current key that wait, for a new actor."""
        mail = [] if head.mail_expires is None else list(self._mailbox().mail)
        return LiveMail(self._clock, mail, self._ttl)

    def receive(
        self, signal: Signal, key_text: str, head: Head, actor: KeyActor | None, timers: Timers, out: Emission
    ) -> Mail | None:
        """Keep a signal of the current key; returns it, unless it is a stray or was taken before.

        Args:
            signal: The signal.
            key_text: The key.
            head: Its head, which is written.
            actor: Its actor, or None.
            timers: Its timers.
            out: Takes strays.
        """
        try:
            value = self._codec.encode(signal.value)
        except UnserializableValueError:
            return self._stray(signal, StrayReason.INVALID, out)
        now = self._clock()
        box = self._mailbox()
        self._expire(box, now, out)
        mail = Mail(_identity(signal, value), signal.name, value, signal.id, signal.wait, now + self._ttl)
        kept: Mail | None = None
        if box.absorb(mail.identity):
            if signal.id is not None:
                box.seen[signal.id] = mail.until
        else:
            reason = self._refusal(mail, box, key_text, head, actor)
            if reason is not None:
                self._stray(signal, reason, out)
            else:
                kept = mail
                box.mail.append(mail)
        if kept is not None and actor is None and head.suspended is not None:
            number, seq, _ = head.suspended
            if _is_for(kept, key_text, self._suspension(number)):
                head.suspended = number, seq, 0
        self._keep(box, head, timers)
        self._state.head.update(head.pack())
        return kept

    def expire(self, head: Head, emission: Emission, timers: Timers) -> None:
        """Let go of signals of the current key that nobody took in time."""
        now = self._clock()
        if head.mail_expires is None or head.mail_expires > now:
            return
        box = self._mailbox()
        self._expire(box, now, emission)
        self._keep(box, head, timers)
        self._write(head)

    def end_signals(self, head: Head, emission: Emission, timers: Timers) -> None:
        """Let go of all signals of the current key: its runs have ended, and the input has."""
        if head.mail_expires is None:
            return
        box = self._mailbox()
        left, box.mail = box.mail, []
        for mail in left:
            self._stray(self._signal(mail), StrayReason.END_OF_INPUT, emission)
        self._keep(box, head, timers)
        self._write(head)

    def _refusal(
        self, mail: Mail, box: Mailbox, key_text: str, head: Head, actor: KeyActor | None
    ) -> StrayReason | None:
        """Why a signal is a stray; None where it is none."""
        if mail.id is not None and box.knows(mail.id):
            return StrayReason.DUPLICATE
        suspended = head.suspended
        if mail.wait is not None:
            seq = run_of(mail.wait, key_text)
            if seq is None:
                return StrayReason.INVALID
            of_suspended = suspended is not None and suspended[1] == seq
            if seq < head.next_seq and not of_suspended:
                return StrayReason.DUPLICATE
            if suspended is not None and of_suspended and actor is None:
                if mail.wait in _ended(key_text, self._suspension(suspended[0])):
                    return StrayReason.DUPLICATE
        elif self._open_for(mail.name, suspended, actor) > 1:
            return StrayReason.AMBIGUOUS
        return StrayReason.OVERFLOW if len(box.mail) >= self._most else None

    def _open_for(
        self, name: str, suspended: tuple[int, int, int | None] | None, actor: KeyActor | None
    ) -> int:
        if actor is not None:
            if actor.suspended is not None:
                return sum(one.name == name for one in actor.suspended[1].waits)
            return actor.mail.open_for(name) if actor.mail is not None else 0
        if suspended is None:
            return 0
        return sum(one.name == name for one in self._suspension(suspended[0]).waits)

    def _settled(
        self, run: Run, head: Head, out: Emission, timers: Timers, suspension: Suspension | None
    ) -> Mailbox | None:
        """Remove the signals that a run took, and those for waits of it that are over; returns the others.

        Args:
            run: The run, which is committed or parked.
            head: The head of its key, which the caller writes.
            out: Takes strays.
            timers: Timers of the key.
            suspension: What is left of the run; None where it is committed.
        """
        waits = run.waits
        if waits is None:
            return None
        if not (waits.taken or waits.refused or waits.returned or head.mail_expires is not None):
            return None
        now = self._clock()
        box = self._mailbox()
        # They may have been taken once more.
        box.mail[:0] = waits.returned
        box.take(waits.taken, now + self._ttl)
        for mail, reason in waits.refused:
            if (found := box.find(mail.identity)) is not None:
                box.mail.remove(found)
                self._stray(self._signal(mail), reason, out)
        over = None if suspension is None else _ended(run.key_text, suspension)
        for mail in list(box.mail):
            if mail.wait is None or run_of(mail.wait, run.key_text) != run.sequence_number:
                continue
            if over is None or mail.wait in over:
                box.mail.remove(mail)
                self._stray(self._signal(mail), StrayReason.DUPLICATE, out)
        self._keep(box, head, timers)
        return box

    # -- state ------------------------------------------------------------------------

    def _suspension(self, number: int) -> Suspension:
        packed = self._state.pending.suspended(number)
        assert packed is not None
        return Suspension.unpack(packed)

    def _mailbox(self) -> Mailbox:
        return Mailbox.unpack(self._state.pending.mailbox())

    def _keep(self, box: Mailbox, head: Head, timers: Timers) -> None:
        """Write the mailbox; the caller writes the head."""
        before, expires = head.mail_expires, box.expires
        if before is None and expires is None:
            return
        self._state.pending.put_mailbox(box.pack())
        head.mail_expires = expires
        if expires is not None and expires != before:
            timers.register_processing_time_timer(max(expires, self._clock() + 1))

    def _write(self, head: Head) -> None:
        """Write a head, unless nobody but signals ever came for the key, and none is left."""
        if head.is_unused:
            self._state.head.clear()
        else:
            self._state.head.update(head.pack())

    def _expire(self, box: Mailbox, now: int, out: Emission) -> None:
        for mail in box.expire(now):
            self._stray(self._signal(mail), StrayReason.EXPIRED, out)

    def _signal(self, mail: Mail) -> Signal:
        return Signal(mail.name, self._codec.decode(mail.value), None, mail.id, mail.wait)

    def _stray(self, signal: Signal, reason: StrayReason, out: Emission) -> None:
        self._shared.run_metrics.count("signals_stray")
        out.side_outputs.append((STRAYS_TAG, StraySignal(signal, reason)))
        out.side_timestamps.append(None)


def _is_for(mail: Mail, key_text: str, suspension: Suspension) -> bool:
    """Whether a wait of a suspended run can take a signal; a pause never does."""
    waits = [one for one in suspension.waits if one.name is not None]
    if mail.wait is not None:
        return any(one.id(key_text, suspension.seq) == mail.wait for one in waits)
    return any(one.name == mail.name for one in waits)


def _ended(key_text: str, suspension: Suspension) -> set[str]:
    """The waits of a suspended run that have ended, and those of its actions that have."""
    ended: dict[str, set[str]] = {}
    for record in suspension.records:
        step, task = task_of(record.step)
        if record.kind is RecordKind.WAIT:
            of_step = ended.setdefault(step, set())
            of_step.add(wait_id(key_text, suspension.seq, step, task, record.index))
        elif record.kind is RecordKind.RERUN:
            # They are open once more.
            ended.pop(step, None)
    return set().union(*ended.values())


def _identity(signal: Signal, value: bytes) -> str:
    """What a signal is known again by."""
    if signal.id is not None:
        return f"{OF_ID}{signal.id}"
    said = repr((signal.name, signal.wait, value)).encode("utf-8", "surrogatepass")
    return f"value {hashlib.blake2b(said, digest_size=16).hexdigest()}"


def is_something(emission: Emission) -> bool:
    """Whether anything leaves."""
    return bool(emission.outputs or emission.side_outputs)
