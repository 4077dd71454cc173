"""The engine-free operator: handles an input or a timer of one key, and returns the outputs.

The caller makes the key current in the state and timers that it passes in, as Flink does.

If the whole run of an input can execute on the calling thread, and nothing of its key waits, it is executed
and committed at once (the inline path). All other inputs are stored in state and handed to the key's
actor, whose runs the event loop executes. A timer commits the finished runs of actors.

This module handles inputs and actors. ``operator.commit`` commits runs, and ``operator.heartbeat`` decides
when Flink's task thread checks an actor. ``assembly`` builds the features that an agent uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.events.signals import TaggedSignal
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.executor import RunExecutor
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.journal.other_jobs import origins_of
from flink_agents.runtime.loop.actor import KeyActor, QueuedInput, RunEnd, load_of
from flink_agents.runtime.operator.commit import Features, RunCommitter
from flink_agents.runtime.operator.heads import Heads, KeyCache
from flink_agents.runtime.operator.input_dispatch import InputDispatcher
from flink_agents.runtime.operator.loop_access import LoopAccess
from flink_agents.runtime.operator.services.service import NOTHING, START, Emission, Schedule
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.suspended import StoredWait


class InputRejected(Exception):
    """An input has to wait in state, and state cannot hold it.

    Args:
        error: The error of the codec, which names the part that state cannot hold.
    """

    def __init__(self, error: UnserializableValueError) -> None:
        super().__init__(str(error))
        self.error = error


class AgentProcessor:
    """Drives the runs of all keys of one subtask.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        job_id: The journal id of new keys.
        clock: Returns the wall-clock time in milliseconds.
        check_cancelled: Called while Flink's task thread waits; raises if the task was cancelled.
        features: The features of the operator.
        new_head: Creates the head of a key that has none, given the journal id.
        most_seconds: The longest time for which Flink's task thread may wait in one call.

    Attributes:
        actors: The keys with uncommitted work, each with its actor.
        features: The features of the operator.
        cache: Heads and memory of recent keys.
        heads: Reads the heads of keys without actors.
        feeder: Hands inputs from state to actors.
        loop_access: Creates the agent loop, and waits for it.
        schedule: Decides when Flink's task thread checks actors.
        to_look_at: The actors whose runs have ended, for Flink's task thread to commit.
        has_key_timers: True if any key may have a timer of its own, for which the hook ``fired`` is called.
    """

    schedule: Schedule

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        job_id: str,
        clock: Callable[[], int],
        check_cancelled: Callable[[], None],
        features: Features,
        new_head: Callable[[str], Head],
        most_seconds: float,
    ) -> None:
        self._shared = shared
        self._state = state
        self._job_id = job_id
        self._clock = clock
        self.features = features
        self._signals = features.signals
        self._low_watermark = features.low_watermark
        self._suspensions = features.suspensions
        self.has_key_timers = False
        self._inline = shared.inline
        self._releases_early = self._inline
        self._records_runs = shared.journals is not None
        self.actors: dict[str, KeyActor] = {}
        self.cache = KeyCache(shared.memory_expires)
        self._executor = RunExecutor(shared)
        self.to_look_at: deque[KeyActor] = deque()
        self.loop_access = LoopAccess(shared, clock, check_cancelled, most_seconds, self.to_look_at)
        self.feeder = InputDispatcher(shared, state, features.suspensions, self.loop_access)
        self.heads = Heads(shared, state, job_id, new_head)
        self._commits = RunCommitter(shared, state, features)
        ttl = int(shared.config.get(AgentOptions.SIGNALS_TTL).total_seconds() * 1000)
        self._make_mailbox = lambda: ActiveMailbox(clock, [], ttl)
        shared.telemetry.run_metrics.add_gauges("runs", lambda: load_of(list(self.actors.values())))

    def process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission:
        """Handle an input or a ``TaggedSignal`` of the current key; return the outputs of committed runs.

        Its event time is in milliseconds, or None.
        """
        # Signals and requests come in the same stream as inputs.
        if type(record) is TaggedSignal:
            return self._signals.receive(key_text, record, timers)
        if timestamp is not None and timestamp >= START:
            # An upstream agent's outputs at the end of its input have the time of that timer, and none if
            # another attempt emits them earlier. The time is part of an input's digest, so drop it.
            timestamp = None
        if self._low_watermark is not None:
            self._low_watermark.check_arrival(timestamp, timers)
        # Before the input: it can run inline only if its key has no actor.
        previous_emission = (
            self._commit_and_release(key_text, timers) if self._releases_early and self.actors else None
        )
        try:
            emission = self._process(key_text, record, timestamp, timers)
        except InputRejected as rejected:
            emission = self._reject(key_text, record, timestamp, rejected.error)
        return emission if previous_emission is None else previous_emission.followed_by(emission)

    def _commit_and_release(self, key_text: str, timers: Timers) -> Emission | None:
        """Commit the runs of the current key's actor if all have ended, and release it if no inputs wait.

        If inputs come faster than timers check the actor, the key would keep it forever, although all inputs
        could run inline for less. This applies until a run had to be handed over.
        """
        actor = self.actors.get(key_text)
        if actor is None or not actor.is_done:
            return None
        emission = Emission()
        self.commit(actor, emission, timers)
        if not actor.head.has_pending:
            self.release(actor, timers)
        return emission

    def _process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission:
        """Run an input of the current key inline, or else store it for the key's actor.

        Raises:
            InputRejected: It has to wait, and state cannot hold it.
        """
        actor = self.actors.get(key_text)
        # Inputs of a key run in order, so this one queues after those of the actor.
        if actor is not None:
            return self._feed_input(actor, record, timestamp, timers)
        heads = self.heads
        cache = self.cache
        cached = cache.latest.get(key_text) or cache.older.get(key_text)
        head = cached.head if cached is not None else heads.read_or_create(key_text)
        # An input of a key with a suspended run stays in state until the run ends.
        if head.suspended and self._suspensions.blocks(head):
            self._store_input(head, key_text, self._pack_input(record, timestamp), timestamp)
            self.blocked(key_text, head)
            return NOTHING
        # Most keys have no store that could have records of them.
        unread = (
            self._records_runs
            and (cached is None or not cached.searched)
            and heads.may_have_records(head, key_text, False)
        )
        if head.first_pending != head.next_pending or not self._inline or unread:
            self._enqueue(head, key_text, record, timestamp, timers)
            return NOTHING
        memory: dict[str, Any] = cached.memory if cached is not None else head.nodes or {}
        whole = head.nodes is not None or (head.next_seq == 0 if cached is None else cached.whole)
        # Before the action runs, which may change the input.
        shared = self._shared
        stored = None if whole else self._state.memory
        packed = self._pack_early(record, timestamp) if shared.may_record else None
        seq = head.next_seq
        now = self._clock()
        run = Run(shared, head.journal_id, key_text, seq, timestamp, now, stored, memory, head.unrecorded)
        run.begin(record)
        step = self._executor.advance(run)
        if step is None:
            emission = Emission()
            changes = run.short_term.changes()
            self._commits.commit((RunEnd(run, None, seq, changes),), head, None, timers, emission)
            if head.nodes is None:
                # When no step can raise any more: the cache of the key holds this dictionary.
                run.short_term.committed(changes)
            # Not `end_waits`: no loop has prepared it.
            run.ended = None
            cache.store_key(key_text, head, memory, whole, searched=True)
            return emission
        self._hand_over(head, step, record, packed, whole, timers)
        return NOTHING

    def live_waits(self, key_text: str) -> list[tuple[str, StoredWait]] | None:
        """Return the open waits of a key's runs in memory, each with its id; None if no such run may wait."""
        actor = self.actors.get(key_text)
        if actor is None or (mailbox := actor.mailbox) is None or actor.suspended is not None:
            return None
        return [(wait.wait_id, wait.stored) for wait in list(mailbox.open)]

    def live_runs(self, key_text: str) -> Collection[int]:
        """Return the sequence numbers of the runs that the loop has started since the key got its actor."""
        actor = self.actors.get(key_text)
        mailbox = None if actor is None else actor.mailbox
        return () if mailbox is None else mailbox.runs

    def open(self, timers: Timers | None = None) -> None:
        """Open the store and find restored work, before the first input. Waits for the store.

        Args:
            timers: Timers of the current key; None if there is no restored state.

        Raises:
            StoreError: The store of durable calls cannot be opened.
        """
        self.loop_access.open_store()
        self.schedule.open(timers)

    def is_crowded(self, key_text: str) -> bool:
        """Return True if an input of the key may have to wait until the loop has room."""
        return key_text not in self.actors and self.loop_access.is_full

    def close(self, wait: bool = True) -> None:
        """Stop the loop and all runs, and tell the observers.

        Args:
            wait: True to block until the loop has ended, for a bounded time.
        """
        self.loop_access.close(wait)
        self._shared.telemetry.observers.closed()

    # -- keys with work ---------------------------------------------------------------

    def head_of(self, key_text: str) -> Head | None:
        """Return the head of the current key, from actor, cache or state; None for a key that never came."""
        holder = self.actors.get(key_text) or self.cache.get(key_text)
        return holder.head if holder is not None else self.heads.read(key_text)

    def actor_of(self, key_text: str, timers: Timers) -> KeyActor | None:
        """Return the actor of the current key, created again after a restore; None if it has nothing to run.

        Raises:
            BaseException: The loop has failed.
        """
        actor = self.actors.get(key_text)
        if actor is None:
            head = self.heads.read(key_text)
            is_asleep = head is not None and bool(head.suspended) and self._suspensions.rests(head, key_text)
            if head is None or is_asleep or not head.has_pending:
                # The key has no work to run now, so its inputs are known.
                if self._low_watermark is not None:
                    self._low_watermark.note_restored_inputs(None, key_text)
                return None
            actor = self.make_actor(head, key_text, True, timers)
        self.loop_access.check_failure()
        return actor

    def is_blocked(self, head: Head) -> bool:
        """Return True if inputs of a key without an actor stay in state, because suspended runs go first."""
        return bool(head.suspended) and self._suspensions.blocks(head)

    def blocked(self, key_text: str, head: Head) -> None:
        """Notify services that inputs of a key stay in state until a suspended run ends, maybe for days."""
        for hook in self.features.hooks.blocked:
            hook(key_text, head)

    # -- inputs that wait -------------------------------------------------------------

    def _pack_input(self, record: Any, timestamp: int | None) -> bytes:
        """Return an input and its event time as bytes.

        Raises:
            InputRejected: State cannot hold the input.
        """
        try:
            return self._shared.codec.encode([record, timestamp])
        except UnserializableValueError as error:
            raise InputRejected(error) from error

    def _pack_early(self, record: Any, timestamp: int | None) -> bytes | None:
        """Return the bytes of the input of a run that may have a journal; None if state cannot hold it.

        The journal has the input's digest, which must be taken before an action changes the input in place.
        """
        try:
            return self._pack_input(record, timestamp)
        except InputRejected:
            return None

    def _store_input(self, head: Head, key_text: str, packed: bytes, timestamp: int | None) -> None:
        """Put the bytes of the key's next input into state, where they stay until its run is committed."""
        # Entry and head are written in one call of Flink, so a checkpoint has both or neither.
        number = self._state.put_input(head, packed)
        if self._low_watermark is not None:
            self._low_watermark.stored(key_text, number, timestamp)
        self._state.write(head)

    def _feed_input(self, actor: KeyActor, record: Any, timestamp: int | None, timers: Timers) -> Emission:
        """Store an input of a key with an actor, and pass it to the actor if that has room."""
        self.loop_access.check_failure()
        packed = self._pack_input(record, timestamp)
        self._store_input(actor.head, actor.key_text, packed, timestamp)
        self.feed(actor, timers)
        return NOTHING

    def _enqueue(self, head: Head, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> None:
        """Store an input of a key without an actor, and create the actor. Waits until the loop has room."""
        self.loop_access.check_failure()
        self.loop_access.wait_for_room()
        self.heads.mark(head, key_text)
        # Before this input is counted: it says if older ones wait in state.
        pending = head.has_pending
        self._store_input(head, key_text, self._pack_input(record, timestamp), timestamp)
        self.make_actor(head, key_text, pending, timers)

    def _hand_over(
        self, head: Head, step: ActionRun, record: Any, packed: bytes | None, whole: bool, timers: Timers
    ) -> None:
        """Let the loop continue a run that started on Flink's thread. Waits until the loop has room.

        Args:
            head: The head of its key.
            step: The execution of an action that cannot end here.
            record: The input.
            packed: The bytes of the input; None if they are still to be made.
            whole: True if the run has read all memory of its key.
            timers: Timers of the key.
        """
        run = step.run
        self._releases_early = False
        try:
            packed = packed or self._pack_input(record, run.timestamp)
            # Without calls if the loop has room: most runs that are handed over come here.
            if (loop := self.loop_access.running_loop) is not None:
                if loop.failure is not None:
                    raise loop.failure
                if loop.load >= self.loop_access.most_load:
                    self.loop_access.wait_for_room()
        except BaseException:
            step.abandon()
            raise
        # It started here because no attempt had recorded anything of the key.
        self.heads.mark(head, run.key_text, unread=False)
        self._store_input(head, run.key_text, packed, run.timestamp)
        # Reading a whole map is the most expensive call of state.
        memory = run.short_term.load(whole)
        if head.nodes is not None:
            # The run continues with its dictionary, and the head has what is committed.
            head.nodes = head.nodes.copy()
        actor = self._new_actor(head, run.key_text, memory, False, timers, unread=False)
        number = actor.loaded
        actor.loaded += 1
        actor.next_seq += 1
        self.loop_access.loop.submit(
            actor, QueuedInput(record, run.timestamp, number, packed, run.sequence_number, run, step)
        )

    def make_actor(self, head: Head, key_text: str, pending: bool, timers: Timers) -> KeyActor:
        """Create the actor of a key with inputs in state, and start its work.

        Args:
            head: The head of the key.
            key_text: The key.
            pending: True if inputs of it were in state before the present call.
            timers: Timers of the key.
        """
        cached = self.cache.get(key_text)
        nodes: dict[str, Any]
        if cached is not None and cached.whole and head.nodes is None:
            nodes = cached.memory
        else:
            nodes = self._state.read_memory(head)
        # Before the actor exists: it takes over the head as this leaves it.
        if head.suspended:
            self._suspensions.wake_first(head, key_text)
        actor = self._new_actor(head, key_text, nodes, pending or bool(head.suspended), timers)
        # The low watermark must know restored inputs before any of them is committed.
        if pending and self._low_watermark is not None:
            self._low_watermark.note_restored_inputs(head, key_text)
        if head.suspended:
            self.feeder.resume_blocking(actor)
        self.feeder.feed(actor)
        recovery = actor.recovery
        if recovery is not None and recovery.order is None:
            self.loop_access.loop.read(actor)
        return actor

    def _new_actor(
        self,
        head: Head,
        key_text: str,
        nodes: dict[str, Any],
        pending: bool,
        timers: Timers,
        unread: bool = True,
    ) -> KeyActor:
        """Create the actor of a key without giving it inputs; ``nodes`` is all of the key's memory.

        If ``unread`` is True, an earlier attempt may have recorded runs of the key, which it replays first.
        """
        features = self.features
        # Late replays that have waited for too long must not be waited for again.
        if head.skipped and features.skipped_runs is not None:
            features.skipped_runs.give_up_late(head, key_text)
        journals = self._shared.journals
        journal = None if journals is None else journals.of_key(head.journal_id, key_text)
        actor = KeyActor(key_text, head, nodes, self._make_mailbox, journal)
        if unread and self.heads.may_have_records(head, key_text, pending):
            actor.recover(pending, origins_of(head, self._state) if head.origins else ())
            if not head.fresh:
                self._commits.restored(actor)
        if features.idle_keys is not None:
            features.idle_keys.note_work(actor)
        if head.suspended or head.signals_expire is not None:
            features.signals.equip(actor)
            self._suspensions.note_resumed(head, key_text)
        self.actors[key_text] = actor
        # The actor owns head and memory from here on. A cached copy would become stale.
        self.cache.remove_key(key_text)
        self.schedule.added(actor, timers)
        return actor

    def release(self, actor: KeyActor, timers: Timers) -> None:
        """Remove the actor of a key without waiting inputs, and cache its head and memory."""
        # First, so that no feature finds an actor that no longer gets inputs.
        del self.actors[actor.key_text]
        self._state.return_memory(actor.head, actor.memory)
        self.cache.store_key(actor.key_text, actor.head, actor.memory, True, searched=False)
        if actor.mailbox is not None:
            self.loop_access.loop.suspender.forget(actor)
        self.schedule.released(actor)

    def withdraw(self, actor: KeyActor) -> None:
        """Remove the actor of a key whose last run was suspended. Its other inputs stay in state."""
        # The next actor reads them again.
        self.loop_access.loop.withdraw(actor)
        self.feeder.forget_cached(actor)
        self.loop_access.loop.suspender.forget(actor)
        # The timer at the end of a bounded input stays: it resumes the run.
        del self.actors[actor.key_text]

    def feed(self, actor: KeyActor, timers: Timers) -> None:
        """Hand inputs from state to the actor, as far as there is room, and schedule the next check."""
        self.feeder.feed(actor)
        self.schedule.arm(timers, actor)

    def _reject(
        self, key_text: str, record: Any, timestamp: int | None, error: UnserializableValueError
    ) -> Emission:
        """Handle an input that state cannot hold, as the policy ``on_error`` says; return what it emits.

        Nothing was written, and no run has its number.
        """
        actor = self.actors.get(key_text)
        head = actor.head if actor is not None else self.heads.read(key_text) or Head(self._job_id)
        now = self._clock()
        run = Run(self._shared, head.journal_id, key_text, head.next_seq, timestamp, now, None)
        self._executor.reject_input(run, record, error)
        emission = Emission()
        emission.take_timed(run)
        return emission

    # -- runs -------------------------------------------------------------------------

    def is_held_back(self, key_text: str) -> bool:
        """Return True if the inputs of a key wait for another input, which may be late."""
        actor = self.actors.get(key_text)
        return actor is not None and actor.held is not None and actor.idle

    def commit(self, actor: KeyActor, emission: Emission, timers: Timers) -> None:
        """Commit the ended runs of the current key's actor, and continue with its suspended runs.

        Raises:
            BaseException: The loop has failed, so nothing may be committed.
        """
        loop = self.loop_access.running_loop
        if loop is not None and loop.failure is not None:
            raise loop.failure
        ends: list[RunEnd] = []
        while actor.ended:
            # Flink's task thread alone takes from this end of the queue, so no lock is needed.
            ends.append(actor.ended.popleft())
        if ends:
            self._commits.commit(ends, actor.head, actor, timers, emission)
        was_suspended = bool(ends) and ends[-1].suspension is not None
        if was_suspended or actor.head.suspended:
            self._suspensions.continue_key(actor, was_suspended, timers)
