"""Executes the actions of a sub-agent as code of the action that called it.

Their attempts are those of other actions, at another place: they share the slot, the delivery and the journal
of the action of the job's agent. The end of each is an outcome of that action: see ``attempt_end``.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from typing import Any, NoReturn

from typing_extensions import override

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.policies import OnError
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.events import Event
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.bridge import CANCEL_SECONDS, Outcome, cancelled_from_outside
from flink_agents.runtime.concurrency.timeouts import thread_wait
from flink_agents.runtime.execution.action_run import ActionRun, current_step
from flink_agents.runtime.execution.calls.delivery import Delivery, current_delivery, outside
from flink_agents.runtime.execution.calls.pending import ActionTask
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import ENDS
from flink_agents.runtime.execution.limits import entered
from flink_agents.runtime.execution.loop_executor import LoopExecutor
from flink_agents.runtime.execution.retry import RetryState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.sub_agents.sub_agent_run import AttemptEnd, SubAgentRun, root_of, run_of
from flink_agents.runtime.metrics.run_metrics import clock


class SubAgentExecutor(LoopExecutor):
    """Executes the runs of a sub-agent.

    A failure is raised from the call of the sub-agent, so the calling action decides what follows.

    Args:
        shared: The shared objects of the sub-agent.
        caller: The executor of the job's agent.
    """

    emits_letters = False

    def __init__(self, shared: RunEnvironment, caller: LoopExecutor) -> None:
        super().__init__(shared, caller.slots, caller.pool, caller.durable, caller.is_over)

    async def answer(self, run: SubAgentRun, event: Event) -> list[Any]:
        """Execute a run to its end; returns the agent's outputs."""
        run.queue.append(event)
        try:
            await self.execute(run)
        finally:
            # It refers to the run: each call would leave a cycle.
            run.attempt_end = None
        return run.outputs

    # -- attempts ---------------------------------------------------------------------

    @override
    async def pause(self, step: ActionRun) -> None:
        """Wait until the next attempt may start. The end of the pause is an outcome of the calling action.

        So other outcomes come meanwhile, and a replay does not wait again.
        """
        assert step.retry_state is not None
        text = f"a pause before attempt {len(step.retry_state.failed) + 1}"
        with step.run.state.waiting(Phase.RETRY, text):
            await step.shared.pause(step.retry_state.delay)

    @override
    async def perform(self, step: ActionRun) -> float | None:
        """Execute an attempt within its limits. A wait for these is an outcome of the calling action."""
        root = root_of(step)
        root.guard()
        if step.action.off_thread:
            raise _needs_thread(step)
        step.delivery = root.delivery
        step.thread = get_ident()
        limiter = self._limits.of_action(step.action)
        # It has the slot of the calling action.
        async with entered(limiter, root.require_slot()) if limiter is not None else nullcontext():
            if root.delivery is None:
                await self._perform_unrecorded(step)
            else:
                await self._perform_in_order(step, root, root.delivery)
        run = run_of(step)
        for event in step.sent if run.traced else ():
            content = {name: getattr(event, name) for name in type(event).model_fields}
            run.note(step, "event", event.event_type, content)

    async def _perform_unrecorded(self, step: ActionRun) -> None:
        """Execute an attempt in a run that has no records."""
        task = asyncio.Task(
            self._execute_attempt(step, None), loop=asyncio.get_running_loop(), context=_outside_of_steps()
        )
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        task.result().result()

    async def _perform_in_order(self, step: ActionRun, root: ActionRun, delivery: Delivery) -> None:
        """Execute an attempt whose end is an outcome of the action of the job's agent."""
        run = run_of(step)
        if step.retry_state is None:
            run.attempt_end = None
        path = run.next_path() if run.attempt_end is None else run.attempt_end.path
        if not delivery.counted:
            delivery.count(asyncio.get_running_loop())
        end = run.attempt_end = AttemptEnd(root, delivery, path, run.outer)
        end.start(partial(self._execute_attempt, step, end))
        delivery.expect(end)
        try:
            await end.future
        except asyncio.CancelledError:
            await end.cancel(step.tasks or ())
            raise
        performed = end.result()
        step.sent = performed.sent
        step.side = performed.side

    async def _execute_attempt(self, step: ActionRun, end: AttemptEnd | None) -> Outcome:
        """Execute an attempt; returns the execution that succeeded, or its error.

        If the attempt continued according to the records, the replay has to continue as well. Its code may
        fail for reasons that are not recorded, as that of other actions may, so it is tried again.
        """
        current_step.set(None)
        replay_failures: RetryState | None = None
        while True:
            try:
                await self._execute_code(step)
            except BaseException as error:
                if cancelled_from_outside(error):
                    raise
                if self.is_over():
                    # At the end of the task attempt, no error counts as a failure of the action.
                    raise asyncio.CancelledError from error
                if end is None or not end.has_to_continue or self._is_mismatched(step):
                    return Outcome(error=error)
                try:
                    following = self._replay_again(step, error, replay_failures)
                except BaseException as last:
                    return Outcome(error=last)
                if following is None:
                    return Outcome(error=error)
                step, replay_failures = following
                # The code that has ended is no longer what the attempt waits for.
                end.future.inner = None
                if replay_failures.delay:
                    await step.shared.pause(replay_failures.delay)
                end.restart()
            else:
                return Outcome(step)

    def _replay_again(
        self, step: ActionRun, error: BaseException, failures: RetryState | None
    ) -> tuple[ActionRun, RetryState] | None:
        """Return the next execution of an attempt whose replay raised, and its failures; None for no other.

        Replays that fail do not count as attempts: the one that they repeat may be the last that is allowed.
        """
        attempt = step.retry_state
        step.retry_state = failures
        following = self.failed(step, error)
        if following is None:
            return None
        failures = following.retry_state
        assert failures is not None
        following.retry_state = attempt
        following.delivery = step.delivery
        return following, failures

    async def _execute_code(self, step: ActionRun) -> None:
        """Execute an attempt in the slot of the calling action, within its timeout if it has one."""
        step.variables = copy_context()
        step.slot = root_of(step).require_slot()
        timeout = step.action.settings.timeout
        await (self._await_code(step) if timeout is None else self._in_time(step, clock() + timeout))

    @override
    async def _await_code(self, step: ActionRun) -> None:
        if step.has_ended:
            # The call was cancelled before the code has started.
            raise asyncio.CancelledError
        task = self._start_code(step)
        step.task = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)
            raise
        finally:
            step.task = None
            await self._end_attempt(step, task)
        task.result().result()

    def _start_code(self, step: ActionRun) -> asyncio.Task[Outcome]:
        """Start the user's code in a task, and return that.

        If outcomes of the calling action are delivered in order, the task is one of that action, and its own
        outcomes have their places in the same order.
        """
        loop = asyncio.get_running_loop()
        variables = step.variables
        delivery = step.delivery
        assert variables is not None
        variables.run(current_step.set, step)
        variables.run(thread_wait.set, thread_wait.get())
        end = run_of(step).attempt_end
        if end is None or delivery is None:
            return asyncio.Task(self._run_code(step), loop=loop, context=variables)
        variables.run(current_delivery.set, delivery)
        if step.action.settings.timeout is not None:
            self._limit_time(step, end.path, end.name)
        task = ActionTask(
            self._run_code(step), delivery=delivery, parent="", path=end.path, loop=loop, context=variables
        )
        end.future.inner = task
        self._let_rest(step)
        return task

    def _let_rest(self, step: ActionRun) -> None:
        """Let the calling action be at rest: what is about to start has started, or waits."""
        end = run_of(step).attempt_end
        if end is not None:
            end.let_rest()

    async def _run_code(self, step: ActionRun) -> Outcome:
        """Execute the user's code, whose exception a task may not be able to carry."""
        try:
            self.call(step)
            while step.awaited is not None:
                result = await self.take_code(step)
                self.emit_result(step, result)
        except BaseException as error:
            return Outcome(error=error)
        return Outcome()

    async def _end_attempt(self, step: ActionRun, task: asyncio.Task[Outcome]) -> None:
        """End what the user's code left running: its tasks, and then its calls."""
        delivery = step.delivery
        end = run_of(step).attempt_end
        error = task.result().raised if task.done() and not task.cancelled() else asyncio.CancelledError()
        failed = error is not None and not isinstance(error, asyncio.CancelledError)
        if delivery is not None and end is not None and failed:
            # Its calls took effect, or will. They must be recorded, not cancelled.
            delivery.failing_paths = [*delivery.failing_paths, end.path]
        if step.tasks is not None:
            await self.end_tasks(step)
        if delivery is None or end is None:
            return
        await self.durable.end_attempt(root_of(step), delivery, end.path, failed)
        delivery.deadlines = tuple(timed for timed in delivery.deadlines if timed.name != end.name)

    @override
    def _ran_before(self, step: ActionRun) -> float:
        """Return the seconds for which the attempt ran before the run of the calling action was suspended."""
        end = run_of(step).attempt_end
        of_root = root_of(step).retry_state
        if end is None or of_root is None or of_root.ran is None:
            return 0.0
        return of_root.ran.get(end.name, 0.0)

    @override
    async def end_failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """End an attempt that raised; returns the next one, or None if the run continues without one."""
        if self._is_mismatched(step) or isinstance(error, asyncio.CancelledError):
            # No policy applies: the replay cannot continue, or nothing waits for the answer.
            step.end()
            raise error
        return self.failed(step, error)

    def _is_mismatched(self, step: ActionRun) -> bool:
        """Return True if the replay of the calling action differs from its records."""
        delivery = step.delivery
        return delivery is not None and delivery.mismatch is not None

    # -- failures and ends ------------------------------------------------------------

    @override
    def now(self) -> float:
        # This time changes only with an outcome, so a replay makes the same number of attempts.
        return asyncio.get_running_loop().time()

    @override
    def fail_whole_job(self, step: ActionRun, error: BaseException) -> NoReturn:
        self._roll_back(step)
        raise error

    @override
    def fail(self, step: ActionRun, error: BaseException) -> None:
        self._roll_back(step)
        if isinstance(error, ENDS) or self._policy_of(step.action) is not OnError.IGNORE:
            raise error
        self._give_up(step.run, step.action, step.event, error, "", OnError.IGNORE)

    @override
    def _accepts(self, run: Run, action: BoundAction, event: Event) -> bool | None:
        previous_action_run = run.state.action_run
        try:
            return super()._accepts(run, action, event)
        finally:
            # The watchdog names the calling action.
            run.state.action_run = previous_action_run


def _outside_of_steps() -> Context:
    """Return a copy of the running context that belongs to no action and no execution of one."""
    context = outside()
    context.run(current_step.set, None)
    return context


def _needs_thread(step: ActionRun) -> ContextMisuseError:
    """Return the error of an action of a sub-agent that needs a thread, which it cannot get."""
    return ContextMisuseError(
        f"action {step.action.name!r} of the sub-agent {step.shared.agent.name!r} needs a thread",
        expected="an async def action, or a def action that ends at once",
        found="a def action that makes durable calls, or has blocking=True, a timeout or limits",
        fix="write async def, and await ctx.durable_execute_async(...) for what blocks",
    )
