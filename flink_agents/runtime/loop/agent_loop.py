"""The agent loop: one asyncio loop in a thread of its own, which executes the runs of actors.

Flink's thread talks to it by :meth:`AgentLoop.submit` and reads what actors finished; nothing
here touches Flink. ``def`` actions of runs that are here are executed by a pool of threads, so
that none of them holds up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent import futures
from contextvars import Context
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

from flink_agents.api.durable import OnMismatch
from flink_agents.api.logs import bounded_logger
from flink_agents.api.options import AgentOptions
from flink_agents.runtime.concurrency import clients
from flink_agents.runtime.concurrency.outcomes import is_close
from flink_agents.runtime.concurrency.timeouts import Deadline, LoopThreads, WorkerPool, within
from flink_agents.runtime.durable.call_values import mismatch_error
from flink_agents.runtime.durable.durable_calls import DurableCalls
from flink_agents.runtime.execution.context import Invocation
from flink_agents.runtime.execution.delivery import current_delivery
from flink_agents.runtime.execution.limits import Place, RuntimeSignal, Slots
from flink_agents.runtime.execution.retry import Trial
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.steps import ENDS, FAILURES, StepExecutor
from flink_agents.runtime.journal.other_jobs import identity_of
from flink_agents.runtime.loop.action_loop import ActionLoop
from flink_agents.runtime.loop.action_tasks import CLOSE_SECONDS, cancel_tasks, current_step, make_task
from flink_agents.runtime.loop.actor import KeyActor, Unread, Waiting, cancelled_itself
from flink_agents.runtime.loop.garbage import collect_garbage_less_often
from flink_agents.runtime.loop.replays import Replays
from flink_agents.runtime.loop.watch import Watch
from flink_agents.runtime.metrics.run_metrics import clock

_log = bounded_logger("flink_agents.loop")

T = TypeVar("T")

PAUSE_SECONDS = 0.003
"""As long as inputs come, new runs are started once in so many seconds."""

SLICE_SECONDS = 0.05
"""How often Flink's thread looks whether it was cancelled while the store is opened."""


class AgentLoop:
    """See the module.

    Args:
        shared: What all runs share.
        steps: Executes steps.
        clock: The wall-clock time in milliseconds.
        to_look_at: Gets the actors that Flink's thread is to look at; None where it looks at all.

    Attributes:
        failure: The error that ends the attempt, or None.
        ended: Number of runs that ended.
        progress: Grows with each run that ends, and wherever Flink's thread is to look at an actor.
        replays: Chooses what runs next where runs were recorded.
        expected: How long a run takes here, in seconds: a moving average.
        deviation: How far runs are from that, in seconds: a moving average.
    """

    def __init__(
        self,
        shared: RunEnvironment,
        steps: StepExecutor,
        clock: Callable[[], int],
        to_look_at: deque[KeyActor] | None = None,
    ) -> None:
        self._shared = shared
        self._to_look_at = to_look_at
        self._steps = steps
        self._clock = clock
        self._slots = Slots(shared.config.get(AgentOptions.MAX_IN_FLIGHT))
        self._pool = WorkerPool(shared.config.get(AgentOptions.POOL_SIZE))
        self._closing = False
        self._stopped = False
        self._inbox: deque[KeyActor] = deque()
        self._woken = False
        self._tasks: dict[asyncio.Task[None], KeyActor] = {}
        self._progress = threading.Condition()
        # Each is written by one thread only.
        self._submitted = self._asked = 0
        self._pulled = self._read = 0
        self._begun = 0
        self.ended = self.progress = 0
        self.failure: BaseException | None = None
        self.expected = 0.0
        self.deviation = 0.0
        self._durations = shared.run_metrics.on_loop
        collect_garbage_less_often()
        # Where nothing can be recorded, no order of outcomes has to be kept.
        self._loop = ActionLoop() if shared.journals is not None else asyncio.new_event_loop()
        self._loop.set_default_executor(LoopThreads())
        self._durable: DurableCalls | None = None
        if shared.journals is not None:
            on_mismatch = OnMismatch(shared.config.get(AgentOptions.ON_MISMATCH))
            self._durable = DurableCalls(
                shared, self._loop, self._pool, self._fail, lambda: self._closing, on_mismatch
            )
            shared.register_durable(self._durable)
        self.replays = Replays(shared, self._loop, self._begin)
        self._watch = Watch(shared, self._loop, self._tasks, current_step)
        self._thread = threading.Thread(target=self._serve, name="agent-loop", daemon=True)
        self._thread.start()

    # -- for Flink's thread -----------------------------------------------------------

    @property
    def load(self) -> int:
        """Number of runs that wait here or are executed, and of keys whose records are read."""
        return self._submitted + self._pulled - self.ended + self._asked - self._read

    @property
    def in_flight(self) -> int:
        """Number of runs that are executed."""
        return self._begun - self.ended

    def age(self, actor: KeyActor) -> float:
        """Seconds since the present run of ``actor`` began."""
        return monotonic() - actor.begun

    def submit(self, actor: KeyActor, waiting: Waiting) -> None:
        """Let ``actor`` run one more input."""
        self._submitted += 1
        actor.submitted += 1
        actor.queue.append(waiting)
        self._wake_for(actor)

    def read(self, actor: KeyActor) -> None:
        """Let ``actor`` learn what was recorded of its key."""
        self._asked += 1
        self._wake_for(actor)

    def ask(self, question: Coroutine[Any, Any, T]) -> futures.Future[T]:
        """The answer to ``question``, which this loop finds; it is cancelled where the loop has ended."""
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:
            question.close()
            unasked: futures.Future[T] = futures.Future()
            unasked.cancel()
            return unasked

    def _wake_for(self, actor: KeyActor) -> None:
        self._inbox.append(actor)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    def open_store(self, check_cancelled: Callable[[], None]) -> None:
        """Open the store of durable calls; returns when no other attempt can append any more.

        Raises:
            StoreError: It cannot be opened.
        """
        journals = self._shared.journals
        if journals is None:
            return
        opening = asyncio.run_coroutine_threadsafe(journals.open(), self._loop)
        # Not by the time-out of result(): the store may raise such an error itself.
        while not futures.wait([opening], SLICE_SECONDS).done:
            check_cancelled()
        opening.result()

    def end_of_input(self) -> None:
        """Say that no further input comes, so that nobody waits for one."""
        if self._shared.journals is not None and not self.replays.no_more_input:
            self.replays.no_more_input = True
            self._loop.call_soon_threadsafe(self.replays.end_of_input)

    def wait_for_progress(self, seen: int, seconds: float) -> bool:
        """Return True when there is more ``progress`` than was seen; False where there is not in time."""
        with self._progress:
            return self._progress.wait_for(lambda: self.progress > seen or self.failure is not None, seconds)

    def held_back(self) -> str:
        """See :meth:`Replays.held_back`."""
        return self.replays.held_back()

    def close(self, wait: bool = True) -> None:
        """Cancel all that runs; no step begins any more.

        Args:
            wait: Return when it ended, or after a bounded time.
        """
        if not self._closing:
            self._closing = True
            self._pool.close()
            self._shared.limits.close()
            # The collector of cycles may call this in code of an action, to whose order it does not belong.
            self._loop.call_soon_threadsafe(self._begin_stop, context=Context())
        if wait:
            grace: timedelta = self._shared.config.get(AgentOptions.GRACE)
            self._thread.join(grace.total_seconds() + 2 * CLOSE_SECONDS + clients.CLOSE_SECONDS)
            self._pool.join(CLOSE_SECONDS)

    # -- the loop's thread ------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_task_factory(make_task)
        self._shared.limits.open(self._loop, threading.get_ident())
        self._shared.clients.open(self._loop)
        self._watch.open()
        if self._durable is not None:
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
        """End the runs, then the clients that they use, then what is left."""
        actors = [*self._tasks.values(), *self._inbox]
        if self._durable is not None:
            await self._drain_calls(self._durable)
        await cancel_tasks(self._tasks)
        for actor in actors:
            actor.abandon()
        await self._shared.clients.close()
        await self._shared.close_resources()
        await self._close_store()
        await cancel_tasks(asyncio.all_tasks(self._loop) - {asyncio.current_task()})
        self._stopped = True
        self._loop.stop()

    async def _drain_calls(self, durable: DurableCalls) -> None:
        """Cancel all runs, but let their calls end; a run that makes one by itself is cancelled behind it."""
        drained = self._loop.create_task(durable.drain())
        keys = durable.in_flight.keys
        await cancel_tasks([task for task, actor in self._tasks.items() if actor.key_text not in keys])
        await drained

    async def _close_store(self) -> None:
        """Close the store, in bounded time; what it raises must not keep the loop from its end."""
        if self._shared.journals is None:
            return
        try:
            await asyncio.wait_for(self._shared.journals.close(), CLOSE_SECONDS)
        except (Exception, asyncio.CancelledError):
            _log.exception("the store of durable calls could not be closed")

    def _drain(self) -> None:
        """Start what was submitted: the first at once, what comes soon behind it together.

        Each wake of the loop costs Flink's thread the interpreter lock, and both what lies in the
        cache of their processor.
        """
        if self._closing:
            # What waits is abandoned.
            return
        self._watch.wake()
        if not self._inbox:
            # What is submitted meanwhile is found below.
            self._woken = False
        while self._inbox:
            actor = self._inbox.popleft()
            if not actor.running and (actor.queue or actor.order is Unread.UNREAD):
                self._begin(actor)
        if self._woken:
            self._loop.call_later(PAUSE_SECONDS, self._drain)

    def _begin(self, actor: KeyActor) -> None:
        actor.running = True
        task = self._loop.create_task(self._work(actor))
        self._tasks[task] = actor
        task.add_done_callback(self._tasks.pop)

    async def _work(self, actor: KeyActor) -> None:
        told = False
        try:
            if actor.order is Unread.UNREAD:
                actor.begun = actor.started = monotonic()
                await self.replays.read(actor)
                self._read += 1
            while self.failure is None and (actor.queue or self._pull(actor)):
                waiting = actor.queue.popleft()
                actor.seq = waiting.seq
                self._begun += 1
                begun = actor.begun = actor.started = monotonic()
                await self._execute(actor, waiting)
                took = monotonic() - begun
                if took >= self._watch.stuck_after:
                    self._watch.ended(actor, took)
                off = took - self.expected
                self.expected += off * (0.1 if self.ended else 1.0)
                self.deviation += (abs(off) - self.deviation) * (0.1 if self.ended else 0.0)
                self.ended += 1
                told = True
                self._notify(actor)
        except asyncio.CancelledError:
            if self._closing:
                raise
            self._fail(cancelled_itself(actor))
        except BaseException as error:
            self._fail(error)
        finally:
            actor.running = False
            if self.failure is not None:
                actor.abandon()
            if not told or actor.order is not None or self.failure is not None:
                # The end of a run has not told Flink's thread, or did before the actor was idle.
                self._notify(actor)

    def _pull(self, actor: KeyActor) -> bool:
        """Choose one more input that is in memory; whether there is one."""
        before = actor.pulled
        found = self.replays.pull(actor)
        self._pulled += actor.pulled - before
        return found

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._notify()

    def _notify(self, actor: KeyActor | None = None) -> None:
        if actor is not None and self._to_look_at is not None:
            self._to_look_at.append(actor)
        with self._progress:
            self.progress += 1
            self._progress.notify_all()

    async def _execute(self, actor: KeyActor, waiting: Waiting) -> None:
        run, step = waiting.run, waiting.step
        if run is None:
            run = Run(
                self._shared,
                actor.journal_id,
                actor.key_text,
                actor.seq,
                waiting.timestamp,
                self._clock(),
                None,
                actor.memory,
                waiting.ordered or actor.unrecorded,
                identity_of(waiting.records),
            )
            self._steps.begin(run, waiting.record)
        self.replays.attach(actor, run, waiting)
        if step is not None:
            await self._finish(actor, step)
        for action, event in run.steps:
            following = Invocation(self._shared, run, action, event)
            if not self._replayed(following):
                await self._finish(actor, following)
        self.replays.ended(actor, run, waiting)
        actor.finish(run, waiting)

    def _replayed(self, step: Invocation) -> bool:
        """Whether the whole of a step came from its record."""
        journal = step.run.journal
        if journal is None or not journal.replayed or self._durable is None:
            return False
        record = journal.step(step.path).action
        if record is not None:
            self._durable.replay(step, record, self._steps)
        return record is not None

    async def _finish(self, actor: KeyActor, step: Invocation | None) -> None:
        """Execute a step, or the rest of one that Flink's thread began, attempt by attempt."""
        while step is not None:
            if step.trial is None:
                step.trial = Trial()
            elif step.trial.delay:
                await asyncio.sleep(step.trial.delay)
                # How long a run takes here, and so when to look at it, is told without its pauses.
                actor.begun += step.trial.delay
            step = await self._attempt(step)

    async def _attempt(self, step: Invocation) -> Invocation | None:
        """Execute a step; returns its next attempt, or None."""
        durable = self._durable
        if durable is not None:
            durable.begin(step)
        limiter = self._shared.limits.of_action(step.action)
        try:
            if limiter is None:
                await self._in_place(step)
            else:
                async with limiter:
                    await self._in_place(step)
            if durable is not None:
                if (going_on := durable.finish(step)) is not None:
                    await going_on
                if step.calls is not None:
                    await durable.end(step)
        except RuntimeSignal:
            raise
        except FAILURES as error:
            self._end_at_once(step, error)
            if durable is not None and (going_on := durable.finish(step)) is not None:
                await going_on
            return await self._failed(step, error)
        else:
            self._steps.succeed(step)
            return None
        finally:
            if step.tasks is not None:
                await self._end_tasks(step)

    async def _end_tasks(self, step: Invocation) -> None:
        """Cancel the tasks that an execution left behind, and wait for their end."""
        tasks, step.tasks = step.tasks or [], None
        await cancel_tasks([task for task in tasks if not task.done()])

    def _end_at_once(self, step: Invocation, error: BaseException) -> None:
        """Raise where nothing can be awaited any more."""
        if self._closing or self.failure is not None:
            # Whatever it is: at the end of the attempt, no action has failed by itself.
            step.end()
            step.let_go()
            raise error if is_close(error) else asyncio.CancelledError from error
        if isinstance(error, ENDS):
            # It may close this coroutine. No policy passes it by.
            self._steps.failed(step, error)

    async def _failed(self, step: Invocation, error: BaseException) -> Invocation | None:
        """End an attempt that raised; returns the next one, or None where the run goes on without."""
        durable = self._durable
        if step.calls is None or durable is None:
            return self._steps.failed(step, error)
        mismatch = step.calls.mismatch
        if mismatch is None:
            before = len(step.run.side_outputs)
            following = self._steps.failed(step, error)
            if following is None:
                await durable.end_failed(step, step.run.side_outputs[before:])
            return following
        if durable.on_mismatch is OnMismatch.RERUN:
            await durable.void(step)
            return self._steps.anew(step)
        self._steps.refuse(step, mismatch_error(step, mismatch), durable.on_mismatch)
        return None

    async def _in_place(self, step: Invocation) -> None:
        """Call and await a step while it has a place among all that is executed."""
        timeout = step.action.settings.timeout
        assert step.trial is not None
        async with Place(self._slots) as step.trial.place:
            begun = clock()
            if step.awaited is None:
                await self._call(step)
            if step.awaited is not None:
                if timeout is None:
                    await self._wait(step)
                else:
                    rest = max(0.0, begun + timeout - clock())
                    await within(Deadline.of(step.action), self._wait(step), rest)
            self._durations[step.action.name].add(clock() - begun)

    async def _wait(self, step: Invocation) -> None:
        current_step.set(step)
        if self._durable is not None:
            self._durable.enter(step)
        try:
            await self._steps.wait(step)
        except BaseException as error:
            if step.delivery is not None and not isinstance(error, asyncio.CancelledError):
                # Its calls took effect, or will: they are not cancelled with what waits for them.
                step.delivery.failing = True
            raise
        finally:
            current_delivery.set(None)
            current_step.set(None)
            if step.tasks is not None:
                # While its outcomes are still delivered: their clean-up may wait for some.
                await self._end_tasks(step)

    async def _call(self, step: Invocation) -> None:
        if step.action.is_async:
            # This makes the coroutine; none of the author's code runs yet.
            self._steps.call(step)
        elif step.action.settings.timeout is None:
            await self._pool.run(lambda: self._call_in_pool(step))
        else:
            await self._call_within(step)

    def _call_in_pool(self, step: Invocation) -> None:
        step.adopt()
        self._steps.call(step)

    async def _call_within(self, step: Invocation) -> None:
        """Call a step in a thread that goes on where its time is over: with a memory of its own."""
        run = step.run
        step.run = run.fork()
        try:
            await self._pool.run_within(lambda: self._call_in_pool(step), Deadline.of(step.action))
            run.adopt(step.run)
        except BaseException:
            step.end()
            raise
        finally:
            step.run = run
