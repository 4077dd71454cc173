"""Commits runs that have ended. Nothing else changes state because of a run.

A run has ended if it *finished*, or if it was *suspended*: then it blocks its key, or later inputs run. The
steps are the same for all three. Until then, a run has changed nothing
outside of itself except the store, which has its durable calls. The steps are also the same for runs that
started and ended in the call of Flink with their input (the inline path), and for runs that the event loop
executed.

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

from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.queued_input import SuspendedRun
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.operator.emission import Emission, trace_outputs
from flink_agents.runtime.operator.features import EndedRun, Features
from flink_agents.runtime.state.keyed_state import POSITION, Head, KeyedState, Timers
from flink_agents.runtime.state.memory import write_nodes


class RunCommitter:
    """Commits runs of the current key. Only for Flink's task thread.

    The caller emits the outputs when a method has returned: that is the last step.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        features: The features of the operator.
    """

    def __init__(self, shared: RunEnvironment, state: KeyedState, features: Features) -> None:
        self._shared = shared
        self._state = state
        self._features = features
        self._event_time = features.event_time
        self._idle_keys = features.idle_keys
        self._pruning_marks = features.pruning_marks
        self._journals = shared.journals
        self._prunes = shared.journals is not None and shared.journals.pruner is not None
        self._traces = shared.traces_outputs

    def inline(self, run: Run, head: Head, timers: Timers) -> Emission:
        """Commit a run that never waited. Its input is not in state, and it has no journal."""
        emission = Emission()
        # No step 2: the input of an inline run never was in state.
        self._memory(run, changes := run.short_term.changes())
        self._outputs(run, None, head, emission, timers)
        if self._journals is not None:
            self._records(run, head, None, run.recorded)
        self._number(run.sequence_number, head, None)
        self._head(head, timers)
        if self._pruning_marks is not None:
            self._pruning_marks.mark(head, run.key_text, 0, None)
        # Last, when no step can raise any more: the cache of the key holds this dictionary.
        run.short_term.committed(changes)
        # Not `end_waits`: no loop has prepared it.
        run.ended = None
        run.state.commit()
        return emission

    def commit_finished(self, actor: KeyActor, emission: Emission, timers: Timers) -> EndedRun | None:
        """Commit all runs of an actor that have ended, in the order in which they ran.

        Args:
            actor: The actor of the current key.
            emission: Receives their outputs.
            timers: Timers of the key.

        Returns:
            The last of them if it was suspended: the actor executes nothing after it.
        """
        # Read this first: then all runs before the suspended one are in `finished`, and commit before it.
        suspended = actor.runs.suspended
        finished = actor.runs.finished
        runs: list[EndedRun] = []
        while finished:
            # Flink's task thread alone takes from this end of the queue, so no lock is needed.
            run, waiting, changes, _ = finished.popleft()
            runs.append(EndedRun(run, waiting.number, waiting.seq, changes, skips=waiting.skips))
        # A suspended run comes last. All runs of the actor before it are committed first.
        if suspended is not None:
            runs.append(_suspended(suspended))
        if not runs:
            return None
        # The marker from before the commit. Step 4 replaces it in the head.
        head = actor.head
        marker = actor.head.marker
        now = clock()
        for ended in runs:
            self._commit(ended, actor, timers, emission)
        # A fork has copied the records of its origin before its first run, so it needs the origin no longer.
        head.origins = ()
        self._head(head, timers)
        journals = self._journals
        if (named := self._state.journals) is not None and journals is not None and head.marker is not marker:
            if journals.is_named:
                named.put(POSITION, journals.position())
            else:
                journals.name_store()
        self._mark(actor, marker)
        for ended in runs:
            if ended.suspension is None:
                ended.run.state.commit(now)
        # Last, because pruning cannot be undone by a restore.
        if self._prunes:
            self._prunable(actor)
        return None if suspended is None else runs[-1]

    def _commit(self, ended: EndedRun, actor: KeyActor, timers: Timers, emission: Emission) -> None:
        """Take steps 1 to 5 for a run of an actor that finished or was suspended."""
        run = ended.run
        head = actor.head
        features = self._features
        suspension = ended.suspension
        assert ended.number is not None
        if ended.frees_key:
            self._memory(run, ended.changes)
            self._input(ended.number, actor)
        self._outputs(run, ended, head, emission, timers)
        if ended.frees_key:
            self._records(run, head, actor, run.recorded)
        elif suspension is not None and suspension.recorded:
            # Its records are needed until it is committed, so they do not count as prunable.
            self._records(run, head, None, True)
        if ended.counts:
            # The input of a suspended run still waits, so the run keeps its number.
            self._number(ended.seq if ended.frees_key else ended.seq - 1, head, actor)
        if ended.skips or (head.skipped and ended.frees_key):
            assert features.skipped_runs is not None
            features.skipped_runs.note_skipped(actor, ended.seq, ended.skips)
        if head.ends and suspension is None:
            features.end_requests.note_end(run, actor)
        if run.waits is not None:
            features.suspensions.take_over(ended, actor, timers, emission)

    def restored(self, actor: KeyActor) -> None:
        """Note which records of a key the restored checkpoint does not need."""
        actor.noted = actor.head.committed_through
        if self._journals is not None:
            self._journals.committed(actor.head.journal_id, actor.key_text, actor.noted, 0)

    # -- the steps, in their order ----------------------------------------------------

    def _memory(self, run: Run, changes: dict[str, bytes | None]) -> None:
        """Step 1: write the changes of short-term memory.

        If the key has an actor, the next run has started on these changes already. It is committed later.
        """
        if changes:
            write_nodes(self._state.memory, changes)
            notes = run.state.notes
            observers = self._shared.telemetry.observers
            notify = observers.memory_written
            if notes is not None and notes.folds:
                notes.write({name: len(value or b"") for name, value in changes.items()})
                notify = observers.memory_written_unnoted
            if notify is not None:
                notify(run.state, {name: len(value or b"") for name, value in changes.items()})

    def _input(self, number: int, actor: KeyActor) -> None:
        """Step 2: remove the input, and advance the head past it.

        The head looks into ``pending`` for later inputs that were committed before. One call of Flink writes
        both: the next restore rejects a head that counts an input which is not there.
        """
        # Before the head counts it, in the same call of Flink.
        self._state.pending.remove(number)
        actor.committed += 1
        actor.head.finish(number, self._is_gone)

    def _outputs(
        self, run: Run, ended: EndedRun | None, head: Head, emission: Emission, timers: Timers
    ) -> None:
        """Step 3: collect the outputs of the run. They do not leave yet. Events with a delay stay in state.

        From here on, the input no longer holds the low watermark. But only a timer raises the watermark.
        """
        if self._traces:
            trace_outputs(run, self._shared.agent.name)
        if run.side_outputs:
            self._features.delayed.keep_delayed(run, head, timers)
        if self._event_time is not None:
            self._event_time.stamp_outputs(ended or EndedRun(run, None, run.sequence_number, {}), emission)
        emission.outputs += run.outputs
        emission.side_outputs += run.side_outputs

    def _records(self, run: Run, head: Head, actor: KeyActor | None, recorded: bool) -> None:
        """Step 4: store in the head the position before the records of later runs.

        The position was taken when the run ended, so it is before all records of the next run, which may have
        started. A position taken now would hide those from a restore. For a run without records, the head
        stores that there was one: later runs record their reads.
        """
        if self._journals is None:
            return
        if not recorded:
            if self._shared.may_record:
                head.unrecorded = True
            return
        head.store = self._journals.store_id
        if run.journal is not None and run.journal.end is not None:
            head.marker = run.journal.end
        if actor is not None:
            actor.unpruned += 1

    def _number(self, seq: int, head: Head, actor: KeyActor | None) -> None:
        """Step 5: set the sequence number of the key's next run.

        Idempotency keys and ids derive from the number. A recorded run that was skipped and comes now has a
        number below the next one, which stays.
        """
        if head.fresh:
            # The actor may have found the start of a generation that an earlier attempt had started.
            head.start(head.begin if actor is None else actor.runs.begin)
        head.next_seq = max(head.next_seq, seq + 1)

    def _head(self, head: Head, timers: Timers) -> None:
        """Step 6: write the head, once for all runs of the call. State has all of them now."""
        if self._idle_keys is not None:
            self._idle_keys.note_idle(head, timers)
        self._state.head.update(head.pack())

    def _mark(self, actor: KeyActor, marker: bytes | None) -> None:
        """Step 7: mark the key if its records must be pruned, so that a restore finds it.

        The marker is the one from before the commit: it is before the records of these runs.
        """
        if self._pruning_marks is not None:
            self._pruning_marks.mark(actor.head, actor.key_text, actor.unpruned, marker)

    def _prunable(self, actor: KeyActor) -> None:
        """Step 8: report the last run whose records only a restore needs.

        State was written without an error, so the next checkpoint has those runs. Their records are pruned
        when each retained checkpoint has them (``runtime.retention.pruning``).
        """
        if actor.unpruned and (through := actor.head.committed_through) > actor.noted:
            actor.noted = through
            if self._journals is not None:
                self._journals.committed(actor.head.journal_id, actor.key_text, actor.noted, actor.unpruned)
            actor.unpruned = 0

    def _is_gone(self, number: int) -> bool:
        return self._state.pending.get(number) is None


def _suspended(suspended_run: SuspendedRun) -> EndedRun:
    """Return the part of a run that has ended, for a run that stays in state."""
    run, suspension, skips, part = suspended_run
    if part is None:
        number = suspension.number
        seq = suspension.seq
        return EndedRun(run, number, seq, {}, suspension, frees_key=False, skips=skips)
    return EndedRun(
        run,
        part.number,
        part.seq,
        part.changes,
        suspension,
        counts=part.counts,
        replayed=part.replayed,
        skips=skips,
    )
