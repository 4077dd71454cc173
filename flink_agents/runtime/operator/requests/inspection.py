"""Describes the content of a key: its runs, their waits, and the inputs that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from flink_agents.api.agents.observers import WAITS, Phase
from flink_agents.runtime.execution.stacks import line_of
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.keys import unescape
from flink_agents.runtime.state.keyed_state import Head, KeyedState
from flink_agents.runtime.state.suspended import ListedRun, StoredWait
from flink_agents.trace.records import run_id_of

MOST = 40
"""The most entries of each kind that are listed."""


class Inspection:
    """Describes the state of the current key and its work on the loop. Only for Flink's task thread.

    Args:
        state: Keyed state.
        now: Returns the wall-clock time in milliseconds.
    """

    def __init__(self, state: KeyedState, now: Callable[[], int]) -> None:
        self._state = state
        self._now = now

    def of(self, key_text: str, head: Head, actor: KeyActor | None) -> dict[str, Any]:
        """Return the description of a key that has a head."""
        description: dict[str, Any] = {
            "known": True,
            "sequence": head.next_seq,
            # Numbers of a generation of the key do not begin at 0.
            "runs": head.next_seq - head.begin,
            "inputs": head.waiting,
            "memory": self._memory(),
        }
        if actor is not None:
            description |= _live(key_text, actor)
        # A run that blocks the key is resumed as soon as there is an actor.
        suspended_runs = [run for run in head.suspended if actor is None or not run.blocks]
        if suspended_runs:
            description["suspended"] = [self._suspended(key_text, head, run) for run in suspended_runs[:MOST]]
        if head.signals_expire is not None:
            names = Counter(signal.name for signal in self._state.pending.mailbox().signals)
            description["signals"] = dict(names.most_common(MOST))
        if head.delayed_due is not None:
            description["delayed"] = {"events": len(self._state.delayed.all()), "due": head.delayed_due}
        if head.skipped:
            description["without_input"] = sorted(head.skipped)[:MOST]
        return description

    def _memory(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for path, data in self._state.memory.items():
            if len(sizes) == MOST:
                break
            sizes[unescape(path)] = len(data)
        return sizes

    def _suspended(self, key_text: str, head: Head, run: ListedRun) -> dict[str, Any]:
        suspension = self._state.pending.suspension(run.number)
        seq = run.seq
        run_id = run_id_of(head.journal_id, key_text, seq)
        shown: dict[str, Any] = {"sequence": seq, "run": run_id, "blocks": run.blocks}
        if suspension is not None:
            shown["run"] = run_id_of(suspension.identity or head.journal_id, key_text, seq)
            shown |= {"begun": suspension.started_at, "waits": _waits(key_text, seq, suspension.waits)}
        return shown


def _waits(key_text: str, seq: int, waits: Iterable[StoredWait]) -> list[dict[str, Any]]:
    return [_wait(wait, wait.id(key_text, seq)) for wait in list(waits)[:MOST]]


def _wait(wait: StoredWait, id: str) -> dict[str, Any]:
    return {"kind": wait.kind, "name": wait.name, "deadline": wait.deadline, "id": id}


def _live(key_text: str, actor: KeyActor) -> dict[str, Any]:
    """Return the work of the loop for a key."""
    description: dict[str, Any] = {"chosen": len(actor.inbox), "ended": len(actor.ended)}
    if (recovery := actor.recovery) is not None:
        unread = recovery.order is None
        description["replays"] = "its records are being read" if unread else "recorded runs"
    state = actor.state
    if state is None or state.phase in (Phase.COMMITTED, Phase.FINISHED, Phase.SUSPENDED):
        return description
    run: dict[str, Any] = {
        "sequence": state.sequence_number,
        "run": run_id_of(state.identity or actor.journal_id, key_text, state.sequence_number),
        "phase": state.phase.name.lower(),
        "for": state.waits_for or (state.phase.value if state.phase in WAITS else ""),
    }
    if state.since:
        run["seconds"] = round(clock() - state.since, 3)
    step = state.action_run
    if step is not None:
        run["action"] = step.action.name
        run["where"] = line_of(step.task, step.thread, state.wait) or step.action.where
        failed = step.retry_state.failed if step.retry_state is not None else ()
        if failed:
            run |= {"attempt": len(failed) + 1, "error": str(failed[-1])[:300]}
    mailbox = actor.mailbox
    if mailbox is not None and mailbox.open:
        run["waits"] = [_wait(wait.stored, wait.wait_id) for wait in list(mailbox.open)[:MOST]]
    return description | {"run": run}
