"""Signals that a harness sends, and the waits and delayed events that it shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from flink_agents.api.events import Event
from flink_agents.api.events.signals import TaggedSignal
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.state.delayed import DelayedEvents, DelayedInput
from flink_agents.runtime.state.pending import PendingKind
from flink_agents.runtime.state.slots import MapSlot
from flink_agents.runtime.state.suspended import StoredWait, Suspension
from flink_agents.testing.fakes.state import KeyState


@dataclass(frozen=True)
class PendingWait:
    """A wait of a run that has not ended.

    Attributes:
        name: Name of the signal that the run waits for; None for a timer.
        id: Id of the wait, which a signal can name.
        deadline: Time of its timeout, in milliseconds since the epoch; None for never.
    """

    name: str | None
    id: str
    deadline: int | None


@dataclass(frozen=True)
class KeyedSignal:
    """A signal that was sent to a harness.

    Attributes:
        record: The signal as the operator gets it.
        key: Canonical text of its key.
    """

    record: TaggedSignal
    key: str


def split_input(record: Any, timestamp: int | None) -> tuple[Any, int | None, str | None]:
    """Return a recorded input with its timestamp, and the key's canonical string if it is a signal."""
    if isinstance(record, KeyedSignal):
        return record.record, timestamp, record.key
    return record, timestamp, None


def suspended_in(state: KeyState) -> list[Suspension]:
    """Return the suspended runs in the state of a key."""
    runs = (suspension_of(entry) for number, entry in state.pending.items() if number < 0)
    return [run for run in runs if run is not None]


def suspension_of(entry: bytes) -> Suspension | None:
    """Unpack a waiting entry of a key; return None if it is no suspended run."""
    return Suspension.unpack(entry[2:]) if entry[1] == PendingKind.RESUMPTION else None


def waits_of(waits: Iterable[tuple[str, StoredWait]]) -> list[PendingWait]:
    """Convert waits with their ids to the form that a harness shows."""
    return [PendingWait(wait.name, id, wait.deadline) for id, wait in waits]


def waits_in(state: KeyState, key_text: str, without: Collection[int] = ()) -> list[PendingWait]:
    """Return the waits of the suspended runs of a key, except of runs with numbers in ``without``."""
    runs = [run for run in suspended_in(state) if run.seq not in without]
    return waits_of((wait.id(key_text, run.seq), wait) for run in runs for wait in run.waits)


@dataclass(frozen=True)
class PendingDelayed:
    """An event that is delivered later.

    Attributes:
        event: The event; it has no id yet.
        due: When it is delivered, in milliseconds since the epoch.
        action: Name of the action that sent it.
        sequence_number: Number of the run that sent it.
    """

    event: Event
    due: int
    action: str
    sequence_number: int


class Due(NamedTuple):
    """A delayed event in state.

    Attributes:
        due: When it is due, in milliseconds since the epoch.
        packed: The bytes of its input.
    """

    due: int
    packed: bytes


def delayed_in(state: KeyState) -> list[Due]:
    """Return the delayed events in the state of a key, the first due one first."""
    return [Due(*event) for event in _events_of(state).list_events()] if state.delayed else []


def pending_delayed(state: KeyState, shared: RunEnvironment) -> list[PendingDelayed]:
    """Return the delayed events of a key, decoded for display."""
    delayed_events: list[PendingDelayed] = []
    for due, packed in delayed_in(state):
        sent, _ = shared.codec.decode(packed)
        assert isinstance(sent, DelayedInput)
        event = shared.events.unpacked(*shared.codec.decode(sent.event))
        delayed_events.append(PendingDelayed(event, due, sent.action, sent.sequence_number))
    return delayed_events


def delayed_times(state: KeyState, until: int) -> list[int]:
    """Return the times of the delayed events of a key up to ``until``, in order."""
    return _events_of(state).times(until) if state.delayed else []


def _events_of(state: KeyState) -> DelayedEvents:
    # It only reads, for which a dictionary is enough.
    return DelayedEvents(cast("MapSlot[int]", state.delayed))
