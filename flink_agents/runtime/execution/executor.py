"""Executes the actions of a run, attempt by attempt. All attempts take the same sequence of steps.

Flink's task thread must not wait. So there, an attempt lacks the steps that wait, which ``loop_executor``
has, and the run stops at the first attempt that needs one of them. The event loop continues with it.
``execution.failures`` decides what follows from a failure.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Iterator
from contextlib import aclosing, closing
from contextvars import Context, copy_context
from types import CoroutineType
from typing import Any, NoReturn, cast

from flink_agents.api.common.awaited import truth_of
from flink_agents.api.common.current import DECIMALS, called_action_run, isolated
from flink_agents.api.events import Event, OutputEvent
from flink_agents.plan import BoundAction
from flink_agents.runtime.execution.action_run import ActionRun, check_awaited
from flink_agents.runtime.execution.calls.durable_calls import DurableCalls
from flink_agents.runtime.execution.context import context_type
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import FAILURES, FailurePolicies
from flink_agents.runtime.execution.limits import ControlFlow, MoveToLoop
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.redacted import redacted
from flink_agents.runtime.state.memory import check_reads


class RunExecutor(FailurePolicies):
    """Executes runs: on Flink's task thread as it is, on the event loop as a ``LoopExecutor``.

    Args:
        shared: The agent's shared objects.

    Attributes:
        may_wait: True on the event loop; False on Flink's task thread, which must not wait.
        durable: Makes durable calls, and records the ends of executions; only on the event loop.
    """

    may_wait = False
    durable: DurableCalls

    def __init__(self, shared: RunEnvironment) -> None:
        super().__init__(shared)
        self._context_type = context_type(shared.agent.context_class)
        # Actions that may be executed again get a copy of the event. In each process, an action may turn out
        # to make durable calls, or to use a tool with limits, only when it does so first.
        may_move = shared.journals is not None or any(
            resource.max_concurrency is not None or resource.rate_limit is not None
            for resource in shared.agent.plan.resources
        )
        self._names_of_repeatable = {
            action.name
            for action in shared.agent.actions
            if may_move or action.is_async or self._retry_of(action) is not None
        }

    def advance(self, run: Run) -> ActionRun | None:
        """Execute a run on Flink's task thread, up to the first attempt that cannot finish there.

        Returns:
            That attempt; None at the end of the run. The attempt has an awaitable, or was not started: it is
            a retry, or its action must not run on this thread.

        Raises:
            ActionFailedError: An action raised and its policy is to fail.
            UnhandledEventError: No action accepted an event and the policy is to fail.
        """
        try:
            # Nothing is awaited here, so the coroutine ends at once.
            self.execute(run).send(None)
        except StopIteration as end:
            return end.value
        except BaseException:
            run.state.fail()
            raise
        raise AssertionError("an attempt waits on Flink's task thread")

    async def execute(self, run: Run) -> ActionRun | None:
        """Execute the rest of a run, attempt by attempt.

        Returns:
            The attempt that needs the event loop, and comes next there; None at the end of the run.
        """
        if run.steps is None:
            run.steps = self._walk(run)
        for step in run.steps:
            if self.may_wait:
                is_new = step.retry_state is None and run.waits is None
                if not (is_new and (run.journal is None or run.journal.is_blank)) and await self._is_replayed(
                    step
                ):
                    continue
            elif step.action.off_thread or step.retry_state is not None:
                # A further attempt may have to pause first.
                run.following = step
                return step
            try:
                seconds = await self.perform(step)
            except ControlFlow:
                if self.may_wait:
                    raise
                run.following = self.leave_thread(step)
            except FAILURES as error:
                run.following = await self.end_failed(step, error)
            else:
                if step.awaited is not None:
                    run.following = step
                    return step
                step.succeed(seconds)
            finally:
                if step.tasks is not None:
                    await self.end_tasks(step)
        return None

    async def perform(self, step: ActionRun) -> float | None:
        """Execute an attempt, and record its end if it made durable calls.

        Returns:
            The seconds that its code took; None if nothing measured them. On Flink's task thread, an attempt
            that has something to await has not ended.

        Raises:
            MoveToLoop: The attempt has to wait, on Flink's task thread.
            RunSuspended: The run is suspended, whatever its code did with the cancellation.
            ContextMisuseError: The code swallowed it again and again.
        """
        if self.may_wait and (turn := self._take_turn(step)) is not None:
            await turn
        raised: BaseException | None = None
        try:
            started = clock()
            try:
                if step.awaited is None:
                    step.variables = variables = copy_context()
                    if self.may_wait and not step.action.is_async:
                        await self._call_in_thread(step, variables)
                    else:
                        # Of an async action, only decorators may run yet: this creates its coroutine.
                        variables.run(self.call, step)
                if step.awaited is not None:
                    if not self.may_wait:
                        return None
                    timeout = step.action.settings.timeout
                    await (
                        self._await_code(step) if timeout is None else self._in_time(step, started + timeout)
                    )
                seconds = clock() - started
            finally:
                if step.slot is not None:
                    step.slot.end()
            if step.needs_loop and not self.may_wait:
                # The user's code caught the exception that should have left this thread.
                raise MoveToLoop
            if step.delivery is not None:
                await self.durable.end_succeeded(step)
            if step.suspended is None:
                return seconds
        except BaseException as error:
            if step.suspended is None:
                raise
            raised = error
        try:
            await self._end_suspended(step, raised)
        finally:
            # Its traceback has this frame, which must not be part of a reference cycle.
            del raised

    # -- steps that wait: a ``LoopExecutor`` has them -----------------------------------

    async def _is_replayed(self, step: ActionRun) -> bool:
        """Prepare an attempt; returns True if a record has its effects."""
        raise NotImplementedError

    def _take_turn(self, step: ActionRun) -> Awaitable[None] | None:
        """Give an attempt a slot; returns an awaitable if it has to wait until it may start."""
        raise NotImplementedError

    async def _call_in_thread(self, step: ActionRun, variables: Context) -> None:
        """Call a ``def`` action in a thread of the pool."""
        raise NotImplementedError

    async def _await_code(self, step: ActionRun) -> None:
        """Await the result of an action."""
        raise NotImplementedError

    def _in_time(self, step: ActionRun, deadline: float) -> Awaitable[None]:
        """Await the result of an action, until a time by the clock of its attempt."""
        raise NotImplementedError

    async def _end_suspended(self, step: ActionRun, raised: BaseException | None) -> NoReturn:
        """End an attempt whose run is suspended, whatever its code did with the cancellation."""
        raise NotImplementedError

    async def end_tasks(self, step: ActionRun) -> None:
        """Cancel the tasks that an attempt left running, and wait for their end."""
        raise NotImplementedError

    async def end_failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """End an attempt that raised; returns the next one, or None if the run continues without one."""
        return self.failed(step, error)

    # -- one step ---------------------------------------------------------------------

    def call(self, step: ActionRun) -> None:
        """Call the action and emit the events that it returns; run it in ``step.variables``.

        An awaitable that it returns stays in the step.

        An action that may be executed again gets a copy of the event, as on the event loop, where its run may
        wait. So a change that it makes to the event reaches neither its next attempt nor other actions, which
        would not see the change after a replay.
        """
        action = step.action
        event = step.event
        if action.name in self._names_of_repeatable or step.slot is not None:
            event = self._shared.events.copy_for_attempt(event)
        step.context = self._context_type(step)
        token = called_action_run.set(step)
        if (decimals := DECIMALS.get(None)) is not None:
            # As in `isolated`: what the code sets in `decimal` stays in its context.
            DECIMALS.set(decimals.copy())
        try:
            result = action.call(event, step.context)
            if type(result) is CoroutineType:
                step.awaited = result
            elif result is not None:
                # Most actions return one event of a class that was emitted before.
                route = self._shared.routes.by_class.get(type(result))
                if route is not None:
                    step.emit_routed(result, route)
                else:
                    self._emit(step, result)
            if step.unawaited is not None and step.awaited is None:
                check_awaited(step)
            if step.reads and step.awaited is None:
                check_reads(step)
        finally:
            called_action_run.reset(token)

    def take_code(self, step: ActionRun) -> Coroutine[Any, Any, Any]:
        """Return a coroutine of the awaitable that :meth:`call` left, or the last one of these returned."""
        awaited = step.awaited
        step.awaited = None
        if type(awaited) is CoroutineType:
            return awaited
        if inspect.isasyncgen(awaited):
            return self._emit_generated(step, cast("AsyncGenerator[Any, None]", awaited))
        return _await(awaited)

    async def _emit_generated(self, step: ActionRun, generator: AsyncGenerator[Any, None]) -> None:
        """Emit the events of an asynchronous generator."""
        async with aclosing(generator) as events:
            async for event in events:
                if event is not None:
                    step.emit(event)

    def emit_result(self, step: ActionRun, result: Any) -> None:
        """Emit what the code of an action returned in the end; run it in ``step.variables``.

        Something to be awaited stays in ``step.awaited``.
        """
        if (route := self._shared.routes.by_class.get(type(result))) is not None:
            step.emit_routed(result, route)
        elif result is not None:
            self._emit(step, result)
        if step.awaited is None:
            if step.unawaited is not None:
                check_awaited(step)
            if step.reads:
                check_reads(step)

    # -- the chain --------------------------------------------------------------------

    def _walk(self, run: Run) -> Iterator[ActionRun]:
        """Yield the next attempt: a further one of the same step, or the next step of a queued event."""
        queue = run.queue
        routes = self._shared.routes
        routes_by_class = routes.by_class
        while queue:
            event = queue.popleft()
            route = routes_by_class.get(type(event)) or routes.find_route(event)
            assert route is not None
            if route.leaves:
                run.outputs.append(cast("OutputEvent", event).output)
                continue
            handled = False
            for action in route.actions:
                accepted = action.settings.when is None or self._accepts(run, action, event)
                if accepted:
                    yield ActionRun(self._shared, run, action, event)
                while (following := run.following) is not None:
                    run.following = None
                    yield following
                # A condition that raised is a failure of the action, with its own policy.
                handled = handled or accepted is not False
            if not handled:
                self._apply_on_unhandled(run, event)

    def _accepts(self, run: Run, action: BoundAction, event: Event) -> bool | None:
        """Return True if the condition of ``action`` holds; None if it raised."""
        assert action.settings.when is not None
        if run.state.started:
            # The watchdog names the action whose condition blocks the loop.
            run.state.action_run = ActionRun(self._shared, run, action, event)
        try:
            holds = isolated().run(action.settings.when, event)
            return (
                holds if type(holds) is bool else truth_of(holds, f"the condition of action {action.name!r}")
            )
        except FAILURES as raised:
            error = redacted(raised)
            self.observers.action_failed(run.state, action.name, error)
            self.fail(ActionRun(self._shared, run, action, event), error)
            return None

    def _emit(self, step: ActionRun, result: Any) -> None:
        """Emit what an action returned: an event, or each event of a list, tuple or generator.

        Something to be awaited stays in ``step.awaited``.
        """
        if type(result) is CoroutineType:
            step.awaited = result
            return
        routes = self._shared.routes
        if (route := routes.by_class.get(type(result)) or routes.find_route(result)) is not None:
            step.emit_routed(result, route)
        elif inspect.isgenerator(result):
            # If it fails, close it at once: its own clean-up still belongs to the action.
            with closing(result):
                self._emit_all(step, result)
        elif isinstance(result, list | tuple):
            self._emit_all(step, cast("Iterable[Any]", result))
        elif inspect.isawaitable(result) or inspect.isasyncgen(result):
            step.awaited = result
        else:
            step.emit(result)

    def _emit_all(self, step: ActionRun, events: Iterable[Any]) -> None:
        """Emit events, without those that are None."""
        for event in events:
            if event is not None:
                step.emit(event)


async def _await(awaitable: Awaitable[Any]) -> Any:
    """Await an object that is no coroutine, so that a coroutine does it."""
    return await awaitable
