"""The interface of both schedules, which decide when Flink's task thread checks the actors of keys.

``heartbeat`` has one timer for all keys, ``key_timers`` one for each key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.state.keyed_state import Timers


class Schedule(ABC):
    """Has finished runs of actors committed. Only for Flink's task thread; the key is current."""

    @property
    def is_behind(self) -> bool:
        """True if ended runs wait for the next timer, which commits them."""
        return False

    @property
    def rests(self) -> bool:
        """True if no run is open and no restored key has work: a bounded input may end. For any thread."""
        return True

    @abstractmethod
    def open(self, timers: Timers | None) -> None:
        """Find the restored keys that have work, and set timers to check them.

        Args:
            timers: Timers of the current key; None if there is no restored state.
        """

    @abstractmethod
    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Commit the finished runs when a timer of the current key fires, and hand out more inputs."""

    @abstractmethod
    def added(self, actor: KeyActor, timers: Timers) -> None:
        """Schedule the first check of a new actor."""

    @abstractmethod
    def fed(self, actor: KeyActor, timers: Timers) -> None:
        """Schedule the next check of an actor that has one more input."""

    @abstractmethod
    def actor_released(self, actor: KeyActor, timers: Timers) -> None:
        """Stop checking an actor whose key has no waiting inputs."""

    @abstractmethod
    def see_the_end(self, timers: Timers) -> None:
        """Register a timer at the end of a bounded input for the current key."""

    @abstractmethod
    def ignore_the_end(self, timers: Timers) -> None:
        """Delete that timer, because nothing of the current key waits any longer."""
