"""The engine-free operator: takes an input or a timer of one key, returns what leaves.

The caller makes the key current in the state and timers that it hands in, as Flink does.
An input whose whole chain can run on the calling thread, and of whose key nothing waits, is run
and committed on the spot (the inline path). All others are stored in ``pending`` and handed to
the key's actor, whose runs the agent loop executes; a timer commits what the actor finished.

This module takes inputs and keeps actors. ``operator.commit`` commits; which timers look at an actor is up
to the two kinds of processor, with a timer for each key (``operator.key_timers``) or one for all of them
(``operator.heartbeat``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.options import AgentOptions
from flink_agents.api.signals import Signal, TaggedSignal
from flink_agents.runtime.execution.context import ActionRun
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.steps import StepExecutor
from flink_agents.runtime.journal.other_jobs import origins_of
from flink_agents.runtime.journal.unpruned import UnprunedKeys
from flink_agents.runtime.loop.actor import KeyActor, Unread, Waiting, load_of
from flink_agents.runtime.operator.commit import Commits
from flink_agents.runtime.operator.emission import NOTHING, Emission
from flink_agents.runtime.operator.feeding import Feeder, InputRefused, Intake
from flink_agents.runtime.operator.forgetting import Forgetting
from flink_agents.runtime.operator.harvest import START
from flink_agents.runtime.operator.heads import Heads, KeyCache
from flink_agents.runtime.operator.loop_waits import LoopWaits
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.overtaken import Overtaken
from flink_agents.runtime.operator.requests.key_service import KeyService
from flink_agents.runtime.operator.waits.asides import Asides
from flink_agents.runtime.operator.waits.delayed import Delays
from flink_agents.runtime.operator.waits.suspended import SuspendedRuns
from flink_agents.runtime.serde.keys import unescape
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.suspended import OpenWait


class AgentProcessor(ABC):
    """Drives the runs of all keys of one subtask.

    Args:
        shared: What all runs share.
        state: Keyed state.
        job_id: Identity that new keys get as their journal id.
        clock: The wall-clock time in milliseconds.
        check_cancelled: Called while Flink's thread waits; raises if the task was cancelled.
        low: The low watermark; None where outputs need no timestamps.
        to_look_at: Gets the actors that Flink's thread is to look at; None where it looks at all.
        unpruned: Marks keys whose records are to be pruned; None where nobody finds them again.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        job_id: str,
        clock: Callable[[], int],
        check_cancelled: Callable[[], None],
        low: LowWatermark | None,
        to_look_at: deque[KeyActor] | None,
        unpruned: UnprunedKeys | None,
    ) -> None:
        config = shared.config
        self._shared = shared
        self._state = state
        self._job_id = job_id
        self._clock = clock
        self._low = low
        # A run that goes on later is replayed: all that it does is recorded, which the loop does.
        self._inline: bool = config.get(AgentOptions.INLINE) and not shared.may_wait
        self._comes_back = self._inline
        self._records_runs = shared.journals is not None
        self._actors: dict[str, KeyActor] = {}
        self._cache = KeyCache(shared.memory_expires)
        self._steps = StepExecutor(shared)
        self._intake = Intake(shared, state, low)
        self._asides = Asides(shared, state, clock, low)
        self._feeder = Feeder(shared, state, self._asides)
        waits = LoopWaits(shared, self._steps, clock, self._feeder, check_cancelled, low, to_look_at)
        self._waits = waits
        self._forgetting: Forgetting | None = None
        if config.get(AgentOptions.IDLE_KEY_TTL) is not None:
            self._forgetting = Forgetting(shared, state, clock, waits.ask)
        self._heads = Heads(shared, state, job_id, self._forgetting)
        self._overtaken = Overtaken(shared, clock)
        self._delays = Delays(shared, state, clock, low, self._see_the_end)
        self._suspended = SuspendedRuns(
            shared, state, clock, low, self._overtaken, self._asides, self._delays
        )
        self._requests = KeyService(shared, state, clock)
        parts = self._suspended, self._delays, self._requests
        self._commits = Commits(shared, state, self._overtaken, low, self._forgetting, unpruned, *parts)
        self._ending = False
        shared.run_metrics.add_gauges("runs", self._load)
        if shared.may_wait:
            shared.run_metrics.add_gauges("waits", shared.run_metrics.open_waits.read)

    def process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission:
        """Handle an input of the current key."""
        if type(record) is TaggedSignal:
            return self._take_signal(key_text, record.signal, timers)
        if timestamp is not None and timestamp >= START:
            # What an agent before this one puts out at the end of its input has the time of that timer,
            # and in another attempt, when it comes earlier, none. Inputs are known again by their time, too.
            timestamp = None
        if self._low is not None:
            self._low.check(timestamp)
            self._low.begin(timers)
        before = self._come_back(key_text, timers) if self._comes_back and self._actors else None
        try:
            emission = self._process(key_text, record, timestamp, timers)
        except InputRefused as refused:
            emission = self._refuse(key_text, record, timestamp, refused.error)
        return emission if before is None else before.followed_by(emission)

    def _come_back(self, key_text: str, timers: Timers) -> Emission | None:
        """Commit what the actor of the current key has finished, and let go of it, if that was all.

        Inputs that come faster than timers look at the actor would keep it for ever, although all of them
        could be executed here for less. That is so until a run had to be handed over.
        """
        actor = self._actors.get(key_text)
        if actor is None or not actor.is_done:
            return None
        emission = Emission()
        self._commit(actor, emission, timers)
        if not actor.head.has_pending:
            self._let_go(actor, timers)
        return emission

    def _process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission:
        actor = self._actors.get(key_text)
        if actor is not None:
            self._waits.check_failure()
            self._intake.store(actor.head, key_text, self._intake.packed(record, timestamp), timestamp)
            self._feed(actor)
            self._fed(actor, timers)
            return NOTHING
        heads, kept = self._heads, self._cache.get(key_text)
        head = kept.head if kept is not None else heads.of(key_text)
        if (head.suspended is not None or head.aside) and self._is_held(head):
            self._intake.store(head, key_text, self._intake.packed(record, timestamp), timestamp)
            if self._low is not None:
                self._low.park(key_text)
            return NOTHING
        # Most keys have no store that could have records of them.
        unread = (
            self._records_runs
            and (kept is None or not kept.searched)
            and heads.may_have_records(head, key_text, False)
        )
        if head.first_pending != head.next_pending or not self._inline or unread:
            self._enqueue(head, key_text, record, timestamp, timers)
            return NOTHING
        memory = kept.memory if kept is not None else {}
        whole = head.next_seq == 0 if kept is None else kept.whole
        packed = self._intake.packed_early(record, timestamp) if self._shared.may_record else None
        run = self._new_run(head, key_text, timestamp, memory, whole)
        self._steps.begin(run, record)
        step = self._steps.advance(run)
        if step is None:
            emission = self._commits.inline(run, head, timers)
            self._cache.keep(key_text, head, memory, whole, searched=True)
            return emission
        self._hand_over(head, step, record, packed, whole, timers)
        return NOTHING

    @abstractmethod
    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Commit what has finished, as a timer of the current key tells, and see that it goes on."""

    @property
    def busy_keys(self) -> list[str]:
        """Keys with work that is not committed."""
        return list(self._actors)

    @property
    def ended(self) -> int:
        """Grows with each run that ends outside of this thread, and wherever this thread is to look."""
        return self._waits.loop.progress

    @property
    def is_behind(self) -> bool:
        """Whether runs have ended that this thread is to look at by its next beat."""
        return False

    def wait_for_progress(self, seen: int, seconds: float) -> None:
        """Wait until there is more than ``seen`` of what ``ended`` counts; for tests.

        Raises:
            TimeoutError: There is none in time; the text says which inputs wait for others.
        """
        self._waits.wait_for_progress(seen, seconds)

    def live_waits(self, key_text: str) -> list[tuple[str, OpenWait]] | None:
        """What the runs of a key that go on wait for, each with its id; None where none goes on."""
        actor = self._actors.get(key_text)
        if actor is None or actor.mail is None or actor.suspended is not None:
            return None
        return [(wait.id, wait.kept) for wait in list(actor.mail.open)]

    def live_runs(self, key_text: str) -> Collection[int]:
        """Sequence numbers of the runs of a key that the loop has begun since the key has an actor."""
        actor = self._actors.get(key_text)
        return actor.mail.runs if actor is not None and actor.mail is not None else ()

    def open(self, timers: Timers | None = None) -> None:
        """Open what has to be there before the first input.

        Args:
            timers: Timers of the current key; None where there is no restored state.

        Raises:
            StoreError: The store of durable calls cannot be opened.
        """
        self._waits.open_store()

    def is_crowded(self, key_text: str) -> bool:
        """Whether an input of the key may have to wait until the loop has room."""
        return key_text not in self._actors and self._waits.is_full

    def wait_for_a_sign(self) -> None:
        """Wait until the loop has room, or a stream behind needs a sign of this subtask."""
        self._waits.wait_for_a_sign()

    def close(self, wait: bool = True) -> None:
        """End what runs left open.

        Args:
            wait: Return when it has ended, in bounded time.
        """
        self._waits.close(wait)
        self._shared.observers.closed()

    # -- keys with work ---------------------------------------------------------------

    def _forget(self, key_text: str, timestamp: int, timers: Timers) -> None:
        """Remove the head of the current key, which has no actor, if nothing needs it any more."""
        if self._forgetting is not None and timestamp < START:
            self._cache.drop(key_text)
            head = self._heads.read(key_text)
            if head is not None:
                self._forgetting.look(head, key_text, timers)

    def _actor(self, key_text: str, timers: Timers) -> KeyActor | None:
        """The actor of the current key, made anew after a restore; None where nothing waits."""
        actor = self._actors.get(key_text)
        if actor is None:
            head = self._heads.read(key_text)
            if head is not None and self._ending:
                self._wake_asides(head, key_text, head.has_pending)
            if head is None or not head.has_pending:
                # Nothing but signals may have been restored of the key.
                if self._low is not None:
                    self._low.found(key_text, ())
                return None
            if self._is_held(head) and not (self._ending or self._suspended.is_due(head)):
                self._suspended.restored(head, key_text)
                if self._low is not None:
                    self._low.found(key_text, ())
                return None
            actor = self._wake(head, key_text, True, timers)
        self._waits.check_failure()
        return actor

    # -- inputs that wait -------------------------------------------------------------

    def _enqueue(self, head: Head, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> None:
        """Let an input of a key without an actor wait for its turn."""
        self._waits.check_failure()
        self._waits.wait_for_room()
        self._heads.mark(head, key_text)
        pending = head.has_pending
        self._intake.store(head, key_text, self._intake.packed(record, timestamp), timestamp)
        self._wake(head, key_text, pending, timers)

    def _hand_over(
        self, head: Head, step: ActionRun, record: Any, packed: bytes | None, whole: bool, timers: Timers
    ) -> None:
        """Let the loop go on with a run that began here, and that knows the ``whole`` memory, or a part."""
        run = step.run
        self._comes_back = False
        try:
            packed = packed or self._intake.packed(record, run.timestamp)
            self._waits.check_failure()
            self._waits.wait_for_room()
        except BaseException:
            step.let_go()
            raise
        # It began here since no attempt had recorded anything of the key.
        self._heads.mark(head, run.key_text, unread=False)
        self._intake.store(head, run.key_text, packed, run.timestamp)
        # Reading all of a map is the dearest call of state.
        memory = run.short_term.load(whole)
        actor = self._new_actor(head, run.key_text, memory, False, timers, unread=False)
        number = actor.loaded
        actor.loaded += 1
        actor.next_seq += 1
        self._waits.loop.submit(
            actor, Waiting(record, run.timestamp, number, packed, run.sequence_number, run, step)
        )

    def _wake(self, head: Head, key_text: str, pending: bool, timers: Timers) -> KeyActor:
        """An actor for a key that has none, but has inputs in state."""
        kept = self._cache.get(key_text)
        known: dict[str, bytes | None]
        if kept is not None and kept.whole:
            known = kept.memory
        else:
            known = {unescape(path): data for path, data in self._state.memory.items()}
        if head.aside:
            self._wake_asides(head, key_text, pending)
        actor = self._new_actor(head, key_text, known, pending or bool(head.aside), timers)
        if pending and self._low is not None:
            self._intake.found(head, key_text, self._low)
        if head.suspended is not None:
            self._resume(actor)
        self._feed(actor)
        if actor.order is Unread.UNREAD:
            self._waits.loop.read(actor)
        return actor

    def _new_actor(
        self,
        head: Head,
        key_text: str,
        known: dict[str, bytes | None],
        pending: bool,
        timers: Timers,
        unread: bool = True,
    ) -> KeyActor:
        if head.overtaken:
            self._overtaken.expire(head, key_text)
        origins = origins_of(head, self._state.pending) if head.origins else ()
        actor = KeyActor(key_text, head, known, pending, origins)
        if unread and self._heads.may_have_records(head, key_text, pending):
            actor.order = Unread.UNREAD
            if not head.fresh:
                self._commits.restored(actor)
        if self._forgetting is not None:
            self._forgetting.busy(key_text)
        if self._shared.may_wait:
            actor.mail = self._suspended.mail(head)
        self._actors[key_text] = actor
        self._cache.drop(key_text)
        self._made(actor, timers)
        return actor

    def _let_go(self, actor: KeyActor, timers: Timers) -> None:
        """Remove the actor of a key of which nothing waits any more. The loop is done with it."""
        del self._actors[actor.key_text]
        self._cache.keep(actor.key_text, actor.head, actor.memory, True, searched=False)
        self._waits.loop.suspensions.forget(actor)

    @abstractmethod
    def _made(self, actor: KeyActor, timers: Timers) -> None:
        """Have somebody look at a new actor of the current key."""

    @abstractmethod
    def _see_the_end(self, timers: Timers) -> None:
        """Have a timer fire at the end of a bounded input, for the sake of the current key."""

    @abstractmethod
    def _ignore_the_end(self, timers: Timers) -> None:
        """Have none fire for the sake of the current key, of which nothing waits any more."""

    @abstractmethod
    def _fed(self, actor: KeyActor, timers: Timers) -> None:
        """Have somebody look in time at an actor that has one more input."""

    def _feed(self, actor: KeyActor) -> None:
        """Hand to the actor what waits in state, as far as there is room."""
        self._feeder.feed(actor, self._waits.loop)

    def _refuse(
        self, key_text: str, record: Any, timestamp: int | None, error: UnserializableValueError
    ) -> Emission:
        """Go on without an input that state cannot hold: nothing was written, and no run has its number."""
        actor = self._actors.get(key_text)
        head = actor.head if actor is not None else self._heads.read(key_text) or Head(self._job_id)
        run = self._new_run(head, key_text, timestamp)
        self._steps.refuse_input(run, record, error)
        emission = Emission()
        emission.take_timed(run)
        return emission

    # -- runs -------------------------------------------------------------------------

    def _new_run(
        self,
        head: Head,
        key_text: str,
        timestamp: int | None,
        memory: dict[str, bytes | None] | None = None,
        whole: bool = False,
    ) -> Run:
        return Run(
            self._shared,
            head.journal_id,
            key_text,
            head.next_seq,
            timestamp,
            self._clock(),
            None if whole else self._state.memory,
            memory,
            traced=head.unrecorded,
        )

    def _is_held_back(self, key_text: str) -> bool:
        actor = self._actors.get(key_text)
        return actor is not None and actor.held is not None and actor.idle

    def _commit(self, actor: KeyActor, emission: Emission, timers: Timers) -> None:
        """Commit what the current key's actor has finished, unless the attempt has failed."""
        self._waits.check_failure()
        # The runs before it have ended, and are committed first.
        suspended = actor.suspended
        self._commits.harvest(actor, emission, timers)
        if self._ending and actor.head.aside:
            self._wake_asides(actor.head, actor.key_text, True)
        if suspended is not None:
            self._park(actor, emission, timers)

    # -- suspended runs and signals, in ``operator.waits.waiting_processor`` -----------------------------

    @abstractmethod
    def _take_signal(self, key_text: str, signal: Signal, timers: Timers) -> Emission:
        """Hand a signal to the run that waits for it, or keep it."""

    @abstractmethod
    def _park(self, actor: KeyActor, emission: Emission, timers: Timers) -> None:
        """Put the last run of an actor into state, and let go of the actor."""

    @abstractmethod
    def _resume(self, actor: KeyActor) -> None:
        """Let the suspended run of an actor's key go on, before all other inputs."""

    @abstractmethod
    def _is_held(self, head: Head) -> bool:
        """Whether the inputs of a key without an actor wait for the end of a suspended run."""

    @abstractmethod
    def _wake_asides(self, head: Head, key_text: str, pending: bool) -> None:
        """Wake the runs that are set aside, where it is time for them."""

    def _load(self) -> dict[str, int]:
        """How many runs are in flight, queued and parked, by those words."""
        return load_of(list(self._actors.values()))
