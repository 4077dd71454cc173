"""When Flink's thread looks at the actors of keys: the interface of both schedules.

``operator.heartbeat`` has one timer for all keys, ``operator.key_timers`` one for each key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.state.keyed_state import Timers


class Schedule(ABC):
    """Sees that what actors finish is committed. Only Flink's thread uses it, and the key is current."""

    @property
    def is_behind(self) -> bool:
        """Return True if runs have ended that this thread is to look at by its next timer."""
        return False

    @property
    def rests(self) -> bool:
        """Return True if the end of the input, once it is there, waits for nothing. Any thread may ask."""
        return True

    @abstractmethod
    def open(self, timers: Timers | None) -> None:
        """Find the keys that have work in state; ``timers`` is None if there is no restored state."""

    @abstractmethod
    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Commit what has finished, as a timer of the current key tells, and see that it goes on."""

    @abstractmethod
    def made(self, actor: KeyActor, timers: Timers) -> None:
        """Look in time at a new actor."""

    @abstractmethod
    def fed(self, actor: KeyActor, timers: Timers) -> None:
        """Look in time at an actor that has one more input."""

    @abstractmethod
    def released(self, actor: KeyActor, timers: Timers) -> None:
        """Look no more at an actor of whose key nothing waits."""

    @abstractmethod
    def see_the_end(self, timers: Timers) -> None:
        """Have a timer fire at the end of a bounded input, for the sake of the current key."""

    @abstractmethod
    def ignore_the_end(self, timers: Timers) -> None:
        """Have none fire for the sake of the current key, of which nothing waits any more."""
