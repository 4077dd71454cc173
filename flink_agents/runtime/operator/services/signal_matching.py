"""Matches signals with the waits of a key: which run gets a signal, and which signals no run can take.

A signal stays in the mailbox until the run that takes it is committed or suspended. So a wait that is open in
state may have its signal already, or may even have taken it: such a wait counts as answered. So it makes no
difference if signals come one by one, or all at once as after a restart.

A *reserved* signal has the number of its run, and no other run of the key takes it. A run that blocks its key
needs no reservation: no other run starts before it has ended.

Before the records of a key are read, one of its runs may have taken a signal that would be ambiguous by state
alone. Such a signal is *undecided*: it waits until the records show which run took it, if any. If none did,
the number of waits counts that were open when it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flink_agents.api.action_state import RecordKind
from flink_agents.api.events.signals import UnmatchedReason
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.services.suspension import SuspendedRuns
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.suspended import StoredSignalWait, Suspension, run_of, wait_id

MANY = 10
"""The factor for ``signals.max-per-key`` for signals that name a wait, or may have been taken."""


def waits_for(signal: StoredSignal, key_text: str, suspension: Suspension) -> bool:
    """Return True if a wait of a suspended run can take a signal. A pause never does."""
    waits = [wait for wait in suspension.waits if isinstance(wait, StoredSignalWait)]
    if signal.wait is not None:
        return any(wait.id(key_text, suspension.seq) == signal.wait for wait in waits)
    return signal.run in (None, suspension.seq) and any(wait.name == signal.name for wait in waits)


def unanswered(
    suspension: Suspension, key_text: str, signals: Iterable[StoredSignal]
) -> list[StoredSignalWait]:
    """Return the signal waits of a suspended run that no signal of ``signals`` names or is reserved for."""
    named_waits = set[str]()
    reserved = Counter[str]()
    for signal in signals:
        if signal.wait is not None:
            named_waits.add(signal.wait)
        elif signal.run == suspension.seq:
            reserved[signal.name] += 1
    waits: list[StoredSignalWait] = []
    for wait in suspension.waits:
        if not isinstance(wait, StoredSignalWait) or wait.id(key_text, suspension.seq) in named_waits:
            continue
        if reserved[wait.name]:
            reserved[wait.name] -= 1
        else:
            waits.append(wait)
    return waits


def ended_waits(key_text: str, suspension: Suspension) -> set[str]:
    """Return the ids of the waits of a suspended run that have ended, by its records."""
    ended_by_step: dict[str, set[str]] = {}
    for record in suspension.records:
        step, task = task_of(record.step)
        if record.kind is RecordKind.WAIT:
            of_step = ended_by_step.setdefault(step, set())
            of_step.add(wait_id(key_text, suspension.seq, step, task, record.index))
        elif record.kind is RecordKind.RERUN:
            # The waits of that execution are open again.
            ended_by_step.pop(step, None)
    return set().union(*ended_by_step.values())


@dataclass(slots=True)
class KeySignals:
    """The signals of the current key in one call of Flink: which run gets one, and why no run does.

    Only for Flink's task thread. The caller writes head and mailbox.

    Attributes:
        runs: The suspended runs in state.
        most: The most signals of a key that may wait for a run to ask for them.
        key_text: The key.
        head: Its head.
        mailbox: Its signals.
        actor: Its actor, if signals may go to the runs on the loop; None if only suspended runs count.
    """

    runs: SuspendedRuns
    most: int
    key_text: str
    head: Head
    mailbox: Mailbox
    actor: KeyActor | None = None

    def unmatched_reason(self, signal: StoredSignal, unread: bool) -> UnmatchedReason | None:
        """Return the reason why no wait takes a signal that is not in the mailbox yet, or None if one does.

        Args:
            signal: The signal.
            unread: True if records that are not read yet may say that runs have taken signals.
        """
        signals = self.mailbox.signals
        if signal.id is not None and self.mailbox.knows(signal.id):
            return UnmatchedReason.DUPLICATE
        if signal.wait is not None:
            return self._reason_for_named(signal.wait, unread)
        free_waits = self._count_all_free(signal.name)
        if free_waits > 1:
            return UnmatchedReason.AMBIGUOUS
        is_first = not any(earlier.name == signal.name and _is_open(earlier) for earlier in signals)
        return None if free_waits and is_first else self._overflow(unread)

    def _reason_for_named(self, wait: str, unread: bool) -> UnmatchedReason | None:
        """Return the reason why a signal for the wait with an id is unmatched, or None if it is stored."""
        seq = run_of(wait, self.key_text)
        if seq is None:
            return UnmatchedReason.INVALID
        if self._has_ended(wait, seq):
            return UnmatchedReason.DUPLICATE
        signals = self.mailbox.signals
        if any(signal.wait == wait for signal in signals):
            return self._overflow(unread)
        # It answers a request of a run, so the limit for unrequested signals does not apply.
        answers = sum(signal.wait is not None for signal in signals)
        return UnmatchedReason.OVERFLOW if answers >= MANY * self.most else None

    def _overflow(self, unread: bool) -> UnmatchedReason | None:
        """Return ``OVERFLOW`` if the key has as many signals without a run as it may have, else None."""
        live = None if self.actor is None else self.actor.mailbox
        waiting = sum(map(_is_open, self.mailbox.signals)) if live is None else live.waiting
        most = MANY * self.most if unread else self.most
        return UnmatchedReason.OVERFLOW if waiting >= most else None

    def _has_ended(self, wait: str, seq: int) -> bool:
        """Return True if a wait of run ``seq`` has ended: the run is committed, or suspended after it."""
        listed_run = next((run for run in self.head.suspended if run.seq == seq), None)
        if listed_run is None:
            return seq < self.head.next_seq
        if listed_run.woken is not None:
            return False
        return wait in ended_waits(self.key_text, self.runs.suspension(listed_run))

    # -- waits that have no signal ----------------------------------------------------

    def _count_all_free(self, name: str) -> int:
        """Return the number of open waits for signals of a name that have none, on the loop and in state."""
        signals = self.mailbox.signals
        actor = self.actor
        live_seqs = self._live_seqs()
        live_count = 0
        if actor is not None and (suspended := actor.suspended) is not None:
            # It is not in state yet, and its waits have left the mailbox.
            assert suspended.suspension is not None
            waits = unanswered(suspended.suspension, self.key_text, signals)
            live_count = sum(wait.name == name for wait in waits)
            live_seqs = {*live_seqs, suspended.run.sequence_number}
        elif actor is not None and (mailbox := actor.mailbox) is not None:
            if mailbox.resuming:
                # The run that blocks the key has not come to its waits, so those in state count.
                live_seqs = set(live_seqs) - {run.seq for run in self.head.suspended if run.blocks}
            else:
                named = {signal.wait for signal in signals if signal.wait is not None}
                live_count = mailbox.unanswered_for(name, named)
        return live_count + self.count_free(name, signals, live_seqs)

    def count_free(
        self, name: str, signals: Collection[StoredSignal], live_seqs: Collection[int] = ()
    ) -> int:
        """Return the number of open waits of suspended runs for signals of a name that have none.

        Args:
            name: The name of the signal.
            signals: The stored signals that may have a wait.
            live_seqs: Sequence numbers of resumed runs, whose waits are not counted here.
        """
        # Reading an entry takes long; only these may have waits with signals.
        concerned = {
            signal.run if signal.wait is None else run_of(signal.wait, self.key_text) for signal in signals
        }
        wait_count = 0
        for run in self.head.suspended:
            if name not in run.names or (run.woken is not None and run.seq in live_seqs):
                continue
            if run.seq in concerned:
                waits = unanswered(self.runs.suspension(run), self.key_text, signals)
                wait_count += sum(wait.name == name for wait in waits)
            else:
                wait_count += run.names.count(name)
        return wait_count

    def _live_seqs(self) -> Collection[int]:
        """Return the sequence numbers of the runs that take signals from the actor's mailbox."""
        mailbox = None if self.actor is None else self.actor.mailbox
        return () if mailbox is None else mailbox.runs

    # -- signals that runs get --------------------------------------------------------

    def wake_run_for(self, signal: StoredSignal) -> StoredSignal:
        """Wake the suspended run that a signal is for, if there is one.

        Returns:
            The signal, reserved for that run if others could take it.
        """
        live_seqs = self._live_seqs()
        seq = None if signal.wait is None else run_of(signal.wait, self.key_text)
        for run in self.head.suspended:
            wanted = run.seq == seq if signal.wait is not None else signal.name in run.names
            # A run that has resumed takes the signal itself, if it still waits for one.
            if not wanted or (run.woken is not None and run.seq in live_seqs):
                continue
            suspension = self.runs.suspension(run)
            reserved = self._reserved_for(signal, suspension)
            is_named_or_free = signal.wait is not None or run.blocks
            if reserved.run == run.seq or (is_named_or_free and waits_for(signal, self.key_text, suspension)):
                self.runs.wake_run(self.head, self.key_text, run.seq)
                return reserved
        return signal

    def reserve(self, free: Collection[StoredSignal], suspension: Suspension) -> None:
        """Wake a run that is about to be suspended, because signals for it are there.

        Args:
            free: Signals of the mailbox that no run has. Each is reserved for the run.
            suspension: The stored form of the run, which the head lists already.
        """
        signals = self.mailbox.signals
        for place, signal in enumerate(signals):
            if any(signal is free_signal for free_signal in free):
                signals[place] = self._reserved_for(signal, suspension)
        self.runs.wake_run(self.head, self.key_text, suspension.seq)

    def unreserve(self, run: Run, suspension: Suspension | None) -> None:
        """Let other runs take the signals that are reserved for a run which no longer waits for them.

        Args:
            run: The run, which is committed or suspended.
            suspension: The stored form of the run; None if it is committed.
        """
        names = {wait.name for wait in suspension.waits} if suspension is not None else set[str | None]()
        signals = self.mailbox.signals
        for place, signal in enumerate(signals):
            if signal.run == run.sequence_number and signal.name not in names:
                signals[place] = self.wake_run_for(signal._replace(run=None))

    def _reserved_for(self, signal: StoredSignal, suspension: Suspension) -> StoredSignal:
        """Reserve a signal for one of a run's waits.

        A signal for a wait that has one already stays as it is: another wait may take it.
        """
        # It names a wait or is reserved already, or no other run can take it.
        if signal.wait is not None or signal.run is not None or not suspension.frees_key:
            return signal
        waits = unanswered(suspension, self.key_text, self.mailbox.signals)
        free = any(wait.name == signal.name for wait in waits)
        return signal._replace(run=suspension.seq) if free else signal


def _is_open(signal: StoredSignal) -> bool:
    """Return True if any wait for its name may take a signal."""
    return signal.wait is None and signal.run is None
