"""Requests about keys, which come as signals: inspect a key, end a run of it, erase it.

To end a run, it is *marked* in the head of its key. The loop cancels a marked run. Its commit writes the dead
letter and removes the mark, both in one update of the key. So after a crash there is either a mark, and the
run is cancelled when it executes again, or a run that has ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, cast

from flink_agents.api.agents.observers import WAITS, Phase
from flink_agents.api.common.logs import MAX_CHARACTERS, bounded_logger
from flink_agents.api.events.key_requests import (
    ACCEPTED,
    ANSWERED,
    END_RUN,
    ENDED,
    ERASE,
    ERASED,
    INSPECT,
    PREFIX,
    REJECTED,
    REPLY_MARK,
)
from flink_agents.api.events.signals import Signal
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.stacks import line_of
from flink_agents.runtime.journal.identity import journal_name
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.services.suspension import SuspendedRuns
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.mailbox import Mailbox
from flink_agents.runtime.state.suspended import ListedRun, StoredWait
from flink_agents.trace.answers import answer_line
from flink_agents.trace.records import run_id_of

_log = bounded_logger("flink_agents.requests")


MOST = 40
"""The most entries of each kind, such as runs or paths of memory, that a description lists."""


def describe_key(state: KeyedState, key_text: str, head: Head, actor: KeyActor | None) -> dict[str, Any]:
    """Return the state of the current key and its work on the loop, as JSON values for ``inspect``.

    Args:
        state: Keyed state.
        key_text: The key.
        head: Its head.
        actor: Its actor; None if the loop has no work of it.
    """
    description: dict[str, Any] = {
        "known": True,
        "sequence": head.next_seq,
        # Numbers of a generation of the key do not begin at 0.
        "runs": head.next_seq - head.begin,
        "inputs": head.waiting,
        "memory": _memory_sizes(state, head),
    }
    if actor is not None:
        description |= _describe_live(key_text, actor)
    # A run that blocks the key is resumed as soon as there is an actor.
    suspended_runs = [run for run in head.suspended if actor is None or not run.blocks]
    if suspended_runs:
        description["suspended"] = [
            _describe_suspended(state, key_text, head, run) for run in suspended_runs[:MOST]
        ]
    if head.signals_expire is not None:
        names = Counter(signal.name for signal in state.pending.mailbox().signals)
        description["signals"] = dict(names.most_common(MOST))
    if head.delayed_due is not None:
        description["delayed"] = {
            "events": len(state.delayed.list_events()),
            "due": head.delayed_due,
        }
    if head.skipped:
        description["without_input"] = sorted(head.skipped)[:MOST]
    return description


def _memory_sizes(state: KeyedState, head: Head) -> dict[str, int]:
    """Return the bytes of each path of short-term memory, for at most ``MOST`` paths."""
    return {path: len(data) for path, data in islice(state.read_memory(head).items(), MOST)}


def _describe_suspended(state: KeyedState, key_text: str, head: Head, run: ListedRun) -> dict[str, Any]:
    """Return a suspended run of the current key, with its waits, as JSON values."""
    suspension = state.pending.suspension(run.number)
    seq = run.seq
    run_id = run_id_of(head.journal_id, key_text, seq)
    description: dict[str, Any] = {"sequence": seq, "run": run_id, "blocks": run.blocks}
    if suspension is not None:
        description["run"] = run_id_of(suspension.identity or head.journal_id, key_text, seq)
        description |= {"begun": suspension.started_at, "waits": _waits(key_text, seq, suspension.waits)}
    return description


def _waits(key_text: str, seq: int, waits: Iterable[StoredWait]) -> list[dict[str, Any]]:
    return [_describe_wait(wait, wait.id(key_text, seq)) for wait in list(waits)[:MOST]]


def _describe_wait(wait: StoredWait, wait_id: str) -> dict[str, Any]:
    return {"kind": wait.kind, "name": wait.name, "deadline": wait.deadline, "id": wait_id}


def _describe_live(key_text: str, actor: KeyActor) -> dict[str, Any]:
    """Return the work of the loop for a key, with the run that is executed now, as JSON values."""
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
        run["where"] = line_of(step.task, step.thread, state.newest_wait) or step.action.where
        failed = step.retry_state.failed if step.retry_state is not None else ()
        if failed:
            run |= {"attempt": len(failed) + 1, "error": str(failed[-1])[:300]}
    mailbox = actor.mailbox
    if mailbox is not None and mailbox.open:
        run["waits"] = [_describe_wait(wait.stored, wait.wait_id) for wait in list(mailbox.open)[:MOST]]
    return description | {"run": run}


class RequestService(KeyService):
    """Answers requests about a key: to inspect it, to end a run, to erase it. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        runs: The suspended runs in state, of which one that is to end is resumed.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        runs: SuspendedRuns,
    ) -> None:
        self._state = state
        self._runs = runs
        self._notify = shared.telemetry.observers.request_answered
        self._agent = shared.agent.name

    def request(self, signal: Signal, key_text: str, timers: Timers) -> None:
        """Handle a request about the current key, and let the run end that it asks to end.

        Args:
            signal: The request: its name has the reserved prefix.
            key_text: The key.
            timers: Timers of the key.
        """
        operator = self.operator
        head = self.operator.head_of(key_text)
        actor = operator.actors.get(key_text)
        seq = self._handle(signal, key_text, head, actor)
        if head is None or (seq is None and signal.name != ERASE):
            return
        if actor is None:
            operator.cache.remove_key(key_text)
        if seq is not None:
            self._runs.wake_marked(head, key_text)
        self._state.write(head)
        if seq is None:
            return
        if actor is not None:
            actor.ends = head.ends
            operator.loop_access.loop.end_run(actor, seq)
        self._runs.resume_woken(head, key_text, actor, timers)

    def note_end(self, run: Run, actor: KeyActor) -> None:
        """Remove the mark of a run that was to end, and reply how it ended. The caller writes the head."""
        head = actor.head
        seq = run.sequence_number
        given_up = run.state.ended_by is not None
        mark = head.ends.get(seq)
        if mark is None:
            return
        head.ends = {number: other_mark for number, other_mark in head.ends.items() if number != seq}
        outcome = ENDED if given_up else REJECTED
        more = {} if given_up else {"reason": "the run ended by itself before"}
        self._answer(mark[0], END_RUN, run.key_text, outcome, run=mark[3], sequence=seq, **more)
        actor.ends = head.ends

    def _handle(self, signal: Signal, key_text: str, head: Head | None, actor: KeyActor | None) -> int | None:
        """Handle a request; return the sequence number of the run that it asks to end, or None.

        Args:
            signal: The request.
            key_text: The key.
            head: Its head, which is changed but not written; None if the key never came.
            actor: Its actor, or None.
        """
        if head is None:
            outcome = ANSWERED if signal.name == INSPECT else REJECTED if signal.name == END_RUN else ERASED
            self._reply(signal, key_text, outcome, known=False, reason="the job has nothing of this key")
        elif signal.name == INSPECT:
            self._reply(signal, key_text, ANSWERED, **describe_key(self._state, key_text, head, actor))
        elif signal.name == END_RUN:
            return self._mark_run(signal, key_text, head, actor)
        elif signal.name == ERASE:
            self._erase(signal, key_text, head, actor)
        else:
            self._reply(signal, key_text, REJECTED, reason=f"this version knows no request {signal.name}")
        return None

    # -- requests ---------------------------------------------------------------------

    def _mark_run(self, signal: Signal, key_text: str, head: Head, actor: KeyActor | None) -> int | None:
        """Mark the run that a request wants to end; return its sequence number, or None if rejected."""
        arguments = cast("Mapping[str, Any]", signal.value) if isinstance(signal.value, Mapping) else {}
        run = arguments.get("run")
        seq = self._unfinished(key_text, head, actor).get(run) if isinstance(run, str) else None
        if seq is None:
            reason = "no unfinished run of the key has this id: it has ended, or never began"
            self._reply(signal, key_text, REJECTED, run=run, reason=reason)
            return None
        if seq in head.ends:
            self._reply(signal, key_text, ACCEPTED, run=run, sequence=seq, reason="it is being ended already")
            return None
        mark = [
            signal.id,
            str(arguments.get("reason") or "")[:500],
            str(arguments.get("by") or "")[:100],
            run,
        ]
        head.ends = {**head.ends, seq: mark}
        self._reply(signal, key_text, ACCEPTED, run=run, sequence=seq)
        return seq

    def _unfinished(self, key_text: str, head: Head, actor: KeyActor | None) -> dict[str, int]:
        """Return the sequence numbers of the runs of a key that have started and not ended, by their ids."""
        sequence_numbers: dict[str, int] = {}

        def add(seq: int, identity: str | None = None) -> None:
            sequence_numbers[run_id_of(identity or head.journal_id, key_text, seq)] = seq

        for run in head.suspended:
            suspension = self._state.pending.suspension(run.number)
            add(run.seq, None if suspension is None else suspension.identity)
        if actor is None:
            return sequence_numbers
        if actor.suspended is not None:
            add(actor.suspended.run.sequence_number, actor.suspended.run.identity)
        state = actor.state
        if state is not None and state.in_flight:
            add(state.sequence_number, state.identity)
        for waiting in list(actor.inbox):
            add(waiting.run_seq, waiting.identity)
        return sequence_numbers

    def _erase(self, signal: Signal, key_text: str, head: Head, actor: KeyActor | None) -> None:
        """Remove memory and signals of a key without unfinished work. Its head stays: numbers continue."""
        if actor is not None or head.has_pending or head.suspended or head.delayed_due:
            reason = "the key has unfinished runs, inputs or delayed events: end its runs first"
            self._reply(signal, key_text, REJECTED, reason=reason)
            return
        value_count = len(self._state.read_memory(head))
        self._state.clear_memory(head)
        had_signals = head.signals_expire is not None
        if had_signals:
            self._state.pending.put_mailbox(Mailbox())
            head.signals_expire = None
        # Later runs are replayed after a restart, from their records.
        ended = {"journal": journal_name(head.journal_id, self._agent), "through": head.committed_through}
        self._reply(
            signal, key_text, ERASED, values=value_count, signals=had_signals, store=head.store, **ended
        )

    def _reply(self, signal: Signal, key_text: str, outcome: str, **more: Any) -> None:
        request = signal.id if isinstance(signal.id, str) else None
        self._answer(request, str(signal.name), key_text, outcome, **more)

    def _answer(
        self, request: str | None, request_name: str, key_text: str, outcome: str, **more: Any
    ) -> None:
        """Reply to a request: as a line in the log, and to observers.

        Args:
            request: The id of the request; None if it has no valid one.
            request_name: The name of the request, with its prefix.
            key_text: The key.
            outcome: One of the outcomes of ``api.events.key_requests``.
            **more: Further fields of the reply: JSON values.
        """
        answer = {
            "request": request,
            "what": request_name.removeprefix(PREFIX),
            "agent": self._agent,
            "key": key_text,
            "outcome": outcome,
            "time": round(time.time(), 3),
            **more,
        }
        _log.info("%s%s", REPLY_MARK, answer_line(answer, MAX_CHARACTERS))
        if self._notify is not None:
            self._notify(key_text, answer)
