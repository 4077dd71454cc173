"""Signals that a harness sends, and the waits that it shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from flink_agents.api.signals import TaggedSignal
from flink_agents.runtime.state.pending import PendingKind
from flink_agents.runtime.state.suspended import OpenWait, Suspension
from flink_agents.testing.fake_state import KeyState


@dataclass(frozen=True)
class PendingWait:
    """A wait of a run that has not ended.

    Attributes:
        name: Name of the signal that the run waits for; None for a pause.
        id: What names the wait in a signal.
        deadline: When it ends by itself, in milliseconds; None for never.
    """

    name: str | None
    id: str
    deadline: int | None


@dataclass(frozen=True)
class KeyedSignal:
    """A signal that was sent, with the text of its key."""

    record: TaggedSignal
    key: str


def unkeyed(record: Any, timestamp: int | None) -> tuple[Any, int | None, str | None]:
    """Return a record that was noted with its timestamp, and the text of its key if it is a signal."""
    if isinstance(record, KeyedSignal):
        return record.record, timestamp, record.key
    return record, timestamp, None


def suspended_in(state: KeyState) -> list[Suspension]:
    """Return the suspended runs in the state of a key."""
    entries = [entry for number, entry in state.pending.items() if number < 0]
    return [Suspension.unpack(one[2:]) for one in entries if one[1] == PendingKind.RESUMPTION]


def waits_of(waits: Iterable[tuple[str, OpenWait]]) -> list[PendingWait]:
    """Return waits with their ids, as a harness shows them."""
    return [PendingWait(wait.name, id, wait.deadline) for id, wait in waits]


def waits_in(state: KeyState, key_text: str, without: Collection[int] = ()) -> list[PendingWait]:
    """Return what the suspended runs in the state of a key wait for, ``without`` those of some numbers."""
    runs = [one for one in suspended_in(state) if one.seq not in without]
    return waits_of((wait.id(key_text, run.seq), wait) for run in runs for wait in run.waits)
