"""Compares the waits of a suspended run with signals: which are open, answered, or over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flink_agents.api.action_state import RecordKind
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.state.mailbox import StoredSignal
from flink_agents.runtime.state.suspended import StoredSignalWait, Suspension, wait_id


def waits_for(signal: StoredSignal, key_text: str, suspension: Suspension) -> bool:
    """Return True if a wait of a suspended run can take a signal. A pause never does."""
    waits = [wait for wait in suspension.waits if isinstance(wait, StoredSignalWait)]
    if signal.wait is not None:
        return any(wait.id(key_text, suspension.seq) == signal.wait for wait in waits)
    return signal.run in (None, suspension.seq) and any(wait.name == signal.name for wait in waits)


def unanswered(
    suspension: Suspension, key_text: str, signals: Iterable[StoredSignal]
) -> list[StoredSignalWait]:
    """Return the waits for signals of a suspended run that no signal of ``signals`` answers."""
    named = set[str]()
    meant = Counter[str]()
    for signal in signals:
        if signal.wait is not None:
            named.add(signal.wait)
        elif signal.run == suspension.seq:
            meant[signal.name] += 1
    waits: list[StoredSignalWait] = []
    for wait in suspension.waits:
        if not isinstance(wait, StoredSignalWait) or wait.id(key_text, suspension.seq) in named:
            continue
        if meant[wait.name]:
            meant[wait.name] -= 1
        else:
            waits.append(wait)
    return waits


def ended_waits(key_text: str, suspension: Suspension) -> set[str]:
    """Return the ids of the waits of a suspended run that have ended, and of those of its ended actions."""
    ended: dict[str, set[str]] = {}
    for record in suspension.records:
        step, task = task_of(record.step)
        if record.kind is RecordKind.WAIT:
            of_step = ended.setdefault(step, set())
            of_step.add(wait_id(key_text, suspension.seq, step, task, record.index))
        elif record.kind is RecordKind.RERUN:
            # The waits of that execution are open again.
            ended.pop(step, None)
    return set().union(*ended.values())
