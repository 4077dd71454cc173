"""Executes the actions of an asked agent as code of the action that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from typing import Any, cast

from typing_extensions import override

from flink_agents.api.common.current import current_action_run
from flink_agents.api.common.policies import FailedAttempt, OnError
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.events import Event
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.timeouts import Deadline, timed_out
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.failures import ENDS
from flink_agents.runtime.execution.limits import entered
from flink_agents.runtime.execution.retry import RetryState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.steps import StepExecutor, StepStrategy
from flink_agents.runtime.execution.sub_agents.asked_run import SubAgentRun, root_of


class SubAgentExecutor(StepExecutor):
    """Executes the runs of an asked agent.

    Its failures are raised where the answer is awaited: who asks decides what becomes of them.

    Args:
        shared: What all runs of the asked agent share.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        super().__init__(shared)
        self._way: StepStrategy = _WithinAction(self, shared)

    async def answer(self, run: SubAgentRun, event: Event) -> list[Any]:
        """Execute a run to its end; returns what the agent put out."""
        run.queue.append(event)
        run.steps = self._walk(run)
        await self.execute(run, self._way)
        return run.outputs

    @override
    def now(self) -> float:
        # It stands still between two outcomes, so that a replay makes as many attempts.
        return asyncio.get_running_loop().time()

    @override
    def succeed(self, step: ActionRun) -> None:
        run = step.run
        if isinstance(run, SubAgentRun) and run.transcript is not None:
            for event in step.sent:
                content = {name: getattr(event, name) for name in type(event).model_fields}
                run.note(step, "event", event.event_type, content)
        super().succeed(step)

    @override
    def fail(self, step: ActionRun, error: BaseException) -> None:
        self._take_back(step)
        if isinstance(error, ENDS) or self._policy_of(step.action) is not OnError.IGNORE:
            raise error
        self._give_up(step.run, step.action, step.event, error, "", OnError.IGNORE)

    @override
    def _give_up(
        self,
        run: Run,
        action: BoundAction | None,
        event: Event,
        error: BaseException,
        where: str,
        policy: OnError,
        attempts: tuple[FailedAttempt, ...] = (),
        path: str = "",
    ) -> None:
        if policy is OnError.DEAD_LETTER:
            # The event of which the job keeps a trace is that of the agent that asks.
            raise error
        super()._give_up(run, action, event, error, where, policy, attempts, path)

    @override
    def _accepts(self, run: Run, action: BoundAction, event: Event) -> bool | None:
        before = run.state.action_run
        try:
            return super()._accepts(run, action, event)
        finally:
            # The watchdog names the action that asks.
            run.state.action_run = before


class _WithinAction(StepStrategy):
    """What the executor does with steps on the agent loop, inside of another step.

    Args:
        steps: The executor.
        shared: What all runs of the asked agent share.
    """

    def __init__(self, steps: SubAgentExecutor, shared: RunEnvironment) -> None:
        self._steps = steps
        self._limits = shared.limits

    @override
    def replayed(self, step: ActionRun) -> bool:
        return False

    @override
    def begin(self, step: ActionRun) -> None:
        """Nothing is recorded of such a step itself."""

    @override
    async def pause(self, step: ActionRun) -> None:
        assert step.trial is not None
        await step.shared.pause(step.trial.delay)

    @override
    def perform(self, step: ActionRun) -> Awaitable[None]:
        root = root_of(step)
        root.guard()
        if step.action.off_thread:
            raise _needs_thread(step)
        step.trial = step.trial or RetryState()
        step.trial.slot = root.slot()
        step.delivery = root.delivery
        return self._perform(step)

    async def _perform(self, step: ActionRun) -> None:
        assert step.trial is not None
        limiter = self._limits.of_action(step.action)
        async with entered(limiter, step.trial.slot) if limiter is not None else nullcontext():
            # What the author's code starts, and libraries that it calls, belong to this step.
            token = current_action_run.set(cast("Any", step))
            try:
                self._steps.call(step)
                await self._in_time(step)
            finally:
                current_action_run.reset(token)

    async def _in_time(self, step: ActionRun) -> None:
        seconds = step.action.settings.timeout
        if seconds is None or step.awaited is None:
            return await self._steps.wait(step)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._steps.wait(step)
        except TimeoutError as error:
            # The action may have raised one of its own.
            if not limit.expired():
                raise
            raise timed_out(Deadline.of(step.action), error.__traceback__) from None

    @override
    async def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        calls = root_of(step).calls
        mismatched = calls is not None and calls.mismatch is not None
        if mismatched or isinstance(error, asyncio.CancelledError):
            # The replay cannot go on, or nobody waits for the answer any more: no policy decides about that.
            step.end()
            raise error
        return self._steps.failed(step, error)

    @override
    async def end_tasks(self, step: ActionRun) -> None:
        tasks, step.tasks = [task for task in step.tasks or () if not task.done()], None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _needs_thread(step: ActionRun) -> ContextMisuseError:
    return ContextMisuseError(
        f"action {step.action.name!r} of the asked agent {step.shared.agent_name!r} needs a thread",
        expected="an async def action, or a def action that ends at once",
        found="a def action that makes durable calls, or has blocking=True, a timeout or limits",
        fix="write async def, and await ctx.durable_execute_async(...) for what blocks",
    )
