"""The agent loop: one asyncio loop in a thread of its own, which executes the runs of actors.

Flink's thread talks to it by :meth:`AgentLoop.submit` and reads what actors finished; nothing
here touches Flink. ``def`` actions of runs that are here are executed by a pool of threads, so
that none of them holds up the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from flink_agents.api.events import Event
from flink_agents.api.options import AgentOptions
from flink_agents.plan import BoundAction
from flink_agents.runtime.actor import KeyActor, Waiting
from flink_agents.runtime.context import Invocation
from flink_agents.runtime.run import Run
from flink_agents.runtime.shared import RunEnvironment
from flink_agents.runtime.steps import FAILURES, StepExecutor

_log = logging.getLogger("flink_agents.loop")

CLOSE_SECONDS = 5.0
"""How long the end of an attempt waits for actions that were cancelled."""


class AgentLoop:
    """See the module.

    Args:
        shared: What all runs share.
        steps: Executes steps.
        clock: The wall-clock time in milliseconds.

    Attributes:
        failure: The error that ends the attempt, or None.
        ended: Number of runs that ended.
        expected: How long a run takes here, in seconds: a moving average.
    """

    def __init__(self, shared: RunEnvironment, steps: StepExecutor, clock: Callable[[], int]) -> None:
        self._shared = shared
        self._steps = steps
        self._clock = clock
        self._slots = asyncio.Semaphore(shared.config.get(AgentOptions.MAX_IN_FLIGHT))
        self._pool = ThreadPoolExecutor(shared.config.get(AgentOptions.POOL_SIZE), "agent-pool")
        self._closing = False
        self._inbox: deque[KeyActor] = deque()
        self._woken = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress = threading.Condition()
        # Each is written by one thread only.
        self._submitted = 0
        self.ended = 0
        self.failure: BaseException | None = None
        self.expected = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="agent-loop", daemon=True)
        self._thread.start()

    # -- for Flink's thread -----------------------------------------------------------

    @property
    def load(self) -> int:
        """Number of runs that wait here or are executed."""
        return self._submitted - self.ended

    def age(self, actor: KeyActor) -> float:
        """Seconds since the present run of ``actor`` began."""
        return self._loop.time() - actor.begun

    def submit(self, actor: KeyActor, waiting: Waiting) -> None:
        """Let ``actor`` run one more input."""
        self._submitted += 1
        actor.queue.append(waiting)
        self._inbox.append(actor)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    def wait_for_progress(self, ended: int, seconds: float) -> bool:
        """Return True when more than ``ended`` runs have ended; False where they did not in time."""
        with self._progress:
            return self._progress.wait_for(lambda: self.ended > ended or self.failure is not None, seconds)

    def close(self, wait: bool = True) -> None:
        """Cancel all that runs; no step begins any more.

        Args:
            wait: Return when it ended, or after :data:`CLOSE_SECONDS`.
        """
        if not self._closing:
            self._closing = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._loop.call_soon_threadsafe(self._begin_stop)
        if wait:
            self._thread.join(CLOSE_SECONDS + 1.0)

    # -- the loop's thread ------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_task_factory(_make_task)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _begin_stop(self) -> None:
        _current.set(None)
        self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                _log.warning("an action did not end when it was cancelled: %r", task)
        self._loop.stop()

    def _drain(self) -> None:
        self._woken = False
        while self._inbox:
            actor = self._inbox.popleft()
            if not actor.running and actor.queue:
                actor.running = True
                task = self._loop.create_task(self._work(actor))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _work(self, actor: KeyActor) -> None:
        try:
            while actor.queue and self.failure is None:
                begun = actor.begun = self._loop.time()
                await self._execute(actor, actor.queue.popleft())
                took = self._loop.time() - begun
                self.expected += (took - self.expected) * (0.1 if self.ended else 1.0)
                self.ended += 1
                self._notify()
        except Exception as error:
            self.failure = self.failure or error
            self._notify()
        finally:
            actor.running = False

    def _notify(self) -> None:
        with self._progress:
            self._progress.notify_all()

    async def _execute(self, actor: KeyActor, waiting: Waiting) -> None:
        run, step = waiting.run, waiting.step
        if run is None:
            run = Run(
                self._shared,
                actor.journal_id,
                actor.key_text,
                actor.next_seq,
                waiting.timestamp,
                self._clock(),
                None,
                actor.memory,
            )
            self._steps.begin(run, waiting.record)
        actor.next_seq = run.sequence_number + 1
        if step is not None:
            await self._finish(step)
        for action, event in run.steps:
            await self._finish(self._begin(run, action, event))
        actor.finish(run)

    def _begin(self, run: Run, action: BoundAction, event: Event) -> Invocation:
        return Invocation(self._shared, run, action, event)

    async def _finish(self, step: Invocation) -> None:
        """Execute a step, or the rest of one that Flink's thread began."""
        try:
            async with self._slots:
                if step.awaited is None:
                    await self._call(step)
                if step.awaited is not None:
                    _current.set(step)
                    await self._steps.wait(step)
        except FAILURES as error:
            if self._closing and isinstance(error, asyncio.CancelledError):
                raise
            self._steps.fail(step, error)
        else:
            self._steps.succeed(step)
        finally:
            if step.tasks is not None:
                await _end_tasks(step.tasks)

    async def _call(self, step: Invocation) -> None:
        if step.action.is_async:
            # This makes the coroutine; none of the author's code runs yet.
            self._steps.call(step)
        else:
            await self._loop.run_in_executor(self._pool, self._call_in_pool, step)

    def _call_in_pool(self, step: Invocation) -> None:
        step.adopt()
        self._steps.call(step)


_current: ContextVar[Invocation | None] = ContextVar("step", default=None)
"""The step whose code runs; tasks that it makes inherit it."""


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    step = _current.get()
    if step is not None:
        if step.tasks is None:
            step.tasks = []
        step.tasks.append(task)
    return task


async def _end_tasks(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that an action left behind, and wait for their end."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLOSE_SECONDS)
