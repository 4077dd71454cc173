"""Decides which of the suspended runs of a key get signals, and reserves signals for runs that free the key.

A reserved signal has the number of its run, and no other run of the key takes it. A run that blocks its key
needs no reservation: no other run starts before it has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.operator.waits.suspended_runs import SuspendedRuns
from flink_agents.runtime.operator.waits.wait_ids import ended_waits, unanswered, waits_for
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.suspended import Suspension, run_of


class SignalTakers:
    """Gives signals to the suspended runs of the current key. Only for Flink's task thread.

    The caller writes the head.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: SuspendedRuns) -> None:
        self._runs = runs

    def give(
        self,
        signal: StoredSignal,
        key_text: str,
        head: Head,
        earlier_signals: Iterable[StoredSignal],
        going_on: Collection[int],
    ) -> StoredSignal:
        """Wake the suspended run that a signal is for.

        Args:
            signal: The signal.
            key_text: The key.
            head: Its head.
            earlier_signals: The signals that came before it.
            going_on: Sequence numbers of the runs that take signals from the actor's mailbox.

        Returns:
            The signal, reserved for that run if others could take it.
        """
        seq = None if signal.wait is None else run_of(signal.wait, key_text)
        for run in head.suspended:
            wanted = run.seq == seq if signal.wait is not None else signal.name in run.names
            # A run that has resumed takes the signal itself, if it still waits for one.
            if not wanted or (run.woken is not None and run.seq in going_on):
                continue
            suspension = self._runs.suspension(run)
            reserved = reserved_for(signal, suspension, key_text, earlier_signals)
            is_named_or_free = signal.wait is not None or run.blocks
            if reserved.run == run.seq or (is_named_or_free and waits_for(signal, key_text, suspension)):
                self._runs.wake_run(head, key_text, run.seq)
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
        """Wake a run that is about to be suspended, because signals for it are there.

        Args:
            free: These signals of the mailbox. Each is reserved for the run.
            mailbox: The signals of its key.
            suspension: The stored form of the run, which the head lists already.
            key_text: The key.
            head: Its head.
        """
        signals = mailbox.signals
        for place, signal in enumerate(signals):
            if any(signal is free_signal for free_signal in free):
                signals[place] = reserved_for(signal, suspension, key_text, signals)
        self._runs.wake_run(head, key_text, suspension.seq)

    def unreserve(self, run: Run, mailbox: Mailbox, head: Head, suspension: Suspension | None) -> None:
        """Let other runs take the signals that are reserved for a run which no longer waits for them.

        Args:
            run: The run, which is committed or suspended.
            mailbox: The signals of its key.
            head: The head of its key.
            suspension: The stored form of the run; None if it is committed.
        """
        names = {wait.name for wait in suspension.waits} if suspension is not None else set[str | None]()
        for place, signal in enumerate(mailbox.signals):
            if signal.run == run.sequence_number and signal.name not in names:
                free = signal._replace(run=None)
                mailbox.signals[place] = self.give(free, run.key_text, head, mailbox.signals, ())

    def has_ended(self, wait: str, seq: int, key_text: str, head: Head) -> bool:
        """Return True if a wait of run ``seq`` has ended: the run is asleep and past it, or committed."""
        listed_run = next((run for run in head.suspended if run.seq == seq), None)
        if listed_run is None:
            return seq < head.next_seq
        return listed_run.woken is None and wait in ended_waits(key_text, self._runs.suspension(listed_run))

    def count_free(
        self,
        name: str,
        signals: Collection[StoredSignal],
        key_text: str,
        head: Head,
        going_on: Collection[int],
    ) -> int:
        """Return the number of open waits of suspended runs for a name that have no signal.

        Args:
            name: The name.
            signals: The signals of the key.
            key_text: The key.
            head: Its head.
            going_on: Sequence numbers of the runs whose waits are those of the actor.
        """
        # Reading an entry takes long; only these may have waits with signals.
        concerned = {
            signal.run if signal.wait is None else run_of(signal.wait, key_text) for signal in signals
        }
        wait_count = 0
        for run in head.suspended:
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
    # It names a wait or is reserved already, or no other run can take it.
    if signal.wait is not None or signal.run is not None or not suspension.frees_key:
        return signal
    free = any(wait.name == signal.name for wait in unanswered(suspension, key_text, earlier_signals))
    return signal._replace(run=suspension.seq) if free else signal
