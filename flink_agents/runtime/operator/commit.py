"""Commit: the steps by which a run that has ended takes effect. Nothing else changes state because of a run.

Until then a run has changed nothing outside of itself but the store, where its durable calls are recorded.
The steps are the same for a run that began and ended in the call of Flink which took its input (the inline
path) and for those that the agent loop executed (the harvest of an actor).

**What if the process dies?** Flink takes a checkpoint between two calls of the operator, never inside of one,
and a commit is inside of one. So no checkpoint has some of the steps without the others:

- *before the first step*, the last checkpoint has the input, or a source reads it again. The run is
  executed anew, and its durable calls are answered by their records;
- *between two steps*, the same. What was written to state since the last checkpoint goes with the process;
- *behind the last step*, still the same, until a checkpoint completes that has them all. From then on the run
  is over for good. Its outputs are on the same side of that checkpoint as the state that it left.

So the order of the steps is not there for crashes of the process. It is there for errors: where writing
state raises, nothing may have happened that no restore takes back. There are two such things, and they come
last: to say that records are not needed any more, and to let outputs leave, which a sink without
transactions shows at once.
"""

from __future__ import annotations

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.journal.unpruned import UnprunedKeys
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.operator.emission import Emission, trace_outputs
from flink_agents.runtime.operator.forgetting import Forgetting
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.overtaken import Overtaken
from flink_agents.runtime.operator.requests.key_service import KeyService
from flink_agents.runtime.operator.waits.delayed import Delays
from flink_agents.runtime.operator.waits.suspended import SuspendedRuns
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.memory import write_nodes


class Commits:
    """Commits runs of the current key. Only for Flink's thread.

    The caller lets the emission leave when a method has returned: that is the last step.

    Args:
        shared: What all runs share.
        state: Keyed state.
        overtaken: Keeps recorded runs in mind whose inputs did not come in time.
        low: The low watermark; None where outputs need no timestamps.
        forgetting: Removes heads of keys that have nothing left to do; None where they stay.
        unpruned: Marks keys whose records are to be pruned; None where nobody finds them again.
        suspended: Keeps suspended runs and signals in state.
        delays: Keeps delayed events in state.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        overtaken: Overtaken,
        low: LowWatermark | None,
        forgetting: Forgetting | None,
        unpruned: UnprunedKeys | None,
        suspended: SuspendedRuns,
        delays: Delays,
        requests: KeyService,
    ) -> None:
        self._requests = requests
        self._suspended = suspended
        self._delays = delays
        self._shared = shared
        self._state = state
        self._journals = shared.journals
        self._overtaken = overtaken
        self._low = low
        self._forgetting = forgetting
        self._unpruned = unpruned

    def inline(self, run: Run, head: Head, timers: Timers) -> Emission:
        """Commit a run that never waited: neither its input is in state, nor has it a journal."""
        emission = Emission()
        self._memory(run, changes := run.short_term.changes())
        self._outputs(run, None, head, emission, timers)
        if self._journals is not None:
            self._records(run, head, None)
        self._number(run.sequence_number, head, None)
        self._head(head, timers)
        if self._unpruned is not None:
            self._unpruned.touch(run.key_text)
        run.short_term.committed(changes)
        run.state.commit()
        return emission

    def harvest(self, actor: KeyActor, emission: Emission, timers: Timers) -> None:
        """Commit all runs that an actor has finished, in the order in which they ran.

        Args:
            actor: The actor of the current key.
            emission: Takes what they put out.
            timers: Timers of the key.
        """
        if not actor.finished:
            return
        head, now = actor.head, clock()
        marker = head.marker
        committed: list[Run] = []
        while actor.finished:
            run, waiting, changes, _ = actor.finished.popleft()
            committed.append(run)
            self._memory(run, changes)
            self._input(waiting.number, actor)
            if run.waits is not None or waiting.suspension is not None:
                self._suspended.committed(run, waiting.number, head, emission, timers)
            self._outputs(run, waiting.number, head, emission, timers)
            self._records(run, head, actor)
            self._number(waiting.seq, head, actor)
            if head.overtaken or waiting.overtakes:
                self._overtaken.committed(actor, waiting.seq, waiting.overtakes)
            if head.ends:
                self._requests.ended(run, head)
                actor.ends = head.ends
        # A fork takes over what its origin recorded before its first run begins: that is in its own journal.
        head.origins = ()
        self._head(head, timers)
        self._mark(actor, marker)
        for run in committed:
            run.state.commit(now)
        self._prunable(actor)

    def set_aside(self, actor: KeyActor, emission: Emission, timers: Timers) -> bool:
        """Commit the part of an actor's last run that has ended; whether the run can go on at once.

        Args:
            actor: The actor of the current key, whose runs before that one are committed.
            emission: Takes what the part put out.
            timers: Timers of the key.
        """
        assert actor.suspended is not None and actor.part is not None
        run, suspension = actor.suspended
        part, head, marker = actor.part, actor.head, actor.head.marker
        self._memory(run, part.changes)
        self._input(part.number, actor)
        ready = self._suspended.set_aside(run, suspension, head, emission, timers)
        self._outputs(run, part.number, head, emission, timers)
        self._records(run, head, actor)
        if part.counts:
            self._number(part.seq, head, actor)
        if head.overtaken or actor.overtakes:
            self._overtaken.committed(actor, part.seq, actor.overtakes)
        head.origins = ()
        self._head(head, timers)
        self._mark(actor, marker)
        self._prunable(actor)
        return ready

    def restored(self, actor: KeyActor) -> None:
        """Say which records of a key the checkpoint does not need that the attempt has begun from."""
        actor.noted = actor.head.settled_through
        if self._journals is not None:
            self._journals.committed(actor.head.journal_id, actor.key_text, actor.noted, 0)

    # -- the steps, in their order ----------------------------------------------------

    def _memory(self, run: Run, changes: dict[str, bytes | None]) -> None:
        """Step 1: write what the run changed in short-term memory.

        The run that follows has begun on it already where the key has an actor, and is committed later.
        """
        if changes:
            write_nodes(self._state.memory, changes)
            if (tell := self._shared.observers.memory_written) is not None:
                tell(run.state, {name: len(value or b"") for name, value in changes.items()})

    def _input(self, number: int, actor: KeyActor) -> None:
        """Step 2: remove the input, and count it off in the head.

        The head looks into ``pending`` for those behind it that were committed before. Both are
        written in one call of Flink: a head that counts an input which is not there refuses the next restore.
        """
        self._state.pending.remove(number)
        actor.committed += 1
        actor.head.finish(number, self._is_gone)

    def _outputs(self, run: Run, number: int | None, head: Head, emission: Emission, timers: Timers) -> None:
        """Step 3: collect what the run put out. It does not leave yet. What was sent with a delay stays.

        The low watermark learns here that the input holds it no longer, but only a timer raises it.
        """
        if self._shared.traces_outputs:
            trace_outputs(run, self._shared.agent_name)
        if run.side_outputs:
            self._delays.keep(run, head, timers)
        if self._low is None:
            emission.outputs += run.outputs
            emission.side_outputs += run.side_outputs
        else:
            self._low.commit(run, number, emission)

    def _records(self, run: Run, head: Head, actor: KeyActor | None) -> None:
        """Step 4: keep in the head where the records of the runs that follow can lie.

        The marker was taken when the run ended, so that it lies before all that the next run records,
        which may have begun. Taken now, it would hide records of that one from a restore.

        Of a run without records the head keeps that there was one: the runs behind it record what they read.
        """
        if self._journals is None:
            return
        if not run.recorded:
            if self._shared.may_record:
                head.unrecorded = True
            return
        head.store = self._journals.store_id
        if run.journal is not None and run.journal.end is not None:
            head.marker = run.journal.end
        if actor is not None:
            actor.unpruned += 1

    def _number(self, seq: int, head: Head, actor: KeyActor | None) -> None:
        """Step 5: let the next run of the key have a number behind that of this one.

        Idempotency keys and ids follow from the number. A recorded run that was overtaken, and comes
        now, has one below the next, which stays.
        """
        if head.fresh:
            # The actor may have found the begin of an incarnation that a dead attempt had begun.
            head.start(head.begin if actor is None else actor.begin)
        head.next_seq = max(head.next_seq, seq + 1)

    def _head(self, head: Head, timers: Timers) -> None:
        """Step 6: write the head, once for all runs of the call. State has all of them now."""
        if self._forgetting is not None and not head.has_pending:
            self._forgetting.settled(head, timers)
        self._state.head.update(head.pack())

    def _mark(self, actor: KeyActor, marker: bytes | None) -> None:
        """Step 7: mark the key if its records are to be pruned, so that a restore finds it.

        The marker is that of before the commit: it lies before what the runs have recorded.
        """
        if self._unpruned is not None:
            self._unpruned.touch(actor.key_text)
            if actor.unpruned:
                self._unpruned.committed(actor.head, actor.key_text, marker)

    def _prunable(self, actor: KeyActor) -> None:
        """Step 8: say up to which run only a restore asks for records.

        State has been written without an error, so that the next checkpoint has those runs. They
        are pruned when each checkpoint that is kept has them (``runtime.retention.pruning``).
        """
        if actor.unpruned and (settled := actor.head.settled_through) > actor.noted:
            actor.noted = settled
            if self._journals is not None:
                self._journals.committed(actor.head.journal_id, actor.key_text, actor.noted, actor.unpruned)
            actor.unpruned = 0

    def _is_gone(self, number: int) -> bool:
        return self._state.pending.get(number) is None
