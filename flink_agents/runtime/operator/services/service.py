"""The protocol of a key service: a feature that keeps data per key, or watches what happens to keys.

``assembly.py`` lists the services of an operator in the order in which they are called, with the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    # -- inputs -----------------------------------------------------------------------

    def receive(self, key_text: str, record: Any, timers: Timers) -> Emission:
        """Handle a record of the type :attr:`receives`, which is not an input."""
        return NOTHING

    def blocked(self, key_text: str, head: Head) -> None:
        """Note that inputs of a key stay in state, maybe for days."""

    # -- timers -----------------------------------------------------------------------

    def fired(self, key_text: str, at: int, timers: Timers, out: Emission) -> None:
        """Do the due work of the current key. The timer may belong to another service.

        It is called once ``AgentProcessor.has_key_timers`` is set, when the first key needs it.
        """
