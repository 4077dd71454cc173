"""The protocol of a key service: a feature that keeps data per key, or watches what happens to keys.

``assembly.py`` lists the services of an operator in the order in which they are called, with the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.commit import EndedRun
from flink_agents.runtime.operator.emission import NOTHING, Emission
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.state.keyed_state import Head, Keys, Timers


class KeyService:
    """A feature that attaches to the operator. Only Flink's task thread calls it, and the key is current.

    A service overrides the hooks that it needs. The operator never calls a hook that no service overrides.

    Attributes:
        receives: Type of the records that :meth:`receive` handles instead of inputs; None if there are none.
        has_key_timers: True if keys may have timers of this service from the start; see :meth:`fired`.
    """

    receives: type | None = None
    has_key_timers: bool = False
    operator: AgentProcessor

    def attach(self, operator: AgentProcessor) -> None:
        """Store the operator that the service belongs to."""
        self.operator = operator
        operator.has_key_timers = operator.has_key_timers or self.has_key_timers

    # -- the operator opens -----------------------------------------------------------

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find the data of this service in restored state. May change Flink's current key.

        Args:
            keys: The keys of the subtask.
            waiting: The keys with inputs in state.
            timers: Timers; None if there is no restored state.

        Returns:
            True if a timer has to fire for it.
        """
        raise NotImplementedError

    def unchecked(self, keys: Keys, waiting: Sequence[Any]) -> Iterable[Any]:
        """Return the restored keys for which :meth:`check` must be called."""
        raise NotImplementedError

    def check(self, head: Head, key_text: str) -> None:
        """Check if the present code can continue the work of a restored key."""

    # -- inputs -----------------------------------------------------------------------

    def receive(self, key_text: str, record: Any, timers: Timers) -> Emission:
        """Handle a record of the type :attr:`receives`, which is not an input."""
        return NOTHING

    def arriving(self, timestamp: int | None, timers: Timers) -> None:
        """Inspect an input before it is handled. An error rejects it, and fails the job."""

    def blocked(self, key_text: str, head: Head) -> None:
        """Note that inputs of a key stay in state, maybe for days."""

    def stored(self, head: Head, key_text: str, number: int, timestamp: int | None) -> None:
        """Note that an input was queued in state; the head is written later."""

    def found(self, head: Head | None, key_text: str) -> None:
        """Note that the inputs of a restored key are known; ``head`` is None if none of them waits now."""

    # -- actors -----------------------------------------------------------------------

    def waking_skipped(self, head: Head, key_text: str) -> None:
        """Handle a key that is about to get an actor, and whose skipped runs still wait for their inputs."""

    def acting(self, actor: KeyActor) -> None:
        """Equip a new actor, which has no inputs yet."""

    # -- timers -----------------------------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Do the due work of the current key. The timer may belong to another service.

        It is called once ``AgentProcessor.has_key_timers`` is set, when the first key needs it.
        """

    def heartbeat(self) -> None:
        """Do work for any key, each time the timer for all keys fires."""

    def look(self, timers: Timers) -> None:
        """Continue the work that :meth:`is_looking` reports."""

    def is_looking(self) -> bool:
        """Return True if :meth:`look` has something to do soon."""
        raise NotImplementedError

    # -- commits ----------------------------------------------------------------------

    def sent(self, run: Run, head: Head, timers: Timers) -> None:
        """Remove the values that do not leave from the side outputs of a run; the head is written later."""

    def leaving(self, ended: EndedRun, out: Emission) -> None:
        """Inspect, or change, the outputs of a run that are about to be emitted."""

    def skipping(self, actor: KeyActor, seq: int, skips: tuple[int, ...]) -> None:
        """Note that a run ended before others that were recorded earlier, or was skipped itself before.

        Args:
            actor: The actor of its key.
            seq: Its sequence number.
            skips: The runs that are skipped from this run on.
        """

    def ending(self, run: Run, actor: KeyActor) -> None:
        """Note the commit of a run whose key has runs that a user wants to end."""

    def writing_head(self, head: Head, timers: Timers) -> None:
        """Change a head that is about to be written, once for all runs of a commit."""

    def committed(self, head: Head, key_text: str, runs: int, marker: bytes | None) -> None:
        """Note that the head was written.

        Args:
            head: The head.
            key_text: The key.
            runs: The number of runs with records that were committed since the last time.
            marker: The position before their records; None if it is unknown.
        """
