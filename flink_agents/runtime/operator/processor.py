"""The engine-free operator: takes an input or a timer of one key, returns what leaves.

The caller makes the key current in the state and timers that it hands in, as Flink does.
An input whose whole chain can run on the calling thread, and of whose key nothing waits, is run
and committed on the spot (the inline path). All others are stored in ``pending`` and handed to
the key's actor, whose runs the agent loop executes; a timer commits what the actor finished.

**Commit** is the only place that changes state: short-term memory, the head, the input's
removal from ``pending``; outputs are returned after that. Flink takes no checkpoint between
these steps, so whatever the moment of a crash, state holds a run whole or not at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.api.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import FLINK_SLICE_SECONDS
from flink_agents.runtime.execution.context import Invocation
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.steps import StepExecutor
from flink_agents.runtime.journal.journals import check_store
from flink_agents.runtime.journal.other_jobs import OtherJobs, origins_of
from flink_agents.runtime.loop.actor import KeyActor, Unread, Waiting, load_of
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.operator.feeding import Feeder
from flink_agents.runtime.operator.forgetting import Forgetting
from flink_agents.runtime.operator.harvest import next_look
from flink_agents.runtime.operator.keys import Keys
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.operator.overtaken import Overtaken
from flink_agents.runtime.serde.keys import unescape
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Timers
from flink_agents.runtime.state.memory import write_nodes

START = 2**63 - 2**44
"""Event time of the timer that starts what waits when a bounded input ends.

Flink fires no processing-time timer after the end of the input, but every event-time timer
below the last watermark, in the order of their times. So all keys start before the first one is
waited for. Savepoints have timers of that time.
"""

DRAIN = START + 1
"""Event time of the timer that waits for a key's runs when a bounded input ends."""

NOTHING = Emission()
"""What leaves where nothing is committed. Nobody changes it."""


class _Refused(Exception):
    """An input has to wait, and state cannot hold it.

    Args:
        error: What is wrong with it.
    """

    def __init__(self, error: UnserializableValueError) -> None:
        super().__init__(str(error))
        self.error = error


class AgentProcessor:
    """Drives the runs of all keys of one subtask.

    Args:
        shared: What all runs share.
        state: Keyed state.
        job_id: Identity that new keys get as their journal id.
        clock: The wall-clock time in milliseconds.
        check_cancelled: Called while Flink's thread waits; raises if the task was cancelled.
        low: The low watermark; None where outputs need no timestamps.
        keys: The keys of the subtask; None where nobody can go through them.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        state: KeyedState,
        job_id: str,
        clock: Callable[[], int],
        check_cancelled: Callable[[], None] = lambda: None,
        low: LowWatermark | None = None,
        keys: Keys | None = None,
    ) -> None:
        self._shared = shared
        self._state = state
        self._job_id = job_id
        self._clock = clock
        self._check_cancelled = check_cancelled
        self._low = low
        if low is not None:
            low.is_held_back = self._is_held_back
        self._overtaken = Overtaken(shared, clock)
        self._steps = StepExecutor(shared)
        self._metrics = shared.run_metrics
        self._metrics.load = self._load
        self._other_jobs = OtherJobs(shared.config, job_id)
        self._restored_keys = keys
        self._actors: dict[str, KeyActor] = {}
        self._to_look_at: deque[KeyActor] | None = None
        self._loop: AgentLoop | None = None
        config = shared.config
        self._inline: bool = config.get(AgentOptions.INLINE)
        self._feeder = Feeder(shared, state)
        self._forgetting: Forgetting | None = None
        if config.get(AgentOptions.FORGET_SETTLED_AFTER) is not None:
            self._forgetting = Forgetting(shared, state, clock, lambda asked: self._agent_loop.ask(asked))

    def process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission | Run:
        """Handle an input of the current key."""
        if timestamp is not None and timestamp >= START:
            # What an agent before this one puts out at the end of its input has the time of that timer,
            # and in another attempt, when it comes earlier, none. Inputs are known again by their time, too.
            timestamp = None
        if self._low is not None:
            self._low.check(timestamp)
            self._low.begin(timers)
        try:
            return self._process(key_text, record, timestamp, timers)
        except _Refused as refused:
            actor = self._actors.get(key_text)
            head = actor.head if actor is not None else self._read_head(key_text) or Head(self._job_id)
            run = self._new_run(head, key_text, timestamp)
            self._steps.refuse_input(run, record, refused.error)
            return run

    def _process(self, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> Emission | Run:
        actor = self._actors.get(key_text)
        if actor is not None:
            self._check_failure()
            self._store(actor.head, key_text, self._packed(record, timestamp), timestamp, timers)
            self._feed(actor)
            self._fed(actor, timers)
            return NOTHING
        head = self._read_head(key_text) or self._new_head()
        if head.has_pending or not self._inline or self._may_have_records(head, key_text, False):
            self._enqueue(head, key_text, record, timestamp, timers)
            return NOTHING
        packed = self._packed_early(record, timestamp)
        run = self._new_run(head, key_text, timestamp)
        self._steps.begin(run, record)
        step = self._steps.advance(run)
        if step is None:
            run.short_term.commit()
            if head.fresh:
                head.start(head.begin)
            head.next_seq += 1
            if self._forgetting is not None:
                self._forgetting.settled(head, timers)
            self._state.head.update(head.pack())
            run.state.commit()
            return run
        self._hand_over(head, step, record, packed, timers)
        return NOTHING

    def on_timer(self, key_text: str, timestamp: int, timers: Timers) -> Emission:
        """Commit what the current key's actor has finished, and see that it goes on."""
        if self._low is not None and timestamp < START:
            self._low.look(timestamp, timers)
        actor = self._actor(key_text, timers)
        if actor is None:
            self._forget(key_text, timestamp, timers)
            return NOTHING
        if timestamp == START:
            self._agent_loop.end_of_input()
            timers.register_event_time_timer(DRAIN)
        elif timestamp != DRAIN and not actor.finished and not actor.parked:
            self._look_again(actor, timestamp, timers)
            return NOTHING
        emission = Emission()
        if timestamp == DRAIN:
            if not self._drain(actor, emission, timers):
                timers.register_event_time_timer(DRAIN)
        else:
            self._commit(actor, emission, timers)
            self._feed(actor)
        self._go_on(actor, timestamp, timers)
        return emission

    @property
    def busy_keys(self) -> list[str]:
        """Keys with work that is not committed."""
        return list(self._actors)

    @property
    def ended(self) -> int:
        """Grows with each run that ends outside of this thread, and wherever this thread is to look."""
        return self._agent_loop.progress

    def wait_for_progress(self, seen: int, seconds: float) -> None:
        """Wait until there is more ``progress`` than was seen; for tests.

        Raises:
            TimeoutError: There is none in time; the text says which inputs wait for others.
        """
        until = clock() + seconds
        while not self._agent_loop.wait_for_progress(seen, min(seconds, FLINK_SLICE_SECONDS)):
            if clock() >= until:
                held = self._agent_loop.held_back()
                raise TimeoutError(f"no run ended within {seconds:g} s" + (held and f": {held}"))

    def open(self, timers: Timers | None = None) -> None:
        """Open what has to be there before the first input.

        Args:
            timers: Timers of the current key; None where there is no restored state.

        Raises:
            StoreError: The store of durable calls cannot be opened.
        """
        if self._shared.journals is not None:
            self._agent_loop.open_store(self._check_cancelled)
        if self._restored_keys is not None and timers is not None:
            # A savepoint of a heartbeat has no timers of these keys.
            waiting = self._restored_keys.waiting()
            for _, key in waiting:
                self._restored_keys.switch(key)
                timers.register_processing_time_timer(self._clock())
                timers.register_event_time_timer(START)
            if self._low is not None:
                self._low.restored([key_text for key_text, _ in waiting])

    def is_crowded(self, key_text: str) -> bool:
        """Whether an input of the key may have to wait until the loop has room."""
        return key_text not in self._actors and self._loop is not None and self._feeder.is_full(self._loop)

    def wait_for_a_sign(self) -> None:
        """Wait until the loop has room, or a stream behind needs a sign of this subtask."""
        until, loop = self._next_sign(), self._agent_loop
        began = clock()
        while self._feeder.is_full(loop) and clock() < until:
            self._wait(loop.progress)
        self._metrics.backpressure += clock() - began

    def close(self, wait: bool = True) -> None:
        """End what runs left open.

        Args:
            wait: Return when it has ended, in bounded time.
        """
        if self._loop is not None:
            self._loop.close(wait)

    # -- keys with work ---------------------------------------------------------------

    def _read_head(self, key_text: str) -> Head | None:
        """The head of a key that has no actor; an actor has it at hand."""
        packed = self._state.head.value()
        if packed is None:
            return None
        head = Head.unpack(packed)
        journals = self._shared.journals
        if journals is not None:
            self._other_jobs.admit(head, key_text, journals.store_id)
        if head.store is not None:
            check_store(journals, head.store)
        return head

    def _new_head(self) -> Head:
        """The head of a key that has none."""
        return Head(self._job_id) if self._forgetting is None else self._forgetting.new_head(self._job_id)

    def _forget(self, key_text: str, timestamp: int, timers: Timers) -> None:
        """Remove the head of the current key, which has no actor, if nothing needs it any more."""
        if self._forgetting is not None and timestamp < START:
            head = self._read_head(key_text)
            if head is not None:
                self._forgetting.look(head, key_text, timers)

    def _actor(self, key_text: str, timers: Timers) -> KeyActor | None:
        """The actor of the current key, made anew after a restore; None where nothing waits."""
        actor = self._actors.get(key_text)
        if actor is None:
            head = self._read_head(key_text)
            if head is None or not head.has_pending:
                return None
            actor = self._wake(head, key_text, True, timers)
        self._check_failure()
        return actor

    # -- inputs that wait -------------------------------------------------------------

    def _enqueue(self, head: Head, key_text: str, record: Any, timestamp: int | None, timers: Timers) -> None:
        """Let an input of a key without an actor wait for its turn."""
        self._check_failure()
        self._wait_for_room()
        self._mark(head, key_text)
        pending = head.has_pending
        self._store(head, key_text, self._packed(record, timestamp), timestamp, timers)
        self._wake(head, key_text, pending, timers)

    def _store(self, head: Head, key_text: str, packed: bytes, timestamp: int | None, timers: Timers) -> None:
        """Put an encoded input into state; it stays there until its run is committed."""
        self._state.pending.put(head.next_pending, packed)
        if self._low is not None:
            self._low.stored(key_text, head.next_pending, timestamp)
        head.next_pending += 1
        self._state.head.update(head.pack())

    def _hand_over(
        self, head: Head, step: Invocation, record: Any, packed: bytes | None, timers: Timers
    ) -> None:
        """Let the loop go on with a run that began on this thread."""
        run = step.run
        try:
            packed = packed or self._packed(record, run.timestamp)
            self._check_failure()
            self._wait_for_room()
        except BaseException:
            step.let_go()
            raise
        # It began here since no attempt had recorded anything of the key.
        self._mark(head, run.key_text, unread=False)
        self._store(head, run.key_text, packed, run.timestamp, timers)
        # Reading all of a map is the dearest call of state; before its first run a key has no memory.
        memory = run.short_term.load(is_empty=head.next_seq == 0)
        actor = self._new_actor(head, run.key_text, memory, False, timers, unread=False)
        number = actor.loaded
        actor.loaded += 1
        actor.next_seq += 1
        self._agent_loop.submit(
            actor, Waiting(record, run.timestamp, number, packed, run.sequence_number, run, step)
        )

    def _wake(self, head: Head, key_text: str, pending: bool, timers: Timers) -> KeyActor:
        """An actor for a key that has none, but has inputs in state."""
        known: dict[str, bytes | None] = {unescape(path): data for path, data in self._state.memory.items()}
        actor = self._new_actor(head, key_text, known, pending, timers)
        if pending and self._low is not None:
            decode = self._shared.codec.decode
            self._low.found(
                key_text, ((number, decode(packed)[1]) for number, packed in self._state.pending.items())
            )
        self._feed(actor)
        if actor.order is Unread.UNREAD:
            self._agent_loop.read(actor)
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
        if unread and self._may_have_records(head, key_text, pending):
            actor.order = Unread.UNREAD
            if not head.fresh:
                self._prunable(actor, 0)
        if self._forgetting is not None:
            self._forgetting.busy(key_text)
        self._actors[key_text] = actor
        self._made(actor, timers)
        return actor

    def _made(self, actor: KeyActor, timers: Timers) -> None:
        """See that somebody looks at a new actor of the current key."""
        timers.register_event_time_timer(START)
        self._look_again(actor, None, timers)

    def _fed(self, actor: KeyActor, timers: Timers) -> None:
        """See that somebody looks in time at an actor that has one more input."""
        if actor.far and not actor.idle:
            self._look_again(actor, actor.timer, timers)

    def _feed(self, actor: KeyActor) -> None:
        """Hand to the actor what waits in state, as far as there is room."""
        self._feeder.feed(actor, self._agent_loop)

    def _packed(self, record: Any, timestamp: int | None) -> bytes:
        try:
            return self._shared.codec.encode([record, timestamp])
        except UnserializableValueError as error:
            raise _Refused(error) from error

    def _packed_early(self, record: Any, timestamp: int | None) -> bytes | None:
        """The encoded input of a run that may have a journal; else None, as where state cannot hold it.

        The journal has the input's digest, so that it is taken before an action changes the input in place.
        """
        if self._shared.journals is None or not any(
            one.may_be_recorded for one in self._shared.agent.actions
        ):
            return None
        try:
            return self._packed(record, timestamp)
        except _Refused:
            return None

    # -- commit -----------------------------------------------------------------------

    def _commit(self, actor: KeyActor, emission: Emission, timers: Timers) -> None:
        """Write what the actor finished, in order."""
        self._check_failure()
        if not actor.finished:
            return
        head = actor.head
        now = clock()
        while actor.finished:
            run, waiting, changes, _ = actor.finished.popleft()
            number = waiting.number
            run.state.commit(now)
            write_nodes(self._state.memory, changes)
            self._state.pending.remove(number)
            if self._low is None:
                emission.outputs += run.outputs
                emission.side_outputs += run.side_outputs
            else:
                self._low.commit(run, number, emission)
            actor.committed += 1
            head.finish(number, self._is_gone)
            if run.journal is not None and run.journal.begun and self._shared.journals is not None:
                head.store = self._shared.journals.store_id
                if run.journal.end is not None:
                    head.marker = run.journal.end
                actor.unpruned += 1
            if head.fresh:
                head.start(actor.begin)
            head.next_seq = max(head.next_seq, run.sequence_number + 1)
            if head.overtaken or waiting.overtakes:
                self._overtaken.committed(actor, run.sequence_number, waiting.overtakes)
        # What there was to be taken over is in the journal.
        head.forked()
        if self._forgetting is not None and not head.has_pending:
            self._forgetting.settled(head, timers)
        self._state.head.update(head.pack())
        if actor.unpruned and head.settled_through > actor.noted:
            self._prunable(actor, actor.unpruned)
            actor.unpruned = 0

    def _is_gone(self, number: int) -> bool:
        return self._state.pending.get(number) is None

    def _prunable(self, actor: KeyActor, runs: int) -> None:
        """Note that nobody but a restore will ask for the key's runs before those that are left."""
        journals, head = self._shared.journals, actor.head
        actor.noted = head.settled_through
        if journals is not None:
            journals.committed(head.journal_id, actor.key_text, actor.noted, runs)

    def _drain(self, actor: KeyActor, emission: Emission, timers: Timers) -> bool:
        """Wait for all runs of the key; whether they have ended before a stream behind needs a sign."""
        until = self._next_sign()
        while True:
            seen = self._agent_loop.progress
            self._commit(actor, emission, timers)
            if not actor.head.has_pending:
                return True
            self._feed(actor)
            if clock() >= until:
                return False
            self._wait(seen)

    def _next_sign(self) -> float:
        """Until when Flink's thread may wait in one call, by ``clock``."""
        return clock() + (math.inf if self._low is None else self._low.alive_seconds)

    def _is_held_back(self, key_text: str) -> bool:
        actor = self._actors.get(key_text)
        return actor is not None and actor.held is not None and actor.idle

    def _go_on(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """See that somebody looks at the actor again, or let go of it."""
        if actor.head.has_pending:
            self._look_again(actor, fired, timers)
        else:
            del self._actors[actor.key_text]
            timers.delete_event_time_timer(START)

    def _look_again(self, actor: KeyActor, fired: int | None, timers: Timers) -> None:
        """Keep one timer for the actor."""
        if actor.timer is None or actor.timer == fired:
            rest = self._agent_loop.replays.rest(actor) if actor.idle else None
            actor.far = rest is not None
            if rest is not None:
                actor.timer = self._clock() + int(rest * 1000) + 1
            else:
                actor.timer = next_look(self._clock(), self._agent_loop, actor, len(self._actors))
            timers.register_processing_time_timer(actor.timer)

    # -- Flink's thread and the loop --------------------------------------------------

    @property
    def _agent_loop(self) -> AgentLoop:
        if self._loop is None:
            self._loop = AgentLoop(self._shared, self._steps, self._clock, self._to_look_at)
        return self._loop

    def _wait_for_room(self) -> None:
        """Take no more as long as the loop has enough to do (backpressure)."""
        if self._loop is None or not self._feeder.is_full(self._loop):
            return
        began = clock()
        while self._feeder.is_full(self._loop):
            self._wait(self._loop.progress)
        self._metrics.backpressure += clock() - began

    def _wait(self, seen: int) -> None:
        self._agent_loop.wait_for_progress(seen, FLINK_SLICE_SECONDS)
        self._check_cancelled()
        self._check_failure()

    def _load(self) -> dict[str, int]:
        """How many runs are where; see ``RunMetrics.load``."""
        return load_of(list(self._actors.values()))

    def _check_failure(self) -> None:
        if self._loop is not None and self._loop.failure is not None:
            raise self._loop.failure

    def _may_have_records(self, head: Head, key_text: str, pending: bool) -> bool:
        journals = self._shared.journals
        if journals is None:
            return False
        known = bool(head.overtaken or head.origins)
        return known or journals.may_have(head.journal_id, key_text, head.marker, pending)

    def _mark(self, head: Head, key_text: str, unread: bool = True) -> None:
        """Note where records of a key can lie that has none, before the first run that may make some."""
        journals = self._shared.journals
        if journals is None or head.marker is not None or head.has_pending:
            return
        if not (unread and self._may_have_records(head, key_text, False)):
            head.marker = journals.marker(head.journal_id, key_text)

    def _new_run(self, head: Head, key_text: str, timestamp: int | None) -> Run:
        return Run(
            self._shared,
            head.journal_id,
            key_text,
            head.next_seq,
            timestamp,
            self._clock(),
            self._state.memory,
        )
