"""What the executor does with steps: on Flink's thread, which must not wait, and elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from flink_agents.runtime.execution.context import ActionRun
from flink_agents.runtime.execution.limits import LeaveThread, RuntimeSignal
from flink_agents.runtime.metrics.run_metrics import clock

if TYPE_CHECKING:
    from flink_agents.runtime.execution.steps import StepExecutor


class HandOver(RuntimeSignal):
    """A step cannot end on Flink's thread.

    Args:
        step: What the agent loop goes on with: it has what is to be awaited, or was not called yet.
    """

    def __init__(self, step: ActionRun) -> None:
        super().__init__(step)
        self.step = step


class Way(Protocol):
    """What the executor does with steps on one kind of thread."""

    def replayed(self, step: ActionRun) -> bool:
        """Take the whole of a step from its record; returns whether there is one."""
        ...

    async def pause(self, step: ActionRun) -> None:
        """Wait until a further attempt may begin."""
        ...

    def begin(self, step: ActionRun) -> None:
        """Prepare a step of a run that is recorded. What this raises is no failure of the action."""
        ...

    def perform(self, step: ActionRun) -> Awaitable[None] | None:
        """Execute a step; returns what is to be awaited until it has ended."""
        ...

    async def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """End a step that raised; returns the next attempt, or None where the run goes on without."""
        ...

    async def end_tasks(self, step: ActionRun) -> None:
        """End the tasks that a step left behind."""
        ...


class Inline:
    """What the executor does on Flink's thread: a step that cannot end at once is handed over.

    Args:
        steps: The executor.
    """

    def __init__(self, steps: StepExecutor) -> None:
        self._steps = steps
        # Found once, since each event that needs nothing else comes by here.
        self._call = steps.call
        self._ended = steps.observers.action_ended

    def replayed(self, step: ActionRun) -> bool:
        """No run begins here of which anything is recorded."""
        return False

    async def pause(self, step: ActionRun) -> None:
        """Leave the pause to the loop."""
        raise HandOver(step)

    def begin(self, step: ActionRun) -> None:
        """No run is recorded on this thread."""

    def perform(self, step: ActionRun) -> None:
        """Call the action, if it may be executed on this thread; begin it anew in the pool otherwise."""
        if step.action.off_thread or step.trial is not None:
            raise HandOver(step)
        began = clock()
        try:
            self._call(step)
        except LeaveThread:
            raise HandOver(self._steps.leave_thread(step)) from None
        if step.awaited is not None:
            raise HandOver(step)
        if step.trial is not None:
            # The author's code caught what should have led away from here.
            raise HandOver(self._steps.leave_thread(step))
        self._ended(step.run.state, step.action.name, clock() - began, True)

    async def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """Follow the policies of the action."""
        return self._steps.failed(step, error)

    async def end_tasks(self, step: ActionRun) -> None:
        """Nothing is started on this thread."""
