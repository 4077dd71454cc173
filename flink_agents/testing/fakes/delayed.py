"""Shows the delayed events of a key in state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flink_agents.api.events import Event
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.state.delayed import DelayedEvents, DelayedInput
from flink_agents.testing.fakes.state import FakeBackend, KeyState


@dataclass(frozen=True)
class PendingDelayed:
    """An event that is delivered later.

    Attributes:
        event: The event, which has no id yet.
        due: When it is delivered, in milliseconds since the epoch.
        action: Name of the action that sent it.
        sequence_number: Number of the run that sent it.
    """

    event: Event
    due: int
    action: str
    sequence_number: int


class Due(NamedTuple):
    """Time at which an event is due, in milliseconds since the epoch, and the bytes of its input."""

    due: int
    packed: bytes


def delayed_in(state: KeyState) -> list[Due]:
    """Return the delayed events of a key, by time."""
    return [Due(*one) for one in _events_of(state).all()] if state.delayed else []


def shown(state: KeyState, shared: RunEnvironment) -> list[PendingDelayed]:
    """Return the delayed events of a key in a form to display."""
    found: list[PendingDelayed] = []
    for due, packed in delayed_in(state):
        sent, _ = shared.codec.decode(packed)
        assert isinstance(sent, DelayedInput)
        event = shared.events.unpacked(*shared.codec.decode(sent.event))
        found.append(PendingDelayed(event, due, sent.action, sent.sequence_number))
    return found


def _events_of(state: KeyState) -> DelayedEvents:
    backend = FakeBackend(lambda: 0, None)
    backend.restore("", state)
    backend.key = ""
    return backend.keyed_state().delayed
