"""Decides which signals no run can take, and which open waits of a key have no signal.

A signal stays in the mailbox until the run that takes it is committed or suspended. So a wait that is open in
state may have its signal already, or may even have taken it: such a wait counts as answered. So it makes no
difference if signals come one by one, or all at once as after a restart.

Before the records of a key are read, one of its runs may have taken a signal that would be ambiguous by state
alone. Such a signal is *undecided*: it waits until the records show which run took it, if any. If none did,
the number of waits counts that were open when it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from flink_agents.api.action_state import RecordKind
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.waits.released import SignalTakers
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.pending import PendingInputs
from flink_agents.runtime.state.suspended import StoredSignalWait, Suspension, run_of, wait_id

MANY = 10
"""The factor for ``signals.max-per-key`` that limits signals which answer a run, or may have been taken."""


class SignalRejections:
    """Decides why a signal is unmatched. Only for Flink's task thread.

    Args:
        pending: The suspended runs in state.
        most: The most signals of a key that may wait for a run to ask for them.

    Attributes:
        takers: Decides which signals released runs can take; None if there are no such runs.
    """

    def __init__(self, pending: PendingInputs, most: int) -> None:
        self.takers: SignalTakers | None = None
        self._pending = pending
        self._most = most

    def reason(
        self,
        signal: StoredSignal,
        mailbox: Mailbox,
        key_text: str,
        head: Head,
        actor: KeyActor | None,
        unread: bool,
    ) -> UnmatchedReason | None:
        """Return the reason why no wait takes a signal of the current key, or None if one does.

        Args:
            signal: The signal.
            mailbox: The signals that came before it.
            key_text: The key.
            head: Its head.
            actor: Its actor, or None.
            unread: True if records that are not read yet may say that runs have taken signals.
        """
        if signal.id is not None and mailbox.knows(signal.id):
            return UnmatchedReason.DUPLICATE
        if signal.wait is not None:
            return self._of_named(signal, signal.wait, mailbox, key_text, head, actor, unread)
        free = self.free_for(
            signal.name, mailbox.signals, key_text, head, self._own(head, actor), runs_going_on(actor)
        )
        if free > 1:
            return UnmatchedReason.AMBIGUOUS
        first = not any(
            earlier_signal.name == signal.name and _is_open(earlier_signal)
            for earlier_signal in mailbox.signals
        )
        return None if free and first else self._overflow(mailbox, actor, unread)

    def _of_named(
        self,
        signal: StoredSignal,
        wait: str,
        mailbox: Mailbox,
        key_text: str,
        head: Head,
        actor: KeyActor | None,
        unread: bool,
    ) -> UnmatchedReason | None:
        """Return the reason why a signal that names its wait is unmatched, or None."""
        seq = run_of(wait, key_text)
        if seq is None:
            return UnmatchedReason.INVALID
        ended = None if self.takers is None else self.takers.has_ended(wait, seq, key_text, head)
        if ended is None:
            ended = self._has_ended(wait, seq, key_text, head, actor)
        if ended:
            return UnmatchedReason.DUPLICATE
        if any(signal.wait == wait for signal in mailbox.signals):
            return self._overflow(mailbox, actor, unread)
        # It answers a request of a run, so the limit for unrequested signals does not apply.
        answers = sum(signal.wait is not None for signal in mailbox.signals)
        return UnmatchedReason.OVERFLOW if answers >= MANY * self._most else None

    def _has_ended(self, wait: str, seq: int, key_text: str, head: Head, actor: KeyActor | None) -> bool:
        """Return True if a wait has ended, of a run that blocks its key, or of one that is committed."""
        suspended = head.suspended
        if suspended is None or suspended[1] != seq:
            return seq < head.next_seq
        if actor is not None:
            return False
        suspension = self._pending.suspension(suspended[0])
        return suspension is not None and wait in ended_waits(key_text, suspension)

    def _overflow(self, mailbox: Mailbox, actor: KeyActor | None, unread: bool) -> UnmatchedReason | None:
        live = None if actor is None else actor.runs.mailbox
        waiting = sum(map(_is_open, mailbox.signals)) if live is None else live.waiting
        most = MANY * self._most if unread else self._most
        return UnmatchedReason.OVERFLOW if waiting >= most else None

    def free_for(
        self,
        name: str,
        signals: Collection[StoredSignal],
        key_text: str,
        head: Head,
        own_waits: Suspension | ActiveMailbox | None,
        going_on: Collection[int],
    ) -> int:
        """Return the number of open waits for a name without a signal.

        Args:
            name: The name.
            signals: The signals of the key.
            key_text: The key.
            head: Its head.
            own_waits: The waits of the run that is in flight or blocks the key.
            going_on: The released runs in flight: their waits are among the former.
        """
        if own_waits is None:
            free_count = 0
        elif isinstance(own_waits, ActiveMailbox):
            free_count = own_waits.unanswered_for(
                name, {signal.wait for signal in signals if signal.wait is not None}
            )
        else:
            free_count = sum(wait.name == name for wait in unanswered(own_waits, key_text, signals))
        if self.takers is not None and head.released:
            free_count += self.takers.free_for(name, signals, key_text, head, going_on)
        return free_count

    def _own(self, head: Head, actor: KeyActor | None) -> Suspension | ActiveMailbox | None:
        """Return the waits of the run of a key that is in flight or blocks the key."""
        if actor is not None:
            runs = actor.runs
            if runs.suspended is not None:
                return runs.suspended.suspension
            if runs.mailbox is None or not runs.mailbox.resuming:
                return runs.mailbox
        return None if head.suspended is None else self._pending.suspension(head.suspended[0])


def waits_for(signal: StoredSignal, key_text: str, suspension: Suspension) -> bool:
    """Return True if a wait of a suspended run can take a signal. A pause never does."""
    waits = [wait for wait in suspension.waits if isinstance(wait, StoredSignalWait)]
    if signal.wait is not None:
        return any(wait.id(key_text, suspension.seq) == signal.wait for wait in waits)
    return signal.run in (None, suspension.seq) and any(wait.name == signal.name for wait in waits)


def unanswered(
    suspension: Suspension, key_text: str, signals: Iterable[StoredSignal]
) -> list[StoredSignalWait]:
    """Return the waits for signals of a suspended run that no signal of ``signals`` answers."""
    named = set[str]()
    meant = Counter[str]()
    for signal in signals:
        if signal.wait is not None:
            named.add(signal.wait)
        elif signal.run == suspension.seq:
            meant[signal.name] += 1
    waits: list[StoredSignalWait] = []
    for wait in suspension.waits:
        if not isinstance(wait, StoredSignalWait) or wait.id(key_text, suspension.seq) in named:
            continue
        if meant[wait.name]:
            meant[wait.name] -= 1
        else:
            waits.append(wait)
    return waits


def ended_waits(key_text: str, suspension: Suspension) -> set[str]:
    """Return the ids of the waits of a suspended run that have ended, and of those of its ended actions."""
    ended: dict[str, set[str]] = {}
    for record in suspension.records:
        step, task = task_of(record.step)
        if record.kind is RecordKind.WAIT:
            of_step = ended.setdefault(step, set())
            of_step.add(wait_id(key_text, suspension.seq, step, task, record.index))
        elif record.kind is RecordKind.RERUN:
            # The waits of that execution are open again.
            ended.pop(step, None)
    return set().union(*ended.values())


def runs_going_on(actor: KeyActor | None) -> Collection[int]:
    """Return the sequence numbers of the runs that have started, or resumed, with the signals of an actor."""
    mailbox = None if actor is None else actor.runs.mailbox
    return () if mailbox is None else mailbox.runs


def _is_open(signal: StoredSignal) -> bool:
    """Return True if any wait for its name may take a signal."""
    return signal.wait is None and signal.run is None
