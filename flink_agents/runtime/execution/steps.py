"""Executes the actions of a run one after the other.

A *step* is one attempt of an action on an event, an ``ActionRun``. ``StepExecutor`` decides which steps
follow each other; ``execution.failures`` decides what follows from a failure. Flink's task thread must not
wait. So there, ``advance`` stops at a step that has to wait. The event loop continues with it:
``execution.loop_executor`` adds to a step what it waits for.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from contextvars import copy_context
from types import CoroutineType
from typing import Any, cast

from flink_agents.api.common.awaited import truth_of
from flink_agents.api.common.current import DECIMALS, called_action_run, isolated
from flink_agents.api.events import Event, OutputEvent
from flink_agents.plan import BoundAction
from flink_agents.runtime.execution.action_run import ActionRun, check_awaited
from flink_agents.runtime.execution.context import context_type
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.failures import FAILURES, FailurePolicies
from flink_agents.runtime.execution.limits import ControlFlow, MoveToLoop
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.changed_code import begin_event
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.metrics.run_metrics import clock
from flink_agents.runtime.serde.redacted import redacted
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.memory import check_reads
from flink_agents.runtime.state.pending import UnreadableInput


class StepExecutor(FailurePolicies):
    """Executes the steps of runs.

    Args:
        shared: The agent's shared objects.

    Attributes:
        observers: Observers of runs.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        super().__init__(shared)
        self._context_type = context_type(shared.agent.context_class)
        self._notifies_sent = self.observers.events_sent_unnoted is not None
        self._action_ended = self.observers.action_ended_unnoted
        # In each process, an action may turn out to make durable calls only when it makes the first one.
        self._owned = {
            action.name
            for action in shared.agent.actions
            if shared.journals is not None or action.is_async or self._retry_of(action) is not None
        }

    def begin(self, run: Run, record: Any) -> None:
        """Start ``run`` with ``record``: an input, or an event that another run sent with a delay.

        Raises:
            StateError: The code has changed, so that the run cannot start.
        """
        kind = type(record)
        begins = kind is DelayedInput or kind is UnreadableInput
        run.queue.append(begin_event(run, record, self._shared) if begins else run.input_event(record))
        run.steps = self._walk(run)

    def advance(self, run: Run) -> ActionRun | None:
        """Execute steps on this thread up to the first one that cannot finish here.

        Returns:
            That step; None at the end of the run. The step has an awaitable, or was not called yet: it is a
            retry, or
            its action must not run on this thread.

        Raises:
            ActionFailedError: An action raised and its policy is to fail.
            UnhandledEventError: No action accepted an event and the policy is to fail.
        """
        try:
            for step in run.steps:
                if (unfinished_step := self._execute_here(step)) is not None:
                    return unfinished_step
        except BaseException:
            run.state.fail()
            raise
        return None

    def _execute_here(self, step: ActionRun) -> ActionRun | None:
        """Execute a step on Flink's task thread.

        Returns:
            The step that the event loop has to continue with; None if it has ended.
        """
        if step.action.off_thread:
            return step
        began = clock()
        step.variables = variables = copy_context()
        if DECIMALS in variables:
            variables.run(DECIMALS.set, variables[DECIMALS].copy())
        try:
            variables.run(self.call, step)
        except MoveToLoop:
            return self.leave_thread(step)
        except ControlFlow:
            raise
        except FAILURES as error:
            # A further attempt may have to pause first.
            return self.failed(step, error)
        if step.awaited is not None:
            return step
        if step.needs_loop:
            # The user's code caught the exception that should have left this thread.
            return self.leave_thread(step)
        if self._notifies_sent:
            notify_sent(self.observers.events_sent_unnoted, step)
        state = step.run.state
        name = step.action.name
        seconds = clock() - began
        self._action_ended(state, name, seconds, True)
        if (notes := state.notes) is not None and notes.folds:
            sent = step.sent
            # Mostly, an action sends one event. The property of its type would be a call.
            route = self._shared.routes.by_class.get(type(sent[0])) if len(sent) == 1 else None
            types = types_of(sent) if route is None else route.types
            notes.steps.append((None, name, None, seconds, types))
        self.succeed(step)
        return None

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
        if action.name in self._owned or step.slot is not None:
            event = self._shared.events.copy_for_attempt(event)
        step.context = self._context_type(step)
        token = called_action_run.set(step)
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

    async def await_result(self, step: ActionRun) -> None:
        """Await the awaitable that :meth:`call` left, on the loop's thread; run it in ``step.variables``."""
        while step.awaited is not None:
            awaited = step.awaited
            step.awaited = None
            if inspect.isasyncgen(awaited):
                async with aclosing(cast("AsyncGenerator[Any, None]", awaited)) as events:
                    async for event in events:
                        if event is not None:
                            step.emit(event)
            else:
                result = await cast("Awaitable[Any]", awaited)
                if (route := self._shared.routes.by_class.get(type(result))) is not None:
                    step.emit_routed(result, route)
                elif result is not None:
                    self._emit(step, result)
        if step.unawaited is not None:
            check_awaited(step)
        if step.reads:
            check_reads(step)

    def succeed(self, step: ActionRun) -> None:
        """End a step. The events that it emitted become part of the run."""
        step.end()
        run = step.run
        run.emitted += len(step.sent)
        if run.waits is not None:
            self._emit_outputs(step)
            return
        # If the run waits later, its replay must not execute the step again.
        if run.ended is not None:
            run.ended.append((step, len(run.undo)))
        run.queue += step.sent
        if step.side is not None:
            run.side_outputs.extend(step.side)

    def _emit_outputs(self, step: ActionRun) -> None:
        """Emit the outputs of a step in a run that may have been suspended, except those that left then."""
        outputs: list[Any] = []
        for event in step.sent:
            route = self._shared.routes.find_route(event)
            if route is not None and route.leaves:
                outputs.append(cast("OutputEvent", event).output)
            else:
                step.run.queue.append(event)
        step.run.put_out(step.path, outputs, step.side or [])

    # -- the chain --------------------------------------------------------------------

    def _walk(self, run: Run) -> Iterator[ActionRun]:
        """Yield the next step, as long as events are queued."""
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
                # A condition that raised is a failure of the action, with its own policy.
                handled = handled or accepted is not False
            if not handled:
                self._unhandled(run, event)

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
        for event in events:
            if event is not None:
                step.emit(event)


def notify_ended(observers: Observers, step: ActionRun, seconds: float) -> None:
    """Note or notify observers that an attempt of an action has ended outside of Flink's task thread."""
    state = step.run.state
    name = step.action.name
    notes = step.run.state.notes
    noted = notes is not None and notes.folds and not notes.lasts
    sent = observers.events_sent_unnoted if noted else observers.events_sent
    if sent is not None:
        notify_sent(sent, step)
    (observers.action_ended_unnoted if noted else observers.action_ended)(state, name, seconds, False)
    if notes is not None and noted:
        # If the writer of the trace takes the steps of the run meanwhile, the next report takes this one.
        notes.steps.append((None, name, time.time(), seconds, types_of(step.sent)))


def notify_sent(notify: Callable[..., None] | None, step: ActionRun) -> None:
    """Notify observers of the events that a step sent. Call it right before they learn of its end."""
    if (sent := step.sent) and notify is not None:
        notify(step.run.state, step.action.name, types_of(sent))


def types_of(sent: Sequence[Event]) -> tuple[str, ...]:
    """Return the types of events."""
    return (sent[0].event_type,) if len(sent) == 1 else tuple([event.event_type for event in sent])
