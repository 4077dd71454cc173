"""Executes the actions of a sub-agent as code of the action that called it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from typing_extensions import override

from flink_agents.api.common.policies import FailedAttempt, OnError
from flink_agents.api.events import Event
from flink_agents.plan import BoundAction
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import ENDS
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.steps import StepExecutor, StepStrategy
from flink_agents.runtime.execution.sub_agents.sub_agent_run import SubAgentRun

MakeStrategy = Callable[[RunEnvironment, StepExecutor], StepStrategy]
"""Creates the strategy for the attempts of a sub-agent's actions."""


class SubAgentExecutor(StepExecutor):
    """Executes the runs of a sub-agent.

    A failure is raised from the call of the sub-agent, so the calling action decides what follows.

    Args:
        shared: The shared objects of the sub-agent.
        strategy: Creates the strategy for the attempts of its actions.
    """

    def __init__(self, shared: RunEnvironment, strategy: MakeStrategy) -> None:
        super().__init__(shared)
        self._strategy = strategy(shared, self)

    async def answer(self, run: SubAgentRun, event: Event) -> list[Any]:
        """Execute a run to its end; returns the agent's outputs."""
        run.queue.append(event)
        run.steps = self._walk(run)
        try:
            await self.execute(run, self._strategy)
        finally:
            # It refers to the run: each call would leave a cycle.
            run.attempt_end = None
        return run.outputs

    @override
    def now(self) -> float:
        # This time changes only with an outcome, so a replay makes the same number of attempts.
        return asyncio.get_running_loop().time()

    @override
    def succeed(self, step: ActionRun) -> None:
        run = step.run
        if isinstance(run, SubAgentRun) and run.traced:
            for event in step.sent:
                content = {name: getattr(event, name) for name in type(event).model_fields}
                run.note(step, "event", event.event_type, content)
        super().succeed(step)

    @override
    def fail_whole_job(self, step: ActionRun, error: BaseException) -> NoReturn:
        self._take_back(step)
        raise error

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
