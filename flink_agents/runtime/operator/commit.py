"""Commits runs that have ended. Nothing else changes state because of a run.

A run has ended if it *finished*, or if it was *suspended*: then it blocks its key, or later inputs run. Until
then, a run has changed nothing outside of itself except the store, which has its durable calls. There is one
sequence of steps. A run lacks a step if it has nothing for it: a run that started and ended in the call of
Flink with its input (the *inline* path) has no actor, its input is not in state, and it has no records.

**What if the process crashes?** Flink takes a checkpoint between two calls of the operator, never inside of
one, and a commit is inside of one call. So no checkpoint has some of the steps without the others:

- *Before the first step*, the last checkpoint has the input, or a source reads it again. The run is executed
  again, and its durable calls return their records.
- *Between two steps*, the same. Changes of state since the last checkpoint are lost with the process.
- *After the last step*, still the same, until a checkpoint with all steps completes. Then the run is over for
  good. Its outputs and its state belong to the same checkpoint.

So crashes do not require the order of the steps. Errors do: if writing state raises, nothing may have
happened that a restore cannot undo. Two effects cannot be undone, so they come last: the note that records
may be pruned, and the outputs, which a sink without transactions shows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.events import DELAYED_TAG
from flink_agents.api.lineage import OutputLineage, TracedOutput
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor, RunEnd
from flink_agents.runtime.loop.replays import LateReplays
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.requests import RequestService
from flink_agents.runtime.operator.services.cleanup import IdleKeyExpiry, UnprunedKeys
from flink_agents.runtime.operator.services.delayed import Delays
from flink_agents.runtime.operator.services.service import Emission, Hooks
from flink_agents.runtime.operator.services.signals import SignalService
from flink_agents.runtime.operator.services.suspension import SuspendedRuns
from flink_agents.runtime.state.keyed_state import POSITION, Head, KeyedState, Timers
from flink_agents.trace.records import traceparent


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features that an operator calls by name. What several features share is a hook of ``KeyService``.

    A feature that an agent does not use is None, and costs a comparison.

    Attributes:
        hooks: What several of them share.
        signals: Stores signals, and hands them to runs.
        suspensions: Suspends and resumes runs.
        delayed: Keeps events with a delay in state, and delivers them at their time.
        end_requests: Answers requests about keys, such as to end a run.
        low_watermark: Computes the output watermark; None if outputs need no timestamps.
        skipped_runs: Remembers recorded runs whose inputs have not come yet; None without a store.
        idle_keys: Removes heads of idle keys; None without the option ``state.idle-key-ttl``.
        pruning_marks: Marks keys with records; None if records are not pruned.
    """

    hooks: Hooks
    signals: SignalService
    suspensions: SuspendedRuns
    delayed: Delays
    end_requests: RequestService
    low_watermark: LowWatermark | None
    skipped_runs: LateReplays | None
    idle_keys: IdleKeyExpiry | None
    pruning_marks: UnprunedKeys | None


class RunCommitter:
    """Commits runs of the current key. Only for Flink's task thread.

    The caller emits the outputs when :meth:`commit` has returned: that is the last step.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        features: The features of the operator.
    """

    def __init__(self, shared: RunEnvironment, state: KeyedState, features: Features) -> None:
        self._shared = shared
        self._state = state
        self._features = features
        self._low_watermark = features.low_watermark
        self._idle_keys = features.idle_keys
        self._pruning_marks = features.pruning_marks
        self._journals = shared.journals
        self._prunes = shared.journals is not None and shared.journals.pruner is not None
        self._traces = shared.traces_outputs
        self._position: bytes | None = None
        observers = shared.telemetry.observers
        self._observes_memory = observers.memory_written is not None or observers.begin_notes is not None

    def commit(
        self, ends: Sequence[RunEnd], head: Head, actor: KeyActor | None, timers: Timers, emission: Emission
    ) -> None:
        """Commit runs of the current key that have ended.

        Args:
            ends: The runs, in the order in which they ran. Nothing of an actor follows a suspended one.
            head: The head of the key.
            actor: The actor of the key; None for a run of the inline path.
            timers: Timers of the key.
            emission: Receives the outputs of the runs.
        """
        # Step 4 replaces it in the head.
        marker = head.marker
        for end in ends:
            self._commit_run(end, head, actor, timers, emission)
        # A fork has copied the records of its origin before its first run, so it needs the origin no longer.
        head.origins = ()
        # Step 6: write the head, once for all runs of the call. State has all of them now.
        if self._idle_keys is not None:
            self._idle_keys.note_idle(head, timers)
        self._state.write(head)
        if head.marker is not marker:
            self._store_position()
        if self._pruning_marks is not None:
            # Step 7: mark the key if its records must be pruned, so that a restore finds it. The marker from
            # before the commit is before the records of these runs.
            unpruned = 0 if actor is None else actor.unpruned
            self._pruning_marks.mark(head, ends[0].run.key_text, unpruned, marker)
        now = None if actor is None else clock()
        for end in ends:
            if end.suspension is None:
                end.run.state.commit(now)
        # Last, because pruning cannot be undone by a restore.
        if self._prunes and actor is not None:
            self._report_prunable(actor)

    def _commit_run(
        self, end: RunEnd, head: Head, actor: KeyActor | None, timers: Timers, emission: Emission
    ) -> None:
        """Take steps 1 to 5 of the commit of a run, except those that the run has nothing for."""
        run = end.run
        features = self._features
        if end.changes and end.frees_key:
            # Step 1: write the changes of short-term memory. If the key has an actor, the next run has
            # started on these changes already. It is committed later.
            self._state.write_memory(head, end.changes)
            if self._observes_memory:
                self._notify_memory(run, end.changes)
        if actor is not None and end.frees_key:
            assert end.number is not None
            self._remove_input(end.number, actor)
        self._collect_outputs(end, head, emission, timers)
        if self._journals is not None:
            self._mark_records(end, head, actor)
        if end.counts:
            # Step 5: set the number of the key's next run, which idempotency keys and ids derive from.
            if head.fresh:
                # The actor may have found the start of a generation that an earlier attempt had started.
                head.start(head.begin if actor is None else actor.begin)
            # If its input still waits, the run keeps its number. One that was skipped and comes now has a
            # number below the next one, which stays.
            head.next_seq = max(head.next_seq, end.seq + 1 if end.frees_key else end.seq)
        if actor is None:
            # Nothing of its key waits, so that neither skipped runs nor marks of users are left.
            return
        if end.skips or (head.skipped and end.frees_key):
            assert features.skipped_runs is not None
            features.skipped_runs.note_skipped(actor, end.seq, end.skips)
        if head.ends and end.suspension is None:
            features.end_requests.note_end(run, actor)
        if run.waits is not None:
            features.suspensions.take_over(end, actor, timers)
            # The run is listed by now: signals that are left may be for a run that is suspended.
            features.signals.remove_taken(end, head, timers, emission)

    def restored(self, actor: KeyActor) -> None:
        """Note that the restored checkpoint does not need the records of the key's committed runs."""
        actor.noted = actor.head.committed_through
        if self._journals is not None and actor.journal is not None:
            self._journals.committed(actor.journal.key, actor.noted, 0)

    # -- the steps, in their order ----------------------------------------------------

    def _notify_memory(self, run: Run, changes: dict[str, bytes | None]) -> None:
        """Note, or notify observers, how large the written nodes of memory are."""
        notes = run.state.notes
        observers = self._shared.telemetry.observers
        notify = observers.memory_written
        if notes is not None and notes.folds:
            notes.write({name: len(value or b"") for name, value in changes.items()})
            notify = observers.memory_written_unnoted
        if notify is not None:
            notify(run.state, {name: len(value or b"") for name, value in changes.items()})

    def _remove_input(self, number: int, actor: KeyActor) -> None:
        """Step 2: remove the input, and advance the head past it.

        One call of Flink writes both: a restore rejects a head that counts an input which is not there.
        """
        actor.committed += 1
        self._state.finish_input(actor.head, number)

    def _collect_outputs(self, end: RunEnd, head: Head, emission: Emission, timers: Timers) -> None:
        """Step 3: collect the outputs of the run. They do not leave yet. Events with a delay stay in state.

        From here on, the input no longer holds the low watermark. But only a timer raises the watermark.
        """
        run = end.run
        # Before the delayed events are gone: the numbers of side outputs count them.
        if self._traces:
            trace_outputs(run, self._shared.agent.name)
        if run.side_outputs:
            self._features.delayed.keep_delayed(run, head, timers)
        # After the delayed events: there is a timestamp for each side output that leaves now.
        if self._low_watermark is not None:
            self._low_watermark.stamp_outputs(end, emission)
        emission.outputs += run.outputs
        emission.side_outputs += run.side_outputs

    def _mark_records(self, end: RunEnd, head: Head, actor: KeyActor | None) -> None:
        """Step 4: store in the head the position before the records of later runs.

        The position was taken when the run ended, so it is before all records of the next run, which may have
        started. A position taken now would hide those from a restore. For a run without records, the head
        stores that there was one: later runs record their reads.
        """
        run = end.run
        suspension = end.suspension
        is_recorded = run.recorded if end.frees_key else suspension is not None and suspension.recorded
        if is_recorded:
            assert self._journals is not None
            head.store = self._journals.store_id
            if run.journal is not None and run.journal.end is not None:
                head.marker = run.journal.end
            # A run that blocks its key needs its records until it is committed, so they are not prunable.
            if actor is not None and end.frees_key:
                actor.unpruned += 1
        elif end.frees_key and self._shared.may_record:
            head.unrecorded = True

    def _store_position(self) -> None:
        """Put the position of the store of durable calls into state, for a comparison after a restore.

        A store with a lower position lacks records that the checkpoint has seen.
        """
        journals = self._journals
        named = self._state.journals
        if journals is None or named is None:
            return
        if journals.is_named:
            position = journals.position()
            # The commits of one call of Flink mostly see the same one.
            if position != self._position:
                named.put(POSITION, position)
                self._position = position
        else:
            journals.name_store()

    def _report_prunable(self, actor: KeyActor) -> None:
        """Step 8: report the last run whose records only a restore needs.

        State was written without an error, so the next checkpoint has those runs. Their records are pruned
        when each retained checkpoint has them (``runtime.retention.pruning``).
        """
        if actor.unpruned and (through := actor.head.committed_through) > actor.noted:
            actor.noted = through
            if self._journals is not None and actor.journal is not None:
                self._journals.committed(actor.journal.key, actor.noted, actor.unpruned)
            actor.unpruned = 0


def trace_outputs(run: Run, agent: str) -> None:
    """Replace each output and side output of a run by a ``TracedOutput``, except dead letters.

    Its id has the number of the output within the run. Delayed events stay in state, but they are counted:
    the numbers of outputs that left with a suspended run include them.

    Args:
        run: The run, which is about to be committed.
        agent: Name of the agent.
    """
    run_id = run.lineage.id
    side = ""
    context = traceparent(run_id, run.state.traceparent)

    def traced(value: object) -> TracedOutput:
        nonlocal number
        lineage = OutputLineage(
            f"{run_id}-{side}{number}",
            run_id,
            agent,
            run.key_text,
            run.sequence_number,
            run.parent,
            context,
        )
        number += 1
        return TracedOutput(value, lineage)

    # Outputs may leave in several parts. Each has the same id, however many there are.
    waits = run.waits
    number = 0 if waits is None else waits.outputs_left
    run.outputs = [traced(value) for value in run.outputs]
    number = 0 if waits is None else waits.side_outputs_left
    side = "side-"
    side_outputs: list[tuple[str, object]] = []
    for tag, value in run.side_outputs:
        if tag == DELAYED_TAG:
            number += 1
        side_outputs.append((tag, value if tag in (DEAD_LETTER_TAG, DELAYED_TAG) else traced(value)))
    run.side_outputs = side_outputs
