"""Handles requests about the current key: inspects it, ends a run of it, or erases it.

To end a run, it is *marked* in the head of its key. The loop cancels a marked run. Its commit writes the dead
letter and removes the mark, both in one update of the key. So after a crash there is either a mark, and the
run is cancelled when it executes again, or a run that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from flink_agents.api.events.key_requests import (
    ACCEPTED,
    ANSWERED,
    END_RUN,
    ENDED,
    ERASE,
    ERASED,
    INSPECT,
    REJECTED,
)
from flink_agents.api.events.signals import Signal
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.names import journal_name
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.requests.inspection import Inspection
from flink_agents.runtime.operator.requests.replies import Replies
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.operator.waits.suspension import SuspensionService
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.mailbox import Mailbox
from flink_agents.trace.records import run_id_of


class RequestService(KeyService):
    """Handles requests. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        clock: Returns the wall-clock time in milliseconds.
        suspension: Resumes the suspended run that is to end.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        clock: Callable[[], int],
        suspension: SuspensionService,
    ) -> None:
        self._state = state
        self._suspension = suspension
        self._inspection = Inspection(state, clock)
        self._replies = Replies(shared)
        self._agent = shared.agent.name

    def request(self, signal: Signal, key_text: str, timers: Timers) -> None:
        """Handle a request about the current key, and end the run that it marks."""
        operator = self.operator
        head = self.operator.head_of(key_text)
        actor = operator.actors.get(key_text)
        seq = self._handle(signal, key_text, head, actor)
        if head is None or (seq is None and signal.name != ERASE):
            return
        if actor is None:
            operator.cache.drop(key_text)
        if seq is not None:
            self._suspension.wake_marked(head, key_text)
        self._state.head.update(head.pack())
        if seq is None:
            return
        if actor is not None:
            actor.ends = head.ends
            operator.waits.loop.end_run(actor, seq)
        self._suspension.resume_woken(head, key_text, actor, timers)

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
        self._replies.reply(mark[0], END_RUN, run.key_text, outcome, run=mark[3], sequence=seq, **more)
        actor.ends = head.ends

    def _handle(self, signal: Signal, key_text: str, head: Head | None, actor: KeyActor | None) -> int | None:
        """Handle a request; returns the sequence number of a run that it marks, or None.

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
            self._reply(signal, key_text, ANSWERED, **self._inspection.of(key_text, head, actor))
        elif signal.name == END_RUN:
            return self._end(signal, key_text, head, actor)
        elif signal.name == ERASE:
            self._erase(signal, key_text, head, actor)
        else:
            self._reply(signal, key_text, REJECTED, reason=f"this version knows no request {signal.name}")
        return None

    # -- requests ---------------------------------------------------------------------

    def _end(self, signal: Signal, key_text: str, head: Head, actor: KeyActor | None) -> int | None:
        value = cast("Mapping[str, Any]", signal.value) if isinstance(signal.value, Mapping) else {}
        run = value.get("run")
        seq = self._unfinished(key_text, head, actor).get(run) if isinstance(run, str) else None
        if seq is None:
            reason = "no unfinished run of the key has this id: it has ended, or never began"
            self._reply(signal, key_text, REJECTED, run=run, reason=reason)
            return None
        if seq in head.ends:
            self._reply(signal, key_text, ACCEPTED, run=run, sequence=seq, reason="it is being ended already")
            return None
        mark = [signal.id, str(value.get("reason") or "")[:500], str(value.get("by") or "")[:100], run]
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
        if actor is not None or head.has_pending or head.suspended or head.delayed_due:
            reason = "the key has unfinished runs, inputs or delayed events: end its runs first"
            self._reply(signal, key_text, REJECTED, reason=reason)
            return
        values = sum(1 for _ in self._state.memory.items())
        self._state.memory.clear()
        signals = head.signals_expire is not None
        if signals:
            self._state.pending.put_mailbox(Mailbox())
            head.signals_expire = None
        # Later runs are replayed after a restart, from their records.
        ended = {"journal": journal_name(head.journal_id, self._agent), "through": head.committed_through}
        self._reply(signal, key_text, ERASED, values=values, signals=signals, store=head.store, **ended)

    def _reply(self, signal: Signal, key_text: str, outcome: str, **more: Any) -> None:
        request = signal.id if isinstance(signal.id, str) else None
        self._replies.reply(request, str(signal.name), key_text, outcome, **more)
