"""What suspension asks of a feature that releases suspended runs: their keys are free for other inputs.

A released run is listed in the head of its key. Nothing is asked for an agent that releases no run.
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
    """Wakes released runs: each then takes its turn as an input of its key does. Only for Flink's thread."""

    def has_woken(self, head: Head, taken: Collection[int] = ()) -> bool:
        """Return True if a run is awake that is not among the wake-ups which are ``taken`` already."""
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
        """Wake the runs that the user wants to end, and return True if there are any."""
        ...


class SignalTakers(Protocol):
    """Tells which signals released runs can take. Only for Flink's thread; the caller writes the head."""

    def wake_all(self, head: Head, key_text: str) -> None:
        """Wake all released runs of a key, if only to wait again: then its records are read."""
        ...

    def give(
        self,
        mail: StoredSignal,
        key_text: str,
        head: Head,
        others: Iterable[StoredSignal],
        going_on: Collection[int],
    ) -> StoredSignal:
        """Wake the released run that a signal is for.

        Args:
            mail: The signal.
            key_text: The key.
            head: Its head.
            others: The signals that came before it.
            going_on: Sequence numbers of the runs that take signals from the actor's mailbox.

        Returns:
            The signal, reserved for that run if there is one.
        """
        ...

    def unreserve(self, run: Run, box: Mailbox, head: Head, suspension: Suspension | None) -> None:
        """Let other runs take the signals that are reserved for a run which waits for them no more.

        Args:
            run: The run, which is committed or suspended.
            box: The signals of its key.
            head: The head of its key.
            suspension: What is left of the run; None if it is committed.
        """
        ...

    def has_ended(self, wait: str, seq: int, key_text: str, head: Head) -> bool | None:
        """Return True if a wait of a released run has ended; None if run ``seq`` is not released."""
        ...

    def free_for(
        self,
        name: str,
        mail: Collection[StoredSignal],
        key_text: str,
        head: Head,
        going_on: Collection[int],
    ) -> int:
        """Return how many waits of released runs for a name are open that no signal is for.

        Args:
            name: The name.
            mail: The signals that are there.
            key_text: The key.
            head: Its head.
            going_on: Sequence numbers of the runs whose waits are those of the actor.
        """
        ...
