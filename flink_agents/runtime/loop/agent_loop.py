"""The agent loop: an asyncio loop in its own thread, which executes the runs of actors.

Flink's task thread calls :meth:`AgentLoop.submit` and reads the finished runs of actors. Nothing here touches
Flink. ``def`` actions run in a pool of threads, so that none of them blocks the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent import futures
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors.runs import RunEndedError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS, CLIENT_CLOSE_SECONDS, Bridge
from flink_agents.runtime.concurrency.threads import LoopThreads, WorkerPool
from flink_agents.runtime.execution.action_run import current_step
from flink_agents.runtime.execution.calls.durable_calls import DurableCalls
from flink_agents.runtime.execution.calls.in_flight import CallsInFlight
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import CHANGES, check_run
from flink_agents.runtime.execution.limits import RunSuspended, Slots
from flink_agents.runtime.execution.loop_executor import LoopExecutor, cancel_tasks
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.sub_agents.agents import SubAgents
from flink_agents.runtime.loop.action_loop import ActionLoop, make_task
from flink_agents.runtime.loop.actor import (
    KeyActor,
    KeyRecovery,
    QueuedInput,
    cancelled_itself,
    check_not_ended,
    clear_cancellations,
    end_if_executed,
)
from flink_agents.runtime.loop.replays import MAX_SHOWN, Replays
from flink_agents.runtime.loop.suspender import RunSuspender
from flink_agents.runtime.loop.watchdog import Watchdog
from flink_agents.runtime.metrics.run_metrics import clock

_log = bounded_logger("flink_agents.loop")

DEFAULT_THRESHOLDS = (700, 10, 10)
THRESHOLDS = (200_000, 20, 100)
"""When Python looks for cycles; see :func:`_collect_garbage_less_often`."""

T = TypeVar("T")

NEWEST_WEIGHT = 0.1
"""The weight of the newest duration in ``AgentLoop.expected``."""

PAUSE_SECONDS = 0.003
"""While inputs come, new runs start once in this interval."""


class AgentLoop:
    """Executes the runs of one subtask in a separate thread.

    Args:
        shared: The agent's shared objects.
        clock: Returns the wall-clock time in milliseconds.
        to_look_at: Receives the actors with news for Flink's task thread.

    Attributes:
        failure: The error that ends the attempt, or None.
        ended: Number of runs that ended.
        progress: Grows with each run that ends, and with other news for Flink's task thread.
        replays: Chooses the next run if runs were recorded.
        expected: The duration of a run here, in seconds: a moving average.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        clock: Callable[[], int],
        to_look_at: deque[KeyActor],
    ) -> None:
        self._shared = shared
        self._to_look_at = to_look_at
        self._interleaves = shared.interleaves
        self._plan = "" if shared.journals is None else shared.journals.plan
        self._clock = clock
        self._pool = WorkerPool(shared.config.get(AgentOptions.POOL_SIZE))
        self._stopped = False
        self._inbox: deque[KeyActor] = deque()
        self._woken = False
        self._tasks: dict[asyncio.Task[None], KeyActor] = {}
        # Each counter is written by one thread only, so it needs no lock.
        self._submitted = self._asked = self._pulled = self._read = self._begun = 0
        self.ended = self.progress = 0
        self.failure: BaseException | None = None
        self.expected = 0.0
        _collect_garbage_less_often()
        make_loop = shared.make_loop or (lambda _: ActionLoop())
        self._loop = make_loop(self)
        self._threads = LoopThreads(shared.config.get(AgentOptions.POOL_SIZE))
        self._loop.set_default_executor(self._threads)
        self._bridge = Bridge(self._loop, shared.seconds)
        self._durable = self._durable_calls()
        slots = Slots(shared.config.get(AgentOptions.MAX_IN_FLIGHT))
        self._executor = LoopExecutor(shared, slots, self._pool, self._durable, self._is_over)
        shared.services.sub_agents = SubAgents(shared, self._loop, self._executor)
        self.replays = Replays(shared, self._bridge, self._begin)
        self.suspender = RunSuspender(shared, self._bridge)
        self._watch = Watchdog(shared, self._loop, self._tasks, current_step)
        self._thread = threading.Thread(target=self._serve, name="agent-loop", daemon=True)
        self._thread.start()

    def _durable_calls(self) -> DurableCalls:
        shared = self._shared
        durable = DurableCalls(shared, CallsInFlight(shared, self._bridge, self._fail), self._pool)
        if shared.journals is not None:
            shared.services.register_durable(durable)
        return durable

    # -- for Flink's thread -----------------------------------------------------------

    @property
    def load(self) -> int:
        """Number of runs that wait here or are executed, and of keys whose records are read."""
        return self._submitted + self._pulled - self.ended + self._asked - self._read

    @property
    def in_flight(self) -> int:
        """Number of runs that have started here and not ended."""
        return self._begun - self.ended

    def age(self, actor: KeyActor) -> float:
        """Return the seconds since the present run of a key started."""
        state = actor.state
        return 0.0 if state is None else clock() - state.begun

    def submit(self, actor: KeyActor, waiting: QueuedInput) -> None:
        """Add one more input to the queue of ``actor``."""
        self._submitted += 1
        actor.submitted += 1
        actor.enqueue(waiting, self._shared.telemetry.observers)
        self._wake_for(actor)

    def read(self, actor: KeyActor) -> None:
        """Schedule the reading of the records of a key, on the loop."""
        self._asked += 1
        self._wake_for(actor)

    def withdraw(self, actor: KeyActor) -> None:
        """Remove the queued inputs of a key whose run was suspended."""
        journals = self._shared.journals
        chosen = actor.recovery is not None or any(waiting.records for waiting in actor.inbox)
        if journals is not None and actor.journal is not None and chosen:
            # Recorded runs are left. Their inputs are examined and chosen again after the resumption.
            journals.unmark_replayed(actor.journal.key)
        self._submitted -= len(actor.inbox)
        for waiting in actor.inbox:
            if waiting.state is not None:
                waiting.state.withdraw()
        actor.inbox.clear()

    def end_run(self, actor: KeyActor, seq: int) -> None:
        """End a run that a user wants to end. If it is not executed yet, it ends at its start."""
        self._bridge.hand(end_if_executed, self._tasks, actor, seq)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> futures.Future[T]:
        """Run a coroutine on the loop; return a future of its result, cancelled if the loop has ended."""
        return self._bridge.call_on_loop(coroutine)

    def _wake_for(self, actor: KeyActor) -> None:
        # Before the flag is read: the loop resets the flag, then empties the inbox. So no key is missed.
        self._inbox.append(actor)
        if not self._woken:
            self._woken = True
            self._bridge.hand(self._drain)

    def open_store(self, check_cancelled: Callable[[], None]) -> None:
        """Open the store of durable calls. Returns when no other attempt can append any longer.

        Raises:
            StoreError: It cannot be opened.
        """
        journals = self._shared.journals
        if journals is not None:
            self._bridge.answer(journals.open(), check_cancelled)

    def end_of_input(self) -> None:
        """Note that no further input comes, so that nothing waits for one."""
        self.suspender.end_of_input()
        if self._shared.journals is not None and not self.replays.no_more_input:
            self.replays.no_more_input = True
            self._bridge.hand(self.replays.end_of_input)

    def wait_for_progress(self, seen: int, seconds: float) -> bool:
        """Wait until ``progress`` is greater than ``seen``; False if that takes longer than ``seconds``."""
        return self._bridge.wait_for_progress(
            lambda: self.progress > seen or self.failure is not None, seconds
        )

    def held_back(self) -> str:
        """Return the runs that have not ended and the reasons, as text; empty if there are none."""
        now = clock()
        states = [actor.state for actor in list(self._tasks.values()) if actor.state is not None]
        shown = [state.describe(now) for state in states if state.in_flight or state.phase is Phase.RECORDS]
        if len(shown) > MAX_SHOWN:
            shown[MAX_SHOWN:] = [f"and so do {len(shown) - MAX_SHOWN} more runs"]
        in_flight = f"runs are in flight: {'; '.join(shown)}" if shown else ""
        return ". ".join(filter(None, (in_flight, self.replays.held_back())))

    def describe_runs(self) -> str:
        """Return action, key and stack of the runs in flight, as text."""
        return "\n".join(self._watch.describe_runs())

    def place_of_run(self) -> str | None:
        """Return your line at which the first run in flight waits, or None."""
        return self._watch.place_of_run()

    def close(self, wait: bool = True) -> None:
        """Cancel everything that runs. No step starts any longer.

        Args:
            wait: True to return when it has ended, or after a bounded time.
        """
        if not self._bridge.closed:
            # First: threads and calls check it before they start anything.
            self._bridge.closed = True
            # No further `def` action may start.
            self._pool.close()
            # The garbage collector may call this inside of an action, whose handles are counted.
            self._bridge.hand(self._begin_stop, context=Context())
        if wait:
            grace = self._shared.config.get(AgentOptions.SHUTDOWN_GRACE)
            self._thread.join(grace.total_seconds() + 2 * CANCEL_SECONDS + CLIENT_CLOSE_SECONDS)
            self._pool.join(CANCEL_SECONDS)
            self._threads.join(CANCEL_SECONDS)

    # -- the loop's thread ------------------------------------------------------------

    def _is_over(self) -> bool:
        return self._bridge.closed or self.failure is not None

    def _serve(self) -> None:
        """Run the loop: the body of its thread."""
        asyncio.set_event_loop(self._loop)
        self._loop.set_task_factory(make_task)
        # Before any run: limits, clients and durable calls belong to this thread.
        self._shared.services.limits.open(self._bridge, threading.get_ident())
        self._shared.services.clients.open(self._loop)
        self._watch.open()
        self._durable.open()
        try:
            while not self._stopped:
                # asyncio stops the loop for an exit that a task raised. It is that task's failure.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._watch.close()
            self._loop.close()

    def _begin_stop(self) -> None:
        current_step.set(None)
        self._watch.wake()
        self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        """End the runs, then the clients that they use, then everything else."""
        # Before tasks are cancelled, which removes them.
        keys = [*self._tasks.values(), *self._inbox]
        await self._drain_calls(self._durable)
        # Runs end before the clients that they use.
        await cancel_tasks(self._tasks)
        for actor in keys:
            actor.abandon()
        if self._shared.services.sub_agents is not None:
            await self._shared.services.sub_agents.close()
        await self._shared.services.clients.close()
        await self._shared.agent.close_resources(CLIENT_CLOSE_SECONDS)
        # After the runs: results of calls in flight were recorded until here.
        await self._close_store()
        await cancel_tasks(asyncio.all_tasks(self._loop) - {asyncio.current_task()})
        self._stopped = True
        self._loop.stop()

    async def _drain_calls(self, durable: DurableCalls) -> None:
        """Cancel all runs, but let their calls finish.

        A run that makes a call in its own task is cancelled later.
        """
        drained = self._loop.create_task(durable.in_flight.drain())
        keys = durable.in_flight.busy_keys
        await cancel_tasks([task for task, actor in self._tasks.items() if actor.key_text not in keys])
        await drained

    async def _close_store(self) -> None:
        """Close the store, in bounded time. An exception from it must not keep the loop from its end."""
        if self._shared.journals is None:
            return
        try:
            await asyncio.wait_for(self._shared.journals.close(), CANCEL_SECONDS)
        except (Exception, asyncio.CancelledError):
            _log.exception("the store of durable calls could not be closed")

    def _drain(self) -> None:
        """Start the runs that were submitted: the first at once, those that come soon after it together.

        Each wake of the loop costs Flink's task thread the interpreter lock, and both threads their processor
        cache.
        """
        if self._bridge.closed:
            # Queued runs are abandoned by `_stop`.
            return
        if not self._watch.is_awake():
            self._watch.wake()
        if not self._inbox:
            # Reset first: runs that are submitted from now on wake the loop again, or are found below.
            self._woken = False
        while self._inbox:
            actor = self._inbox.popleft()
            recovery = actor.recovery
            if not actor.running and (actor.inbox or (recovery is not None and recovery.order is None)):
                self._begin(actor)
        if self._woken:
            self._loop.call_later(PAUSE_SECONDS, self._drain)

    def _begin(self, actor: KeyActor) -> None:
        """Start a task that executes the inputs of a key, unless its last run is being suspended."""
        if actor.suspended is not None:
            # Later inputs wait for the suspended run. Flink's task thread has not stored it yet.
            return
        actor.running = True
        # The task belongs to no action, so the loop's factory is not needed.
        self._tasks[asyncio.Task(self._work(actor), loop=self._loop)] = actor

    async def _work(self, actor: KeyActor) -> None:
        """Execute the inputs of a key, one after the other, until none is left or one is suspended."""
        notified = False
        task = asyncio.current_task(self._loop)
        assert task is not None
        try:
            # Read once: Flink's task thread may end it.
            recovery = actor.recovery
            if recovery is not None and recovery.order is None:
                await self._read_records(actor, recovery)
            while self.failure is None and (
                actor.inbox or (actor.recovery is not None and self._pull(actor))
            ):
                waiting = actor.inbox.popleft()
                # Before the run starts: the watchdog names it.
                actor.seq = waiting.seq
                self._begun += 1
                started = clock()
                actor.state = state = waiting.state
                assert state is not None
                state.begin(started)
                notified = False
                # A run that started on Flink's task thread continues here.
                run = waiting.run or self._new_run(actor, waiting)
                try:
                    await self._execute(actor, run, waiting)
                except RunSuspended as suspended:
                    await self.suspender.suspend(actor, waiting, suspended)
                    self.ended += 1
                    break
                if waiting.suspension is not None:
                    self.suspender.settle(run, waiting.suspension)
                # Before the next run starts, which runs on the memory of this one.
                actor.finish(run, waiting)
                self._ended(actor, clock() - started)
                notified = True
                self._notify(actor)
        except asyncio.CancelledError:
            if self._bridge.closed:
                raise
            self._fail(cancelled_itself(actor.key_text))
        except BaseException as error:
            self._fail(error)
        finally:
            # First: a new task for the key may start as soon as none is running.
            self._tasks.pop(task, None)
            actor.running = False
            if actor.state is not None and not notified:
                # No effect on a run that was suspended: it is in a later phase.
                actor.state.fail()
            if self.failure is not None:
                actor.abandon()
            if not notified or actor.recovery is not None or self.failure is not None:
                # Flink's task thread was not notified, or it was before `running` was cleared.
                self._notify(actor)

    async def _read_records(self, actor: KeyActor, recovery: KeyRecovery) -> None:
        """Read the records of the key. The watchdog sees that as a phase of the next run."""
        observers = self._shared.telemetry.observers
        actor.state = RunState(actor.key_text, actor.next_seq, observers, Phase.RECORDS, clock())
        await self.replays.read(actor, recovery)
        actor.state = None
        self._read += 1

    async def _execute(self, actor: KeyActor, run: Run, waiting: QueuedInput) -> None:
        """Execute a run to its end. A run that the present code cannot continue ends as ``on_error`` says.

        Raises:
            RunSuspended: It is suspended.
        """
        state = run.state
        try:
            run.attach_waits = partial(self.suspender.attach_late, actor)
            actor.attach_journal(run, waiting, self._plan, self._shared.codec)
            if waiting.records or waiting.suspension is not None or self._interleaves:
                # After the journal, from which waits read the signals that the run took.
                self.suspender.attach(actor, run, waiting)
            # Before the actions start: a user wants to end this run.
            if actor.ends:
                check_not_ended(actor, run, waiting)
            if waiting.run is None:
                run.begin(waiting.record)
            if waiting.suspension is not None or (run.journal is not None and run.journal.replayed):
                check_run(run, waiting.suspension, self._shared)
            # From here on, a request to end the run cancels this task.
            state.executing = True
            await self._executor.execute(run)
            state.executing = False
            # Its code caught the cancellation and ended normally. It must not count as success.
            if state.ended_by is not None:
                raise state.ended_by
        except CHANGES as error:
            self._executor.give_up(run, waiting.record, error)
        except (RunEndedError, asyncio.CancelledError) as error:
            if self._bridge.closed or state.ended_by is None:
                raise
            # The cancellation was handled. The task continues with the next run.
            clear_cancellations()
            self._executor.end_run(run, waiting.record, state.ended_by, error)
        finally:
            state.executing = False

    def _ended(self, actor: KeyActor, took: float) -> None:
        """Count a run that has ended, and update the moving average."""
        if took >= self._watch.stuck_after:
            self._watch.ended(actor, took)
        if self.ended:
            self.expected += (took - self.expected) * NEWEST_WEIGHT
        else:
            self.expected = took
        self.ended += 1

    def _pull(self, actor: KeyActor) -> bool:
        """Choose one more input that is in memory; returns True if there is one."""
        previous_count = actor.pulled
        has_input = self.replays.pull(actor)
        self._pulled += actor.pulled - previous_count
        return has_input

    def _fail(self, error: BaseException) -> None:
        """End the attempt of the job, with the first error that comes here."""
        self.failure = self.failure or error
        self._notify()

    def _notify(self, actor: KeyActor | None = None) -> None:
        """Tell Flink's task thread that there are news, of a key if ``actor`` is given."""
        if actor is not None:
            self._to_look_at.append(actor)
        self.progress += 1
        # After the counter, which a waiting thread checks.
        self._bridge.notify()

    def _new_run(self, actor: KeyActor, waiting: QueuedInput) -> Run:
        """Create the run of an input. Flink's task thread may have started others."""
        return Run(
            self._shared,
            actor.journal_id,
            actor.key_text,
            waiting.run_seq,
            waiting.timestamp,
            self._clock(),
            None,
            actor.memory,
            waiting.ordered or actor.unrecorded or waiting.is_later_part,
            waiting.identity,
            waiting.state,
        )


def _collect_garbage_less_often() -> None:
    """Raise the thresholds of Python's garbage collector, unless they were changed already.

    It visits everything that waits again and again: with 20,000 calls in flight and its defaults, that took
    half of the loop's time (measured). A call that waits for its record is some eighty objects, so calls
    alone reach a lower first threshold: 50,000 took a tenth of the time.
    """
    if gc.get_threshold() == DEFAULT_THRESHOLDS:
        gc.set_threshold(*THRESHOLDS)
