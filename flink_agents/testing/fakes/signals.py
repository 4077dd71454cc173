"""Signals that a harness sends, and waits that it shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from flink_agents.api.events.signals import TaggedSignal
from flink_agents.runtime.state.pending import PendingKind
from flink_agents.runtime.state.suspended import StoredWait, Suspension
from flink_agents.testing.fakes.state import KeyState


@dataclass(frozen=True)
class PendingWait:
    """A wait of a run that has not ended.

    Attributes:
        name: Name of the signal that the run waits for; None for a timer.
        id: The id that a signal uses to name the wait.
        deadline: When it times out, in milliseconds; None for never.
    """

    name: str | None
    id: str
    deadline: int | None


@dataclass(frozen=True)
class KeyedSignal:
    """A signal that was sent, with the canonical string of its key."""

    record: TaggedSignal
    key: str


def unkeyed(record: Any, timestamp: int | None) -> tuple[Any, int | None, str | None]:
    """Return a recorded input with its timestamp, and the key's canonical string if it is a signal."""
    if isinstance(record, KeyedSignal):
        return record.record, timestamp, record.key
    return record, timestamp, None


def suspended_in(state: KeyState) -> list[Suspension]:
    """Return the suspended runs in the state of a key."""
    entries = [entry for number, entry in state.pending.items() if number < 0]
    return [Suspension.unpack(one[2:]) for one in entries if one[1] == PendingKind.RESUMPTION]


def waits_of(waits: Iterable[tuple[str, StoredWait]]) -> list[PendingWait]:
    """Return waits with their ids, in the form that a harness shows."""
    return [PendingWait(wait.name, id, wait.deadline) for id, wait in waits]


def waits_in(state: KeyState, key_text: str, without: Collection[int] = ()) -> list[PendingWait]:
    """Return the waits of the suspended runs of a key, except those ``without`` their number."""
    runs = [one for one in suspended_in(state) if one.seq not in without]
    return waits_of((wait.id(key_text, run.seq), wait) for run in runs for wait in run.waits)
