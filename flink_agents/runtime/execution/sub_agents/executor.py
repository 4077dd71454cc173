"""Executes the actions of a sub-agent as code of the action that called it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import nullcontext
from typing import Any

from typing_extensions import override

from flink_agents.api.common.current import current_action_run, in_context, isolated
from flink_agents.api.common.policies import FailedAttempt, OnError
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.events import Event
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.timeouts import Deadline, timed_out
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import ENDS
from flink_agents.runtime.execution.limits import entered
from flink_agents.runtime.execution.retry import RetryState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.steps import StepExecutor, StepStrategy
from flink_agents.runtime.execution.sub_agents.sub_agent_run import SubAgentRun, root_of


class SubAgentExecutor(StepExecutor):
    """Executes the runs of a sub-agent.

    A failure is raised from the call of the sub-agent, so the calling action decides what follows.

    Args:
        shared: The shared objects of the sub-agent.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        super().__init__(shared)
        self._way: StepStrategy = _WithinAction(self, shared)

    async def answer(self, run: SubAgentRun, event: Event) -> list[Any]:
        """Execute a run to its end; returns the agent's outputs."""
        run.queue.append(event)
        run.steps = self._walk(run)
        await self.execute(run, self._way)
        return run.outputs

    @override
    def now(self) -> float:
        # This time changes only with an outcome, so a replay makes the same number of attempts.
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
            # The dead letter has the event of the calling agent, not this one.
            raise error
        super()._give_up(run, action, event, error, where, policy, attempts, path)

    @override
    def _accepts(self, run: Run, action: BoundAction, event: Event) -> bool | None:
        previous_action_run = run.state.action_run
        try:
            return super()._accepts(run, action, event)
        finally:
            # The watchdog names the calling action.
            run.state.action_run = previous_action_run


class _WithinAction(StepStrategy):
    """Executes steps of a sub-agent on the event loop, inside of another step.

    Args:
        steps: The executor.
        shared: The shared objects of the sub-agent.
    """

    def __init__(self, steps: SubAgentExecutor, shared: RunEnvironment) -> None:
        self._steps = steps
        self._limits = shared.services.limits

    @override
    def replayed(self, step: ActionRun) -> bool:
        return False

    @override
    def begin(self, step: ActionRun) -> None:
        """Do nothing: such a step has no records."""

    @override
    async def pause(self, step: ActionRun) -> None:
        assert step.retry_state is not None
        await step.shared.pause(step.retry_state.delay)

    @override
    def perform(self, step: ActionRun) -> Awaitable[None]:
        root = root_of(step)
        root.guard()
        if step.action.off_thread:
            raise _needs_thread(step)
        step.retry_state = step.retry_state or RetryState()
        step.retry_state.slot = root.slot()
        step.delivery = root.delivery
        return self._perform(step)

    async def _perform(self, step: ActionRun) -> None:
        assert step.retry_state is not None
        limiter = self._limits.of_action(step.action)
        async with entered(limiter, step.retry_state.slot) if limiter is not None else nullcontext():
            step.variables = variables = isolated()
            # Tasks that the user's code or its libraries start belong to this step.
            variables.run(current_action_run.set, step)
            variables.run(self._steps.call, step)
            await self._in_time(step)

    async def _in_time(self, step: ActionRun) -> None:
        seconds = step.action.settings.timeout
        assert step.variables is not None
        ended = in_context(step.variables, self._steps.wait(step))
        if seconds is None or step.awaited is None:
            return await ended
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await ended
        except TimeoutError as error:
            # If the limit has not expired, the action raised this error itself.
            if not limit.expired():
                raise
            raise timed_out(Deadline.of(step.action), error.__traceback__) from None

    @override
    async def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        calls = root_of(step).calls
        mismatched = calls is not None and calls.mismatch is not None
        if mismatched or isinstance(error, asyncio.CancelledError):
            # No policy applies: the replay cannot continue, or nothing waits for the answer.
            step.end()
            raise error
        return self._steps.failed(step, error)

    @override
    async def end_tasks(self, step: ActionRun) -> None:
        tasks = [task for task in step.tasks or () if not task.done()]
        step.tasks = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _needs_thread(step: ActionRun) -> ContextMisuseError:
    return ContextMisuseError(
        f"action {step.action.name!r} of the sub-agent {step.shared.code.name!r} needs a thread",
        expected="an async def action, or a def action that ends at once",
        found="a def action that makes durable calls, or has blocking=True, a timeout or limits",
        fix="write async def, and await ctx.durable_execute_async(...) for what blocks",
    )
