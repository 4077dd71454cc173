"""The steps of an attempt that only the event loop has: it may wait there.

These are a limit, a slot, a thread, a deadline, and the record of its end. Tasks that the code of an action
starts end with the attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from threading import get_ident
from typing import Any, NoReturn

from typing_extensions import override

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.current import in_context, is_closing
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.durable import OnMismatch
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS, is_close
from flink_agents.runtime.concurrency.threads import WorkerPool
from flink_agents.runtime.concurrency.timeouts import Deadline, thread_wait, within
from flink_agents.runtime.execution.action_run import ActionRun, current_step, journal_of
from flink_agents.runtime.execution.calls.delivery import current_delivery
from flink_agents.runtime.execution.calls.durable_calls import DurableCalls
from flink_agents.runtime.execution.calls.mismatches import mismatch_error
from flink_agents.runtime.execution.calls.pending import TimedCode
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.executor import RunExecutor
from flink_agents.runtime.execution.failures import ENDS
from flink_agents.runtime.execution.limits import Limiter, RunSuspended, Slot, Slots
from flink_agents.runtime.execution.retry import RetryState, resumed_attempt
from flink_agents.runtime.execution.sub_agents.sub_agent_run import root_of
from flink_agents.runtime.execution.waits.swallowed import failure_of
from flink_agents.runtime.metrics.run_metrics import clock

_log = bounded_logger("flink_agents.loop")


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end, for at most ``CANCEL_SECONDS``. Tasks that remain are logged."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in late:
            _log.warning("a task did not end when it was cancelled: %r", task)


class LoopExecutor(RunExecutor):
    """Executes runs on the event loop.

    Args:
        shared: The agent's shared objects.
        slots: The slots of ``run.max-in-flight``.
        pool: Threads for ``def`` actions.
        durable: Makes durable calls, and records the ends of executions.
        is_over: Returns True if the task attempt has ended, so that nothing can be awaited any longer.
    """

    may_wait = True

    def __init__(
        self,
        shared: RunEnvironment,
        slots: Slots,
        pool: WorkerPool,
        durable: DurableCalls,
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__(shared)
        self._limits = shared.services.limits
        self.slots = slots
        self.pool = pool
        self.durable = durable
        self.is_over = is_over

    @override
    async def _is_replayed(self, step: ActionRun) -> bool:
        """Prepare an attempt on the event loop; returns True if a record has its effects."""
        journal = step.run.journal
        if journal is not None and journal.replayed and self.replay(step):
            return True
        if step.retry_state is not None and step.retry_state.delay:
            await self.pause(step)
        if journal is not None:
            # An exception from here is not a failure of the action.
            self.durable.begin(step)
        return False

    def replay(self, step: ActionRun) -> bool:
        """Take the effects of a step from its record; returns True if there is one."""
        record = journal_of(step).step(step.path).action
        if record is not None:
            self.durable.replay(step, record)
            step.succeed()
        return record is not None

    async def pause(self, step: ActionRun) -> None:
        """Wait for the seconds that the retry policy sets before an attempt."""
        assert step.retry_state is not None
        state = step.run.state
        state.action_run = step
        step.thread = get_ident()
        with state.waiting(Phase.RETRY, f"a pause before attempt {len(step.retry_state.failed) + 1}"):
            await step.shared.pause(step.retry_state.delay)
        # The average duration of runs, which decides when to wake, does not include pauses.
        state.begun += step.retry_state.delay

    @override
    def _take_turn(self, step: ActionRun) -> Awaitable[None] | None:
        """Give an attempt on the event loop a slot; returns an awaitable if it has to wait for that."""
        state = step.run.state
        if state.ended_by is not None:
            # Its code caught the cancellation and continued.
            raise state.ended_by
        # The watchdog and requests find the execution here.
        state.action_run = step
        step.thread = get_ident()
        if (waits := step.run.waits) is not None and step.retry_state is None:
            step.retry_state = resumed_attempt(waits.failed.get(step.path, ()), step.shared.seconds())
        limiter = self._limits.of_action(step.action)
        if limiter is None and self.slots.take_now():
            step.slot = Slot(self.slots, state, None, True)
            return None
        return self._wait_for_turn(step, limiter)

    async def _wait_for_turn(self, step: ActionRun, limiter: Limiter | None) -> None:
        """Wait for the limits of the action, and for a slot."""
        state = step.run.state
        if limiter is not None:
            # The limit first, then the slot. An execution with a slot never waits for a limit.
            await limiter.acquire(state)
        slot = Slot(self.slots, state, limiter)
        if not slot.take_now():
            await slot.take_slot()
        step.slot = slot

    @override
    async def _end_suspended(self, step: ActionRun, raised: BaseException | None) -> NoReturn:
        """End an attempt whose run is suspended.

        Args:
            step: The attempt.
            raised: The exception that its code raised, or None.

        Raises:
            RunSuspended: Its code let the cancellation pass.
            ContextMisuseError: Its code swallowed the cancellation again and again.
        """
        failure: BaseException | None = None
        try:
            if raised is not None:
                if self.is_over():
                    raise raised
                failure = failure_of(step, raised)
            if (ending := self.durable.finish(step)) is not None:
                await ending
            raise failure or failure_of(step) or RunSuspended(step)
        finally:
            del raised, failure

    @override
    async def end_failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """End an attempt that raised; returns the next one, or None if the run continues without one."""
        self._end_at_once(step, error)
        durable = self.durable
        if (ending := durable.finish(step)) is not None:
            await ending
        if (ended_by := step.run.state.ended_by) is not None:
            step.end()
            step.abandon()
            raise ended_by
        if step.calls is None:
            return self.failed(step, error)
        mismatch = step.calls.mismatch
        if mismatch is None:
            side_output_count = len(step.run.side_outputs)
            following = self.failed(step, error)
            if following is None:
                await durable.end_failed(step, step.run.side_outputs[side_output_count:])
            return following
        if durable.on_mismatch is OnMismatch.RERUN:
            await durable.void(step)
            return self.restart(step)
        self.mismatched(step, mismatch_error(step, mismatch), durable.on_mismatch)
        return None

    @override
    async def end_tasks(self, step: ActionRun) -> None:
        """Cancel the tasks that an attempt left running, and wait for their end."""
        tasks = step.tasks or []
        step.tasks = None
        await cancel_tasks([task for task in tasks if not task.done()])

    def _end_at_once(self, step: ActionRun, error: BaseException) -> None:
        """Raise if no policy applies to an error: the attempt of the job ends, or the program does.

        Raises:
            asyncio.CancelledError: The attempt of the job ends.
            ActionFailedError: The error is an exit of the program, or closes this coroutine.
        """
        if self.is_over():
            # At the end of the task attempt, no error counts as a failure of the action.
            step.end()
            step.abandon()
            raise error if is_close(error) else asyncio.CancelledError from error
        is_closing_exit = isinstance(error, GeneratorExit) and (
            is_close(error) or (step.variables is not None and step.variables.get(is_closing))
        )
        if is_closing_exit or isinstance(error, ENDS):
            # It closes this coroutine, in which nothing can follow, or no policy handles it.
            self.fail_whole_job(step, error)

    @override
    def _in_time(self, step: ActionRun, deadline: float) -> Awaitable[None]:
        """Await the result of an action, until a time by the clock of its attempt."""
        remaining_seconds = max(0.0, deadline - clock() - self._ran_before(step))
        return within(Deadline.for_action(step.action), self._await_code(step), remaining_seconds)

    def _ran_before(self, step: ActionRun) -> float:
        """Return the seconds for which an attempt that resumes has run before its run was suspended."""
        ran = step.retry_state.ran if step.retry_state is not None else None
        return 0.0 if ran is None else ran.get("", 0.0)

    def _limit_time(self, step: ActionRun, path: str, name: str) -> None:
        """Let durable waits of an attempt not count towards its timeout.

        Args:
            step: The attempt.
            path: The path of a sub-agent's action; empty for an action of the job's agent.
            name: The name of the attempt in state.
        """
        delivery = step.delivery
        wait = thread_wait.get()
        if delivery is not None and wait is not None:
            # If the run is suspended, the root keeps how long its attempts with timeouts ran.
            root = root_of(step)
            root.retry_state = root.retry_state or RetryState()
            timed = TimedCode(path, name, wait, self._ran_before(step))
            delivery.deadlines = (*delivery.deadlines, timed)

    @override
    async def _await_code(self, step: ActionRun) -> None:
        """Await the result of the action, as its code: in its context, with its tasks and outcomes."""
        variables = step.variables
        assert variables is not None
        # The watchdog finds it in the context of the task. Tasks that the code starts inherit it from that of
        # the code, so that they can be cancelled at the end.
        current_step.set(step)
        if (wait := thread_wait.get()) is not None:
            # The deadline does not count the time that its calls wait for a thread.
            variables.run(thread_wait.set, wait)
        step.task = asyncio.current_task(self.durable.in_flight.bridge.loop)
        variables.run(self.durable.enter, step)
        if step.action.settings.timeout is not None:
            self._limit_time(step, "", "")
        try:
            while step.awaited is not None:
                result = await in_context(variables, self.take_code(step))
                variables.run(self.emit_result, step, result)
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

    @override
    async def _call_in_thread(self, step: ActionRun, variables: Context) -> None:
        """Call a ``def`` action in a thread of the pool.

        If it has a timeout, it gets a copy of the memory: the thread may outlive the attempt.
        """
        if step.action.settings.timeout is None:
            return await self._in_pool(step, variables, None)
        run = step.run
        step.run = run.fork()
        try:
            await self._in_pool(step, variables, Deadline.for_action(step.action))
            # Only if the thread ended in time. Otherwise it may still write to its copy.
            run.adopt(step.run)
        except BaseException:
            step.end()
            raise
        finally:
            step.run = run

    async def _in_pool(self, step: ActionRun, variables: Context, deadline: Deadline | None) -> None:
        """Call the action in a thread of the pool; wait until it ends, or ``deadline`` expires."""
        state = step.run.state

        def call() -> None:
            # In the pool's thread: the wait for a thread is over.
            state.end_wait(wait)
            step.thread = get_ident()
            variables.run(self.call, step)
            if step.has_ended:
                # The attempt has ended, for example by a timeout.
                step.abandon()

        with state.waiting(Phase.THREAD, "a thread of the pool") as wait:
            if deadline is None:
                await self.pool.run(call)
            else:
                await self.pool.run_within(call, deadline)
        step.thread = get_ident()
