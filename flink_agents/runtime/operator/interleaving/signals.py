"""Decides which signals interleaved runs take, and reserves them.

A reserved signal has the number of its run, and no other run of the key takes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.operator.interleaving.runs import InterleavedRuns
from flink_agents.runtime.operator.waits.signal_rejections import ended_waits, unanswered, waits_for
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.suspended import Suspension, run_of


class InterleavedSignals:
    """Gives signals to the interleaved runs of the current key. Only for Flink's task thread.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: InterleavedRuns) -> None:
        self._runs = runs

    def wake_all(self, head: Head, key_text: str) -> None:
        """Wake all interleaved runs of a key."""
        self._runs.wake(head, key_text, lambda run: True)

    def give(
        self,
        signal: StoredSignal,
        key_text: str,
        head: Head,
        earlier_signals: Iterable[StoredSignal],
        going_on: Collection[int],
    ) -> StoredSignal:
        """Wake the interleaved run that a signal is for; see ``SignalTakers``."""
        seq = None if signal.wait is None else run_of(signal.wait, key_text)
        for run in head.released:
            wanted = run.seq == seq if signal.wait is not None else signal.name in run.names
            # A run that has resumed takes the signal itself, if it still waits for one.
            if not wanted or (run.woken is not None and run.seq in going_on):
                continue
            suspension = self._runs.suspension(run)
            reserved = reserved_for(signal, suspension, key_text, earlier_signals)
            named = signal.wait is not None and waits_for(signal, key_text, suspension)
            if reserved.run == run.seq or named:
                self._runs.wake(head, key_text, lambda released_run, seq=run.seq: released_run.seq == seq)
                return reserved
        return signal

    def reserve(
        self,
        free: Collection[StoredSignal],
        mailbox: Mailbox,
        suspension: Suspension,
        key_text: str,
        head: Head,
    ) -> None:
        """Wake a run that is about to be suspended, because signals for it are there."""
        signals = mailbox.signals
        for place, signal in enumerate(signals):
            if any(signal is free_signal for free_signal in free):
                signals[place] = reserved_for(signal, suspension, key_text, signals)
        self._runs.wake(head, key_text, lambda run: run.seq == suspension.seq)

    def unreserve(self, run: Run, mailbox: Mailbox, head: Head, suspension: Suspension | None) -> None:
        """Let other runs take the signals that a run no longer waits for; see ``SignalTakers``."""
        names = {wait.name for wait in suspension.waits} if suspension is not None else set[str | None]()
        for place, signal in enumerate(mailbox.signals):
            if signal.run == run.sequence_number and signal.name not in names:
                free = signal._replace(run=None)
                mailbox.signals[place] = self.give(free, run.key_text, head, mailbox.signals, ())

    def has_ended(self, wait: str, seq: int, key_text: str, head: Head) -> bool | None:
        """Return True if a wait of an interleaved run has ended; None if run ``seq`` is not interleaved."""
        released_run = next((run for run in head.released if run.seq == seq), None)
        if released_run is None:
            return None
        return released_run.woken is None and wait in ended_waits(
            key_text, self._runs.suspension(released_run)
        )

    def free_for(
        self,
        name: str,
        signals: Collection[StoredSignal],
        key_text: str,
        head: Head,
        going_on: Collection[int],
    ) -> int:
        """Return the number of open waits for a name without a signal; see ``SignalTakers``."""
        # Reading an entry takes long; only these may have waits with signals.
        concerned = {
            signal.run if signal.wait is None else run_of(signal.wait, key_text) for signal in signals
        }
        wait_count = 0
        for run in head.released:
            if name not in run.names or (run.woken is not None and run.seq in going_on):
                continue
            if run.seq in concerned:
                waits = unanswered(self._runs.suspension(run), key_text, signals)
                wait_count += sum(wait.name == name for wait in waits)
            else:
                wait_count += run.names.count(name)
        return wait_count


def reserved_for(
    signal: StoredSignal, suspension: Suspension, key_text: str, earlier_signals: Iterable[StoredSignal]
) -> StoredSignal:
    """Reserve a signal for one of a run's waits.

    A signal for a wait that has one already stays as it is: another wait may take it.
    """
    # It names a wait or is reserved already.
    if signal.wait is not None or signal.run is not None:
        return signal
    free = any(wait.name == signal.name for wait in unanswered(suspension, key_text, earlier_signals))
    return signal._replace(run=suspension.seq) if free else signal
