"""Decides which signals no run can take, and which open waits of a key have no signal.

A signal stays in the mailbox until the run that takes it is committed or suspended. So a wait that is open in
state may have its signal already, or may even have taken it: such a wait counts as answered. So it makes no
difference if signals come one by one, or all at once as after a restart.

Before the records of a key are read, one of its runs may have taken a signal that would be ambiguous by state
alone. Such a signal is *undecided*: it waits until the records show which run took it, if any. If none did,
the number of waits counts that were open when it came.
"""

from __future__ import annotations

from collections.abc import Collection

from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.waits.signal_takers import SignalTakers
from flink_agents.runtime.operator.waits.wait_ids import unanswered
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.suspended import run_of

MANY = 10
"""The factor for ``signals.max-per-key`` that limits signals which answer a run, or may have been taken."""


class SignalRejections:
    """Decides why a signal is unmatched. Only for Flink's task thread.

    Args:
        takers: Decides which signals suspended runs can take.
        most: The most signals of a key that may wait for a run to ask for them.
    """

    def __init__(self, takers: SignalTakers, most: int) -> None:
        self._takers = takers
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
        free = self._count_free(signal.name, mailbox.signals, key_text, head, actor)
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
        if self._takers.has_ended(wait, seq, key_text, head):
            return UnmatchedReason.DUPLICATE
        if any(signal.wait == wait for signal in mailbox.signals):
            return self._overflow(mailbox, actor, unread)
        # It answers a request of a run, so the limit for unrequested signals does not apply.
        answers = sum(signal.wait is not None for signal in mailbox.signals)
        return UnmatchedReason.OVERFLOW if answers >= MANY * self._most else None

    def _overflow(self, mailbox: Mailbox, actor: KeyActor | None, unread: bool) -> UnmatchedReason | None:
        live = None if actor is None else actor.mailbox
        waiting = sum(map(_is_open, mailbox.signals)) if live is None else live.waiting
        most = MANY * self._most if unread else self._most
        return UnmatchedReason.OVERFLOW if waiting >= most else None

    def _count_free(
        self,
        name: str,
        signals: Collection[StoredSignal],
        key_text: str,
        head: Head,
        actor: KeyActor | None,
    ) -> int:
        """Return the number of open waits of a key for a name that have no signal."""
        going_on = runs_going_on(actor)
        live_count = 0
        if actor is not None and (suspended := actor.suspended) is not None:
            # It is not in state yet, and its waits have left the mailbox.
            assert suspended.suspension is not None
            waits = unanswered(suspended.suspension, key_text, signals)
            live_count = sum(wait.name == name for wait in waits)
            going_on = {*going_on, suspended.run.sequence_number}
        elif actor is not None and (mailbox := actor.mailbox) is not None:
            if mailbox.resuming:
                # The run that blocks the key has not come to its waits, so those in state count.
                going_on = set(going_on) - {run.seq for run in head.suspended if run.blocks}
            else:
                named = {signal.wait for signal in signals if signal.wait is not None}
                live_count = mailbox.unanswered_for(name, named)
        if not head.suspended:
            return live_count
        return live_count + self._takers.count_free(name, signals, key_text, head, going_on)


def runs_going_on(actor: KeyActor | None) -> Collection[int]:
    """Return the sequence numbers of the runs that have started, or resumed, with the signals of an actor."""
    mailbox = None if actor is None else actor.mailbox
    return () if mailbox is None else mailbox.runs


def _is_open(signal: StoredSignal) -> bool:
    """Return True if any wait for its name may take a signal."""
    return signal.wait is None and signal.run is None
