"""The interface between suspension and features that release suspended runs.

The key of a released run is free for other inputs. The head of the key lists its released runs. If an agent
releases no run, nothing of this is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.state.keyed_state import Head, Timers
from flink_agents.runtime.state.mailbox import Mailbox, StoredSignal
from flink_agents.runtime.state.suspended import Suspension


class ReleasedRuns(Protocol):
    """Wakes released runs: each then has its turn like an input of its key. Only for Flink's task thread."""

    def has_woken(self, head: Head, taken_wake_ups: Collection[int] = ()) -> bool:
        """Return True if a run is awake whose wake-up is not among the ``taken`` ones."""
        ...

    def wake_due(self, head: Head, key_text: str, actor: KeyActor | None, at: int, timers: Timers) -> None:
        """Wake the runs whose time has come, and resume those that are awake.

        Args:
            head: The head of the current key.
            key_text: The key.
            actor: Its actor, or None.
            at: Time of the timer that has fired.
            timers: Timers of the key.
        """
        ...

    def wake_unread(self, head: Head, key_text: str) -> None:
        """Wake all runs of a key if an earlier attempt may have recorded more of them, and write the head."""
        ...

    def wake_marked(self, head: Head, key_text: str) -> bool:
        """Wake the runs that a user wants to end, and return True if there are any."""
        ...


class SignalTakers(Protocol):
    """Decides which signals released runs can take.

    Only for Flink's task thread; the caller writes the head.
    """

    def wake_all(self, head: Head, key_text: str) -> None:
        """Wake all released runs of a key, so that its records are read. They may just wait again."""
        ...

    def give(
        self,
        signal: StoredSignal,
        key_text: str,
        head: Head,
        earlier_signals: Iterable[StoredSignal],
        going_on: Collection[int],
    ) -> StoredSignal:
        """Wake the released run that a signal is for.

        Args:
            signal: The signal.
            key_text: The key.
            head: Its head.
            earlier_signals: The signals that came before it.
            going_on: Sequence numbers of the runs that take signals from the actor's mailbox.

        Returns:
            The signal, reserved for that run if there is one.
        """
        ...

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
        ...

    def unreserve(self, run: Run, mailbox: Mailbox, head: Head, suspension: Suspension | None) -> None:
        """Let other runs take the signals that are reserved for a run which no longer waits for them.

        Args:
            run: The run, which is committed or suspended.
            mailbox: The signals of its key.
            head: The head of its key.
            suspension: The stored form of the run; None if it is committed.
        """
        ...

    def has_ended(self, wait: str, seq: int, key_text: str, head: Head) -> bool | None:
        """Return True if a wait of a released run has ended; None if run ``seq`` is not released."""
        ...

    def free_for(
        self,
        name: str,
        signals: Collection[StoredSignal],
        key_text: str,
        head: Head,
        going_on: Collection[int],
    ) -> int:
        """Return the number of open waits of released runs for a name that have no signal.

        Args:
            name: The name.
            signals: The signals of the key.
            key_text: The key.
            head: Its head.
            going_on: Sequence numbers of the runs whose waits are those of the actor.
        """
        ...
