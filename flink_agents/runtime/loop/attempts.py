"""Attempts of actions on the event loop: each has its limits, its slot, its thread and its deadline.

Tasks that the code of an action starts end with the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any, NoReturn, cast

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.current import current_action_run, in_context, is_closing, isolated
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnMismatch
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS
from flink_agents.runtime.concurrency.outcomes import is_close
from flink_agents.runtime.concurrency.threads import thread_wait
from flink_agents.runtime.concurrency.timeouts import Deadline, WorkerPool, within
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.execution_records import ExecutionRecords
from flink_agents.runtime.execution.calls.mismatches import mismatch_error
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import ENDS
from flink_agents.runtime.execution.limits import RunSuspended, Slot, Slots
from flink_agents.runtime.execution.outcomes.action_tasks import TimedCode
from flink_agents.runtime.execution.outcomes.delivery import current_delivery
from flink_agents.runtime.execution.retry import RetryState, resumed_attempt
from flink_agents.runtime.execution.steps import StepExecutor, notify_ended
from flink_agents.runtime.execution.sub_agents.sub_agent_run import root_of
from flink_agents.runtime.execution.waits.swallowed import failure_of
from flink_agents.runtime.loop.action_loop import make_action_task
from flink_agents.runtime.metrics.run_metrics import clock

_log = bounded_logger("flink_agents.loop")

current_step: ContextVar[ActionRun | None] = cast("Any", current_action_run)
"""The execution of the action whose code runs. Tasks that it starts inherit it."""


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Create a task, and add it to the execution of the action that has to end it."""
    task = make_action_task(loop, coroutine, **options)
    step = current_step.get()
    if step is not None:
        if step.delivery is not None and current_delivery.get() is None:
            # A durable function started it: it ends with that call.
            step.delivery.others.append(task)
            return task
        if step.tasks is None:
            step.tasks = []
        step.tasks.append(task)
    return task


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, for a bounded time."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in late:
            _log.warning("a task did not end when it was cancelled: %r", task)


class Attempts:
    """The strategy of the executor on the event loop, where an action may wait.

    Args:
        shared: The agent's shared objects.
        steps: The executor.
        slots: The slots of ``run.max-in-flight``.
        pool: Threads for ``def`` actions.
        durable: Makes durable calls; None if there is no store.
        is_over: Returns True if the task attempt has ended, so that nothing can be awaited any longer.
    """

    _notify = staticmethod(notify_ended)
    """Notifies observers of the ends of attempts."""

    def __init__(
        self,
        shared: RunEnvironment,
        steps: StepExecutor,
        slots: Slots,
        pool: WorkerPool,
        durable: ExecutionRecords | None,
        is_over: Callable[[], bool],
    ) -> None:
        self._limits = shared.services.limits
        self._observers = shared.telemetry.observers
        self._steps = steps
        self._slots = slots
        self._pool = pool
        self._durable = durable
        self._is_over = is_over

    def replayed(self, step: ActionRun) -> bool:
        """Take the effects of an action run from its record; returns True if there is one."""
        journal = step.run.journal
        if journal is None or not journal.replayed or self._durable is None:
            return False
        record = journal.step(step.path).action
        if record is not None:
            self._durable.replay(step, record, self._steps)
        return record is not None

    async def pause(self, step: ActionRun) -> None:
        """Wait until the attempt may start."""
        assert step.retry_state is not None
        state = step.run.state
        state.action_run = step
        step.adopt()
        with state.waiting(Phase.RETRY, f"a pause before attempt {len(step.retry_state.failed) + 1}"):
            await step.shared.pause(step.retry_state.delay)
        # The average duration of runs, which decides when to wake, does not include pauses.
        state.begun += step.retry_state.delay

    def begin(self, step: ActionRun) -> None:
        """Prepare the comparison of the calls of an action run with its records."""
        waits = step.run.waits
        if waits is not None and waits.parts is not None:
            waits.parts.begin(step.path)
        if self._durable is not None:
            self._durable.begin(step)

    def perform(self, step: ActionRun) -> Awaitable[None]:
        """Execute one attempt, and record its end if it made durable calls."""
        if (ended_by := step.run.state.ended_by) is not None:
            # Its code caught the cancellation and continued.
            raise ended_by
        # The watchdog and requests find the execution here.
        step.run.state.action_run = step
        step.adopt()
        if (waits := step.run.waits) is not None and step.retry_state is None:
            step.retry_state = resumed_attempt(waits.failed.get(step.path, ()), step.shared.seconds())
        return self._perform(step)

    async def _perform(self, step: ActionRun) -> None:
        """Execute an attempt.

        Raises:
            RunSuspended: The run is suspended, whatever its code did with the cancellation.
            ContextMisuseError: The code swallowed it again and again.
        """
        durable = self._durable
        state = step.run.state
        limiter = self._limits.of_action(step.action)
        failure: BaseException | None = None
        try:
            if limiter is not None:
                # The limit first, then the slot. An execution with a slot never waits for a limit.
                await limiter.acquire(state)
            slot = step.slot = Slot(self._slots, state)
            try:
                if not slot.take_now():
                    await slot.take()
                started = clock()
                if step.awaited is None:
                    await self._call(step)
                if step.awaited is not None:
                    unbounded = step.action.settings.timeout is None
                    await (self._wait(step) if unbounded else self._in_time(step, started))
                seconds = clock() - started
            finally:
                # In the reverse order of taking them.
                slot.end()
                if limiter is not None:
                    limiter.release()
            if durable is not None:
                # Before the end is recorded: a forgotten call must fail the action.
                durable.check_awaited(step)
                if (going_on := durable.finish(step)) is not None:
                    await going_on
                if step.calls is not None and step.suspended is None:
                    await durable.end(step)
            if step.suspended is None:
                # An end that is not in the journal is none: after a crash, the action ends again.
                self._notify(self._observers, step, seconds)
                return
        except BaseException as error:
            if step.suspended is None or self._is_over():
                raise
            failure = failure_of(step, error)
        try:
            await self._end_suspended(step, failure)
        finally:
            # Its traceback has this frame, which must not be part of a reference cycle.
            del failure

    async def _end_suspended(self, step: ActionRun, failure: BaseException | None) -> NoReturn:
        assert self._durable is not None
        if (going_on := self._durable.finish(step)) is not None:
            await going_on
        try:
            raise failure or failure_of(step) or RunSuspended(step)
        finally:
            del failure

    async def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """End an attempt that raised; returns the next one, or None if the run continues without one."""
        self._end_at_once(step, error)
        durable = self._durable
        if durable is not None and (going_on := durable.finish(step)) is not None:
            await going_on
        if (ended_by := step.run.state.ended_by) is not None:
            step.end()
            step.abandon()
            raise ended_by
        if step.calls is None or durable is None:
            return self._steps.failed(step, error)
        mismatch = step.calls.mismatch
        if mismatch is None:
            side_output_count = len(step.run.side_outputs)
            following = self._steps.failed(step, error)
            if following is None:
                await durable.end_failed(step, step.run.side_outputs[side_output_count:])
            return following
        if durable.on_mismatch is OnMismatch.RERUN:
            await durable.void(step)
            return self._steps.restart(step)
        self._steps.mismatched(step, mismatch_error(step, mismatch), durable.on_mismatch)
        return None

    async def end_tasks(self, step: ActionRun) -> None:
        """Cancel the tasks that an attempt left running, and wait for their end."""
        tasks = step.tasks or []
        step.tasks = None
        await cancel_tasks([task for task in tasks if not task.done()])

    def _end_at_once(self, step: ActionRun, error: BaseException) -> None:
        """Raise if nothing can be awaited any longer."""
        if self._is_over():
            # At the end of the task attempt, no error counts as a failure of the action.
            step.end()
            step.abandon()
            raise error if is_close(error) else asyncio.CancelledError from error
        is_closing_exit = isinstance(error, GeneratorExit) and (
            is_close(error) or (step.variables is not None and step.variables.get(is_closing))
        )
        if is_closing_exit or isinstance(error, ENDS):
            # It closes this coroutine, in which nothing can follow, or no policy handles it.
            self._steps.fail_whole_job(step, error)

    def _in_time(self, step: ActionRun, started: float) -> Awaitable[None]:
        """Await the result of an action that started at ``started``, until its timeout expires."""
        timeout = step.action.settings.timeout
        if timeout is None:
            return self._wait(step)
        remaining_seconds = max(0.0, started + timeout - clock() - self._ran_before(step))
        return within(Deadline.of(step.action), self._wait(step), remaining_seconds)

    def _ran_before(self, step: ActionRun) -> float:
        """Return the seconds for which an attempt that resumes has run before its run was suspended."""
        ran = step.retry_state.ran if step.retry_state is not None else None
        return 0.0 if ran is None else ran.get("", 0.0)

    def _limit_time(self, step: ActionRun, path: str, name: str) -> None:
        """Let durable waits of an attempt not count towards its timeout, if it has one."""
        delivery = step.delivery
        wait = thread_wait.get()
        if step.action.settings.timeout is not None and delivery is not None and wait is not None:
            # If the run is suspended, the root keeps how long its attempts with timeouts ran.
            root = root_of(step)
            root.retry_state = root.retry_state or RetryState()
            timed = TimedCode(path, name, wait, self._ran_before(step))
            delivery.deadlines = (*delivery.deadlines, timed)

    async def _wait(self, step: ActionRun) -> None:
        variables = step.variables
        assert variables is not None
        # The watchdog finds it in the context of the task. Tasks that the code starts inherit it from that of
        # the code, so that they can be cancelled at the end.
        current_step.set(step)
        variables.run(current_step.set, step)
        # The deadline does not count the time that its calls wait for a thread.
        variables.run(thread_wait.set, thread_wait.get())
        step.task = asyncio.current_task()
        if self._durable is not None:
            variables.run(self._durable.enter, step)
            self._limit_time(step, "", "")
        try:
            await in_context(variables, self._steps.wait(step))
        except BaseException as error:
            if step.delivery is not None and not isinstance(error, asyncio.CancelledError):
                # Its calls took effect, or will. They must be recorded, not cancelled.
                step.delivery.failing = True
            raise
        finally:
            current_delivery.set(None)
            current_step.set(None)
            step.task = None
            if step.tasks is not None:
                # Before the delivery ends: the clean-up of these tasks may wait for outcomes.
                await self.end_tasks(step)

    async def _call(self, step: ActionRun) -> None:
        step.variables = variables = isolated()
        if step.action.is_async:
            # This creates the coroutine. Of the user's code, only decorators may run yet.
            variables.run(self._steps.call, step)
        elif step.action.settings.timeout is None:
            await self._in_pool(step)
        else:
            await self._call_within(step)

    async def _in_pool(self, step: ActionRun, deadline: Deadline | None = None) -> None:
        state = step.run.state
        variables = step.variables
        assert variables is not None

        def call() -> None:
            # In the pool's thread: the wait for a thread is over.
            state.end_wait(wait)
            step.adopt()
            variables.run(self._steps.call, step)
            if step.has_ended:
                # The attempt has ended, for example by a timeout.
                step.abandon()

        with state.waiting(Phase.THREAD, "a thread of the pool") as wait:
            if deadline is None:
                await self._pool.run(call)
            else:
                await self._pool.run_within(call, deadline)
        step.adopt()

    async def _call_within(self, step: ActionRun) -> None:
        """Call an action in a thread with a copy of the memory. The thread may outlive a timeout."""
        run = step.run
        step.run = run.fork()
        try:
            await self._in_pool(step, Deadline.of(step.action))
            # Only if the thread ended in time. Otherwise it may still write to its copy.
            run.adopt(step.run)
        except BaseException:
            step.end()
            raise
        finally:
            step.run = run
